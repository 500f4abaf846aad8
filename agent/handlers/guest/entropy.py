"""Sandbox.SeedEntropy: the host's random bytes for the guest's kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid, kernel_refused
from agent.linux import entropy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.core.roots import Roots

MOST_BYTES: Final = 512


def seed(
    roots: Roots,
    data: bytes,
    *,
    add: Callable[[Path, bytes], None] = entropy.add_entropy,
) -> None:
    """Mix 1 to 512 bytes into the kernel's pool and credit them; raises BAD_FIELD for others."""
    if not 1 <= len(data) <= MOST_BYTES:
        raise invalid(
            f"data: 1 to {MOST_BYTES} random bytes are needed, not {len(data)}", field="data"
        )
    try:
        add(roots.dev / "random", data)
    except OSError as error:
        raise kernel_refused(error, doing="credit entropy") from error

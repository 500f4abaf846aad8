"""What the agent shuts before it serves: vsock for containers, and the way around.

Both are needed (DESIGN D3): the seccomp filter sees system calls, and io_uring
makes sockets without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.linux import pseudo, seccomp

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.core.roots import Roots

_NOBODY = "2"
"""`kernel.io_uring_disabled`: 0 anyone, 1 a group, 2 nobody (admin-guide/sysctl/kernel.rst)."""


def harden(
    roots: Roots, *, refuse_vsock: Callable[[], None] = seccomp.refuse_vsock
) -> tuple[str, ...]:
    """Refuse vsock and io_uring to this process and all it starts.

    Returns a warning for each that this kernel can't do; the agent serves
    nevertheless, because a guest without containers needs neither.
    """
    steps = (refuse_vsock, lambda: _disable_io_uring(roots))
    return tuple(warning for step in steps if (warning := _attempt(step)))


def _disable_io_uring(roots: Roots) -> None:
    pseudo.write(roots.proc / "sys/kernel/io_uring_disabled", _NOBODY)


def _attempt(step: Callable[[], None]) -> str:
    try:
        step()
    except OSError as error:
        return f"containers can reach the host's vsock ports: {error}"
    return ""

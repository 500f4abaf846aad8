"""The flags of a mount in the guest, as the kernel has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.linux import pseudo
from agent.linux.mounting import parse_mountinfo

if TYPE_CHECKING:
    from agent.core.roots import Roots


def flags_at(roots: Roots, mount_point: str) -> tuple[str, ...]:
    """Those of the topmost mount there, in mountinfo's words; none where nothing is mounted."""
    text = pseudo.read_optional(roots.proc / "self/mountinfo") or ""
    found = [each.options for each in parse_mountinfo(text) if each.mount_point == mount_point]
    return tuple(found[-1].split(",")) if found else ()

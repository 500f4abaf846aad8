"""How many lines an answer tells of what a request changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES: Final = 256


def capped(lines: Sequence[str], *, more: int = 0) -> tuple[str, ...]:
    """At most LINES, the last one of which says how many more there are.

    `more` are those of the same that nobody wrote, as there are LINES without them.
    """
    if len(lines) + more <= LINES:
        return tuple(lines)
    return (*lines[: LINES - 1], f"and {len(lines) + more - LINES + 1} more")

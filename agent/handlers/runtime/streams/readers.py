"""Where the readers of one output stream are, and what must be there for them.

A reader with a name that breaks off keeps its place for RETURN seconds: its
connection may be lost, and it opens again at what it really has, which is less
than it was given. So other readers, who go on meanwhile, take nothing away from
it. It may be back before its old call is over, which then counts no more. Of an
agent that died the names are known; each has its place at the oldest byte.

A reader without a name is gone with its connection. Readers that may miss bytes
hold nobody and nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RETURN = 60.0
"""Seconds for which a place is kept (processes.proto): as long as the host's client tries to
come back."""


@dataclass(slots=True, eq=False)
class Cursor:
    """A reader: it said it had what is before `opened`, and has taken what is before
    `position`. `here` is false while it may come back."""

    position: int
    name: str = ""
    may_miss: bool = False
    here: bool = True
    told: int | None = None
    """How much it acknowledged, if it does; of readers without a name nobody knows whose
    acknowledgements are whose."""
    opened: int = field(init=False)

    def __post_init__(self) -> None:
        self.opened = self.position


@dataclass(frozen=True, slots=True)
class _Need:
    """What is from `floor` on is to be kept, and what is from `had` on also in need."""

    floor: int
    had: int
    position: int


class Readers:
    """Those that are there, and those that may come back."""

    def __init__(self, *, window: int, kept: int, lost: Iterable[str] = ()) -> None:
        """`lost` are the names of those that were there when an earlier agent died."""
        self._window = window
        self._cursors = {Cursor(kept, name, here=False) for name in lost}
        self._told: int | None = None
        self.read = kept
        """How far the fastest has come, of all that ever were."""

    @property
    def away(self) -> tuple[Cursor, ...]:
        return tuple(each for each in self._cursors if not each.here)

    @property
    def names(self) -> frozenset[str]:
        """Of those that have a place, or will when their connection breaks."""
        return frozenset(each.name for each in self._cursors if each.name and not each.may_miss)

    @property
    def free(self) -> bool:
        """Whether somebody reads, and whoever does may miss bytes."""
        return bool(self._cursors) and all(each.may_miss for each in self._cursors)

    def enter(self, offset: int, *, name: str = "", may_miss: bool = False) -> Cursor:
        cursor = Cursor(offset, name, may_miss)
        if (before := self._named(name)) is not None:
            self._cursors.remove(before)
            # It acknowledges, and will again: until then nothing counts as had.
            cursor.told = None if before.told is None else offset
        if not (may_miss or self._anonymous()):
            # What was said by those that are gone.
            self._told = None
        self._cursors.add(cursor)
        return cursor

    def advance(self, cursor: Cursor, position: int) -> None:
        cursor.position = position
        if cursor in self._cursors:
            self.read = max(self.read, position)

    def leave(self, cursor: Cursor, *, for_good: bool) -> Cursor | None:
        """The cursor, when its place is kept, to be forgotten some time."""
        if cursor not in self._cursors:
            return None
        if cursor.name and not (for_good or cursor.may_miss):
            cursor.here = False
            return cursor
        self._cursors.remove(cursor)
        if not cursor.name and self._anonymous():
            # It may have been the one that acknowledges; the others must not wait for it.
            self._told = None
        return None

    def forget(self, cursor: Cursor) -> None:
        """It has not come back in time, unless it has."""
        if not cursor.here:
            self._cursors.discard(cursor)

    def acknowledge(self, offset: int, name: str = "") -> None:
        if not name:
            self._told = max(self._told or 0, offset)
        elif (cursor := self._named(name)) is not None:
            cursor.told = max(cursor.told or 0, offset)

    def bounds(self) -> tuple[int, int]:
        """Where the slowest is, and from where on everything is kept."""
        needs = tuple(self._needs())
        return min(each.position for each in needs), min(each.floor for each in needs)

    def had(self) -> int:
        """What is before this can go when there is need."""
        return min(each.had for each in self._needs())

    def missing(self) -> int | None:
        """Where the slowest is of those that may miss bytes."""
        return min((each.position for each in self._cursors if each.may_miss), default=None)

    def _named(self, name: str) -> Cursor | None:
        return next((each for each in self._cursors if name and each.name == name), None)

    def _anonymous(self) -> bool:
        return any(not (each.name or each.may_miss) for each in self._cursors)

    def _needs(self) -> Iterator[_Need]:
        """One at least: with nobody there, what those had that went."""
        holding = [each for each in self._cursors if not each.may_miss]
        if not holding:
            yield self._need_of_nobody()
        yield from map(self._need, holding)

    def _need_of_nobody(self) -> _Need:
        if self._told is None:
            return _Need(self.read - self._window, self.read, self.read)
        had = min(self._told, self.read)
        return _Need(had, had, self.read)

    def _need(self, cursor: Cursor) -> _Need:
        position, told = cursor.position, cursor.told if cursor.name else self._told
        if told is None:
            return _Need(position - self._window, position, position)
        had = max(cursor.opened, min(told, position))
        # Without a name it may be another reader that said so.
        floor = had if cursor.name else min(had, position - self._window)
        return _Need(floor, had, position)

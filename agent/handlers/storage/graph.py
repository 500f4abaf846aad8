"""Who is in the way of a storage's detachment, besides its containers.

Storages that build on it, also those that are only being attached, and visitors: what
the agent itself does in it for a while, such as a copy.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class StorageGraph:
    """By id of the storage that is built on."""

    def __init__(self) -> None:
        self._builders: dict[str, set[str]] = {}
        self._visitors: Counter[tuple[str, str]] = Counter()

    def build(self, builder: str, bases: Iterable[str]) -> None:
        """`builder` needs `bases` from now on; fine when it did already."""
        for base in bases:
            self._builders.setdefault(base, set()).add(builder)

    def leave(self, builder: str) -> None:
        """`builder` is gone, or was never made."""
        for base, builders in list(self._builders.items()):
            builders.discard(builder)
            if not builders:
                del self._builders[base]

    def rests_on(self, storage_id: str, base: str) -> bool:
        """Whether it is `base`, or builds on it, by way of others too."""
        above, seen = {base}, set[str]()
        while above:
            seen |= above
            above = {each for one in above for each in self.builders(one)} - seen
        return storage_id in seen

    def builders(self, base: str) -> frozenset[str]:
        return frozenset(self._builders.get(base, ()))

    @contextmanager
    def visit(self, base: str, who: str) -> Iterator[None]:
        """`who`, in words, is at work in the storage within the block."""
        self._visitors[base, who] += 1
        try:
            yield
        finally:
            self._visitors.subtract([(base, who)])
            self._visitors = +self._visitors

    def visitors(self, base: str) -> tuple[str, ...]:
        return tuple(sorted(who for at, who in self._visitors if at == base))

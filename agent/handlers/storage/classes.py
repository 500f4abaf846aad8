"""Which class serves a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.core.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.sources import Source
    from agent.handlers.storage.base import StorageClass


class ClassTable:
    """Storage classes by the type of their source. Raises ValueError when two serve one."""

    def __init__(self, classes: Iterable[StorageClass[Any]]) -> None:
        self._classes: dict[type, StorageClass[Any]] = {}
        for each in classes:
            if each.source in self._classes:
                raise ValueError(f"two storage classes serve {each.source.__name__}")
            self._classes[each.source] = each

    def of(self, source: Source) -> StorageClass[Any]:
        """Raises BAD_FIELD for a source that nobody serves."""
        found = self._classes.get(type(source))
        if found is None:
            known = ", ".join(sorted(each.name for each in self._classes.values()))
            kind = type(source).__name__
            raise invalid(f"no storage class serves {kind}: known: {known}", field="source")
        return found

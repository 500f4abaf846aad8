"""What has to be known of interfaces beyond what the kernel keeps.

One small file: alternative names that the agent gave by itself (another interface may have
them for its name), by which name a request found an interface that it then renamed (so that
the same request finds it again), and the names before a change that is going on (so that a
new agent takes temporary ones back). Indexes are not used again in a network namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.core.state import StateStore

_KIND = "interfaces"
_KEY = "names"


class InterfaceRecords:
    """Kept by index, in the state directory."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        data = state.load(_KIND, _KEY) or {}
        self.spare: dict[int, list[str]] = {int(k): list(v) for k, v in _part(data, "spare")}
        self.asked: dict[int, str] = {int(k): str(v) for k, v in _part(data, "asked")}
        self.former: dict[int, str] = {int(k): str(v) for k, v in _part(data, "former")}

    def renaming(self, former: Mapping[int, str]) -> None:
        """Names are about to change; raises NO_SPACE, and then nothing must be renamed."""
        self.former = dict(former)
        self._save()

    def settled(self) -> None:
        """All names are what they shall be."""
        if self.former:
            self.former = {}
            self._save()

    def gave(self, index: int, altname: str) -> None:
        """An alternative name that nobody asked for."""
        if altname not in self.spare.setdefault(index, []):
            self.spare[index].append(altname)
            self._save()

    def took(self, index: int, altname: str) -> None:
        """It is gone again, or was asked for."""
        if altname in self.spare.get(index, ()):
            self.spare[index].remove(altname)
            self._save()

    def found(self, index: int, name: str) -> None:
        """A request found the interface by this name, which it has no more."""
        if self.asked.get(index) != name:
            self.asked[index] = name
            self._save()

    def given(self) -> dict[int, list[str]]:
        """A copy of the spare names, for `take_back`."""
        return {index: list(names) for index, names in self.spare.items()}

    def take_back(self, given: dict[int, list[str]]) -> None:
        """All names are again as they were."""
        self.spare, self.former = given, {}
        self._save()

    def keep(self, indexes: Iterable[int]) -> None:
        """Forget interfaces that are gone."""
        there = set(indexes)
        gone = (self.spare.keys() | self.asked.keys()) - there
        for index in gone:
            self.spare.pop(index, None)
            self.asked.pop(index, None)
        if gone:
            self._save()

    def _save(self) -> None:
        data: dict[str, Any] = {
            "spare": {str(index): names for index, names in self.spare.items() if names},
            "asked": {str(index): name for index, name in self.asked.items()},
            "former": {str(index): name for index, name in self.former.items()},
        }
        self._state.save(_KIND, _KEY, data)


def _part(data: Mapping[str, Any], name: str) -> Iterable[tuple[str, Any]]:
    part = data.get(name, {})
    return part.items() if isinstance(part, dict) else ()

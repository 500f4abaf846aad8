"""What the socket's requests mean; how they travel is in `server`.

| request | answer besides "ok" |
|---|---|
| ping | boot (seconds of CLOCK_BOOTTIME), restarts, journal_sequence |
| store, name, and one descriptor | |
| drop, names | dropped |
| names, prefix, after | names, more: the next ones, sorted; go on after the last |
| fetch, names (up to 16) | names that are there, and their descriptors in that order |
| journal, after, limit | entries, oldest, last |
| subscribe, after | oldest, last; then {"entry": ...} for each later entry on this connection |
| power, action | |
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.linux.fdpass import FDS_LIMIT
from agent.pid1.layout import PowerAction

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.linux.fdpass import Message
    from agent.pid1.journal import Journal
    from agent.pid1.store import Store

_NAME_LIMIT = 255
_NAMES_LIMIT = 256
_ENTRIES_LIMIT = 200
# Leaves room for the rest of a message of 64 KiB.
_ROOM = 48 * 1024


class Refused(Exception):  # noqa: N818 - an answer, not an accident
    """The request cannot be done; `errno_name` where a limit or the kernel says so."""

    def __init__(self, text: str, errno_name: str | None = None) -> None:
        super().__init__(text)
        self.errno_name = errno_name

    def answer(self) -> Message:
        answer: Message = {"ok": False, "error": str(self)}
        return {**answer, "errno": self.errno_name} if self.errno_name else answer


class Answer(NamedTuple):
    """What to send back; `fds` stay the store's, `follow` is the subscription's start."""

    message: Message
    fds: tuple[int, ...] = ()
    follow: int | None = None
    power: PowerAction | None = None


class Requests:
    """Answers one request at a time; takes a descriptor out of `fds` when it keeps it."""

    def __init__(self, *, store: Store, journal: Journal, status: Callable[[], Message]) -> None:
        self._store = store
        self._journal = journal
        self._status = status
        self._operations: dict[str, Callable[[Message, list[int]], Answer]] = {
            "ping": self._ping,
            "store": self._keep,
            "drop": self._drop,
            "names": self._names,
            "fetch": self._fetch,
            "journal": self._read_journal,
            "subscribe": self._subscribe,
            "power": self._power,
        }

    def handle(self, message: Message, fds: list[int]) -> Answer:
        """Raises Refused."""
        name = message.get("op")
        operation = self._operations.get(name) if isinstance(name, str) else None
        if operation is None:
            raise Refused(f"unknown op {name!r:.80}; known: {', '.join(self._operations)}")
        return operation(message, fds)

    def _ping(self, _message: Message, _fds: list[int]) -> Answer:
        return Answer({"ok": True, **self._status(), "journal_sequence": self._journal.last})

    def _keep(self, message: Message, fds: list[int]) -> Answer:
        name = _name(message.get("name"))
        if len(fds) != 1:
            raise Refused(f"store takes one descriptor, not {len(fds)}")
        try:
            self._store.put(name, fds[0])
        except OSError as error:
            raise Refused(str(error), errno.errorcode.get(error.errno or 0)) from error
        fds.clear()
        return Answer({"ok": True})

    def _drop(self, message: Message, _fds: list[int]) -> Answer:
        return Answer({"ok": True, "dropped": self._store.drop(_name_list(message, _NAMES_LIMIT))})

    def _names(self, message: Message, _fds: list[int]) -> Answer:
        prefix, after = _text(message, "prefix"), _text(message, "after")
        names = self._store.names(prefix=prefix, after=after)
        page = _fitting(names)
        return Answer({"ok": True, "names": page, "more": len(page) < len(names)})

    def _fetch(self, message: Message, _fds: list[int]) -> Answer:
        found = self._store.find(_name_list(message, FDS_LIMIT))
        return Answer({"ok": True, "names": list(found)}, tuple(found.values()))

    def _read_journal(self, message: Message, _fds: list[int]) -> Answer:
        limit = _number(message, "limit", default=_ENTRIES_LIMIT, highest=_ENTRIES_LIMIT)
        entries = self._journal.after(_number(message, "after"), limit)
        return Answer({**self._reach(), "entries": _fitting([each._asdict() for each in entries])})

    def _subscribe(self, message: Message, _fds: list[int]) -> Answer:
        return Answer(self._reach(), follow=_number(message, "after"))

    def _power(self, message: Message, _fds: list[int]) -> Answer:
        try:
            action = PowerAction(str(message.get("action")))
        except ValueError:
            raise Refused(f"'action' is none of {', '.join(PowerAction)}") from None
        return Answer({"ok": True}, power=action)

    def _reach(self) -> Message:
        return {"ok": True, "oldest": self._journal.oldest, "last": self._journal.last}


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_LIMIT or not value.isprintable():
        raise Refused(f"'name' is not a printable text of 1 to {_NAME_LIMIT} characters")
    return value


def _name_list(message: Message, limit: int) -> list[str]:
    values = message.get("names")
    if not isinstance(values, list) or len(values) > limit:
        raise Refused(f"'names' is not a list of up to {limit} names")
    return list(dict.fromkeys(map(_name, values)))


def _text(message: Message, member: str) -> str:
    value = message.get(member, "")
    if not isinstance(value, str):
        raise Refused(f"{member!r} is not a text")
    return value


def _number(message: Message, member: str, *, default: int = 0, highest: int = 2**53) -> int:
    value = message.get(member, default)
    if type(value) is not int or not 0 <= value <= highest:
        raise Refused(f"{member!r} is not a whole number from 0 to {highest}")
    return value


def _fitting(values: list[Any]) -> list[Any]:
    """As many of them as one message holds, at least one: names and paths can be long."""
    room = _ROOM
    for count, value in enumerate(values):
        room -= len(json.dumps(value)) + 1
        if room < 0:
            return values[: max(1, count)]
    return values

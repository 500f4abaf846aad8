"""rtnetlink's messages by hand: headers and attributes, written and read with struct.

Layouts: include/uapi/linux/{netlink,rtnetlink,if_link,if_addr,neighbour,fib_rules}.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from agent.core.deadlines import Deadline
from agent.core.netlink import Change, Question
from tests.fakes.netlink_wire import attribute, frame

NESTED = 0x8000


def link(index: int, flags: int, *attributes: bytes, family: int = 0, kind: int = 1) -> bytes:
    """struct ifinfomsg and attributes, as RTM_NEWLINK."""
    return frame(16, _join("=BxHiII", (family, kind, index, flags, 0), attributes), sequence=1)


def address(family: int, length: int, index: int, *attributes: bytes, scope: int = 0) -> bytes:
    """struct ifaddrmsg and attributes, as RTM_NEWADDR."""
    return frame(20, _join("=BBBBI", (family, length, 0, scope, index), attributes), sequence=1)


def route(
    family: int, length: int, *attributes: bytes, table: int = 254, kind: int = 1, flags: int = 0
) -> bytes:
    """struct rtmsg and attributes, as RTM_NEWROUTE, protocol static (4), scope global (0)."""
    fields = (family, length, 0, 0, table, 4, 0, kind, flags)
    return frame(24, _join("=BBBBBBBBI", fields, attributes), sequence=1)


def rule(family: int, *attributes: bytes, action: int = 1, flags: int = 0, tos: int = 0) -> bytes:
    """struct fib_rule_hdr and attributes, as RTM_NEWRULE."""
    fields = (family, 0, 0, tos, 0, 0, 0, action, flags)
    return frame(32, _join("=BBBBBBBBI", fields, attributes), sequence=1)


def neighbor(family: int, index: int, state: int, *attributes: bytes, flags: int = 0) -> bytes:
    """struct ndmsg and attributes, as RTM_NEWNEIGH."""
    return frame(28, _join("=B3xiHBB", (family, index, state, flags, 1), attributes), sequence=1)


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | NESTED, b"".join(attributes))


def parts(payload: bytes, header: str) -> tuple[tuple[int, ...], list[tuple[int, bytes]]]:
    """A payload's fields and its attributes, flags of their types taken off."""
    start = struct.calcsize(header)
    return struct.unpack_from(header, payload), inside(payload[start:])


def inside(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        length, kind = struct.unpack_from("=HH", data)
        found.append((kind & 0x3FFF, data[4:length]))
        data = data[(length + 3) & ~3 :]
    return found


def _join(layout: str, fields: Iterable[int], attributes: Iterable[bytes]) -> bytes:
    return struct.pack(layout, *fields) + b"".join(attributes)


class AnsweringNetlink:
    """A `Netlink` that has an answer to each question: whole messages, which go through the
    question's own reader, or an error to raise. Changes are kept in `changes`."""

    def __init__(self, answer: Callable[[Question], Iterable[bytes]]) -> None:
        self._answer = answer
        self.questions: list[Question] = []
        self.changes: list[Change] = []

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        self.questions.append(question)
        return [question.decode(message) for message in self._answer(question)]

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        self.changes.extend(changes)

    def close(self) -> None:
        return

"""What the agent and a copy's worker say to each other, over a stream socket.

    frame    u32 length of the payload, u8 kind, payload
    PARTS    parts in a row, each: what it has (u8), bytes of hole (u64), of data (u32),
             [an entry: fixed fields, path, link target], data
    others   JSON, or nothing

Both ends are this host's own processes, so numbers have its byte order. Values are
NamedTuples: there is one for each file of a tree, and a dataclass costs several times
as much to make.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAME_BYTES = 256 << 10
"""About what a frame carries: enough that a frame's own cost does not count."""

LONGEST_FRAME = 64 << 20
"""What a reader takes for nonsense; a message of the protocol has at most 16 MiB."""

LONGEST_PATH = 4095
"""PATH_MAX without its NUL (include/uapi/linux/limits.h)."""

PREFIX = struct.Struct("=IB")

_PART = struct.Struct("=BQI")
_ENTRY = struct.Struct("=BIIIQBqIHH")
_HAS_ENTRY = 1


class Kind(IntEnum):
    """What a frame is."""

    START = 1
    """To the worker, first: JSON, what to do."""
    PARTS = 2
    """Entries and bytes, in either direction."""
    END = 3
    """To the worker: that was all, nothing is missing."""
    OPENED = 4
    """From the worker, once: it has the root open."""
    LEFT_OUT = 5
    """From the worker: JSON, a list of lines."""
    DONE = 6
    """From the worker, last: JSON, what was done."""
    REFUSED = 7
    """From the worker, last: JSON, see `agent.linux.copyworker`."""


class EntryType(IntEnum):
    """The numbers of the protocol's FileType."""

    FILE = 1
    DIRECTORY = 2
    LINK = 3


class Time(NamedTuple):
    """A time, as stat(2) has it."""

    seconds: int
    nanoseconds: int

    @property
    def in_ns(self) -> int:
        return self.seconds * 1_000_000_000 + self.nanoseconds


class Entry(NamedTuple):
    """A file, directory or link; `path` is below where the copy starts, "" is that itself."""

    path: str
    type: EntryType
    mode: int
    uid: int
    gid: int
    size: int = 0
    modified: Time | None = None
    target: str = ""


class Part(NamedTuple):
    """A piece of a copy: perhaps the beginning of an entry, a hole, then data."""

    entry: Entry | None
    hole: int
    data: memoryview | bytes


def shown(text: str) -> str:
    """A path for people, in one line: names are whoever's who made them."""
    whole = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in whole)


def pack_frame(kind: Kind, *pieces: bytes) -> bytes:
    """A whole frame; its payload in pieces, so that bytes are copied once."""
    return b"".join((PREFIX.pack(sum(map(len, pieces)), kind), *pieces))


def pack_json(kind: Kind, value: object) -> bytes:
    """A whole frame."""
    return pack_frame(kind, json.dumps(value).encode())


def unpack_json(payload: bytes | bytearray | memoryview) -> Any:
    return json.loads(bytes(payload))


def pack_part(entry: Entry | None, hole: int, data: bytes) -> tuple[bytes, bytes]:
    """One part, in pieces. Text that is no UTF-8 keeps its bytes (surrogateescape)."""
    if entry is None:
        return _PART.pack(0, hole, len(data)), data
    path = entry.path.encode("utf-8", "surrogateescape")
    target = entry.target.encode("utf-8", "surrogateescape")
    seconds, nanoseconds = entry.modified or (0, 0)
    fixed = _ENTRY.pack(
        entry.type,
        entry.mode,
        entry.uid,
        entry.gid,
        entry.size,
        entry.modified is not None,
        seconds,
        nanoseconds,
        len(path),
        len(target),
    )
    return b"".join((_PART.pack(_HAS_ENTRY, hole, len(data)), fixed, path, target)), data


def unpack_parts(payload: bytes | bytearray | memoryview) -> Iterator[Part]:
    """The parts of a PARTS frame; their data are views of it."""
    view = memoryview(payload)
    at, end = 0, len(view)
    while at < end:
        has, hole, length = _PART.unpack_from(view, at)
        at += _PART.size
        entry = None
        if has:
            entry, at = _unpack_entry(view, at)
        yield Part(entry, hole, view[at : at + length])
        at += length


def _unpack_entry(view: memoryview, at: int) -> tuple[Entry, int]:
    kind, mode, uid, gid, size, timed, seconds, nanos, path, target = _ENTRY.unpack_from(view, at)
    middle = at + _ENTRY.size + path
    entry = Entry(
        str(view[at + _ENTRY.size : middle], "utf-8", "surrogateescape"),
        EntryType(kind),
        mode,
        uid,
        gid,
        size,
        Time(seconds, nanos) if timed else None,
        str(view[middle : middle + target], "utf-8", "surrogateescape"),
    )
    return entry, middle + target

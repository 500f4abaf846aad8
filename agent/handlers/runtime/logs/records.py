"""The lines of an output log.

    {"time": "2026-11-30T07:10:49.546721Z", "stream": "stdout", "offset": 0, "log": "text\\n"}
    {"time": ..., "stream": "stderr", "offset": 5, "base64": "/w=="}

`log` is text as the process wrote it, in UTF-8; what is none comes in base64. The offset is
that of the first byte in its stream, so each line says what it is without those before it.
A line may hold many lines of the process's, or a part of one.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent.core.model import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_PER_LINE = 16 << 10
"""Bytes of output in one line."""

_BLOW_UP = 8
"""A byte takes up to six in JSON (`\\u0000`); the rest of the line comes on top."""

_LEADING = range(0x80, 0xC0)
"""Bytes inside a character of UTF-8."""

_LONGEST_REST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """Output as it was written: `at` in seconds since 1970, when the agent took it."""

    stream: Stream
    offset: int
    at: float
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


def to_line(piece: LogPiece) -> bytes:
    at = datetime.fromtimestamp(piece.at, UTC).isoformat(timespec="microseconds")
    words: dict[str, Any] = {
        "time": at.replace("+00:00", "Z"),
        "stream": piece.stream.value,
        "offset": piece.offset,
    }
    try:
        words["log"] = piece.data.decode()
    except UnicodeDecodeError:
        words["base64"] = base64.b64encode(piece.data).decode()
    return json.dumps(words, ensure_ascii=False).encode() + b"\n"


def from_line(line: bytes) -> LogPiece | None:
    """None for what is no whole line of a log."""
    if not line.endswith(b"\n"):
        return None
    try:
        words = json.loads(line)
        text = words.get("log")
        data = base64.b64decode(words["base64"]) if text is None else text.encode()
        return LogPiece(
            stream=Stream(words["stream"]),
            offset=int(words["offset"]),
            at=datetime.fromisoformat(words["time"]).timestamp(),
            data=data,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def cut(data: bytes, file_size: int) -> Iterator[bytes]:
    """In parts that fit into a line of a file of so many bytes, as much as possible of it text.

    A character that lies across the ends of two chunks makes two parts of its own.
    """
    size = min(MOST_PER_LINE, file_size // _BLOW_UP)
    at = 0
    while at < len(data):
        part = data[at : at + size]
        part = part[: _length(part)]
        yield part
        at += len(part)


def _length(part: bytes) -> int:
    """How much of it to take: the rest of a character alone, or up to one that is cut off."""
    leading = next((i for i, byte in enumerate(part[:4]) if byte not in _LEADING), len(part))
    if 0 < leading <= _LONGEST_REST:
        return leading
    try:
        part.decode()
    except UnicodeDecodeError as error:
        if error.start > 0 and error.reason == "unexpected end of data":
            return error.start
    return len(part)

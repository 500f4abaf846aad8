"""The relay as a gRPC server that has one answer: UNAVAILABLE, because the agent is away.

The least of HTTP/2 (RFC 9113) that lets a client see the reason at once: our
SETTINGS, an acknowledgement of the client's, answers to PING, and a
Trailers-Only response to every HEADERS frame. Header blocks need no decoding,
for the answer is always the same; they are only followed to their end. Request
data is ignored: nothing that a client must send before our answer is under
flow control.

A bare GOAWAY in place of all this loses the reason, or makes clients reconnect
in a loop. GOAWAY comes when the agent is back: the client then opens a new
connection, which reaches it.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from agent.relay import hpack
from agent.relay.greeting import PREFACE
from agent.relay.status import unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = 9
_FRAME_LIMIT = 16 * 1024  # SETTINGS_MAX_FRAME_SIZE, whose default we leave
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_STREAM_BITS = 0x7FFFFFFF


class Frame(IntEnum):
    """Frame types that mean something here; all others are ignored, as 5.5 demands."""

    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    CONTINUATION = 9


class Error(IntEnum):
    """Error codes (RFC 9113, 7) that we send."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FRAME_SIZE_ERROR = 6


class _BrokenError(Exception):
    """The client broke the protocol."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.name)
        self.error = error


class Answerer:
    """One client's connection: bytes in, bytes out; no input or output of its own."""

    def __init__(self, reason: Callable[[], str]) -> None:
        self._reason = reason
        self._seen = bytearray()
        self._greeted = False
        self._last_stream = 0
        self._open_block = 0
        self._block_ends_stream = True
        self.replies = 0
        self.over = False

    def opening(self) -> bytes:
        """What the server says first."""
        return _frame(Frame.SETTINGS, 0, 0)

    def goodbye(self, error: Error = Error.NO_ERROR) -> bytes:
        """GOAWAY: every call so far is answered, later ones belong on another connection."""
        self.over = True
        return _frame(Frame.GOAWAY, 0, 0, struct.pack(">II", self._last_stream, error))

    def feed(self, data: bytes) -> bytes:
        """The answer to these bytes of the client; nothing any more once it is `over`."""
        answers: list[bytes] = []
        self._seen += data
        try:
            while not self.over and (frame := self._next()) is not None:
                answers.append(self._answer(*frame))
        except _BrokenError as broken:
            answers.append(self.goodbye(broken.error))
        return b"".join(answers)

    def _next(self) -> tuple[int, int, int, bytes] | None:
        """Cut (type, flags, stream, payload) off what was seen."""
        if not self._greeted and not self._greet():
            return None
        if len(self._seen) < _HEADER:
            return None
        high, low, kind, flags, stream = struct.unpack_from(">BHBBI", self._seen)
        length = high << 16 | low
        if length > _FRAME_LIMIT:
            raise _BrokenError(Error.FRAME_SIZE_ERROR)
        end = _HEADER + length
        if len(self._seen) < end:
            return None
        payload = bytes(self._seen[_HEADER:end])
        del self._seen[:end]
        return kind, flags, stream & _STREAM_BITS, payload

    def _greet(self) -> bool:
        if not self._seen.startswith(PREFACE):
            if PREFACE.startswith(bytes(self._seen)):
                return False
            raise _BrokenError(Error.PROTOCOL_ERROR)
        del self._seen[: len(PREFACE)]
        self._greeted = True
        return True

    def _answer(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if self._open_block and (kind, stream) != (Frame.CONTINUATION, self._open_block):
            raise _BrokenError(Error.PROTOCOL_ERROR)  # nothing may come between (6.10)
        match kind:
            case Frame.SETTINGS if not flags & _ACK:
                return _frame(Frame.SETTINGS, _ACK, 0)
            case Frame.PING if not flags & _ACK:
                return _frame(Frame.PING, _ACK, 0, payload)
            case Frame.HEADERS:
                self._block_ends_stream = bool(flags & _END_STREAM)
                return self._block(flags, stream)
            case Frame.CONTINUATION if self._open_block:
                return self._block(flags, stream)
            case _:
                return b""

    def _block(self, flags: int, stream: int) -> bytes:
        """Part of a header block; the answer when it is the last."""
        if not flags & _END_HEADERS:
            self._open_block = stream
            return b""
        self._open_block = 0
        if stream <= self._last_stream:  # the client's own trailers, on a call already answered
            return b""
        self._last_stream = stream
        self.replies += 1
        block = hpack.headers(unavailable(self._reason()))
        answer = _frame(Frame.HEADERS, _END_HEADERS | _END_STREAM, stream, block)
        if self._block_ends_stream:
            return answer
        # The request goes on, but nobody will read it (8.1).
        return answer + _frame(Frame.RST_STREAM, 0, stream, struct.pack(">I", Error.NO_ERROR))


def _frame(kind: Frame, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream) + payload

"""Sessions on a virtio-serial port: framing of a byte stream that never ends.

A port has no connections. A host that closes it and opens it again may do so
faster than the guest can see, and bytes of its former life may still lie in
the queues between them. So each life of the stream, a *session*, starts with a
nonce that the host chooses and the guest echoes; both sides drop whatever came
before it.

The wire, in both directions:

    MARK 0x00              the eight bytes of MARK, as data
    MARK 0x01 NONCE        a session starts (host: asks; guest: echoes the nonce)
    MARK 0x02              the session ends (either side)
    anything else          data

MARK's first byte occurs in it once only, and in no nonce. So a stream may be
cut at any byte, in the middle of a mark or of a nonce too, and what starts
behind the cut is still recognised.

The encoder and the decoder do no input or output and never fail: what makes
no sense on the wire ends the session, and nothing is passed on until the next
start. Standard library only: the guest's relay and the host both use it.
"""

from __future__ import annotations

import os
from enum import IntEnum

MARK = b"\xf5INNKPR\n"
NONCE_SIZE = 16

_FIRST = MARK[0]


class Sign(IntEnum):
    """The byte behind MARK."""

    STUFFED = 0
    START = 1
    END = 2


class Start:
    """A session with this nonce starts here; what came before it is void.

    A plain class, not a dataclass: the relay starts on a slow guest, and
    importing `dataclasses` costs more than the rest of this file.
    """

    __slots__ = ("nonce",)

    def __init__(self, nonce: bytes) -> None:
        self.nonce = nonce

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Start) and other.nonce == self.nonce

    def __hash__(self) -> int:
        return hash(self.nonce)

    def __repr__(self) -> str:
        return f"Start({self.nonce.hex()})"


class End:
    """The session is over."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, End)

    def __hash__(self) -> int:
        return hash(End)

    def __repr__(self) -> str:
        return "End()"


Event = bytes | Start | End


def new_nonce() -> bytes:
    """Sixteen random bytes, none of them MARK's first."""
    return bytes(0 if byte == _FIRST else byte for byte in os.urandom(NONCE_SIZE))


class Encoder:
    """Turns one direction's data into wire bytes; remembers where a mark may be half written."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def start(self, nonce: bytes) -> bytes:
        """A new session: nothing written before matters any more.

        Raises ValueError for a nonce that could be taken for a mark.
        """
        if len(nonce) != NONCE_SIZE or _FIRST in nonce:
            raise ValueError(
                f"nonce {nonce.hex()}: must be {NONCE_SIZE} bytes without {_FIRST:#04x}"
            )
        self._tail = b""
        return MARK + bytes((Sign.START,)) + nonce

    def data(self, chunk: bytes) -> bytes:
        """The chunk, with each MARK in it, or completed by it, stuffed."""
        joined = self._tail + chunk
        stuffed = joined.replace(MARK, MARK + b"\x00")
        written = len(self._tail)
        self._tail = joined[_partial_mark(joined) :]
        return stuffed[written:]

    def end(self) -> bytes:
        self._tail = b""
        return MARK + bytes((Sign.END,))


class Decoder:
    """Turns wire bytes, however they are cut, into data and events.

    With `expect` only the session of that nonce counts (the host's side: an
    echo of a former session must not open this one). Without it every start
    opens a session (the guest's side).
    """

    __slots__ = ("_expect", "_held", "_open")

    def __init__(self, expect: bytes | None = None) -> None:
        self._expect = expect
        self._held = b""
        self._open = False

    def feed(self, chunk: bytes) -> list[Event]:
        """What these bytes complete, in order; data outside of a session is dropped."""
        events: list[Event] = []
        wire = self._held + chunk
        at = 0
        while (mark := wire.find(MARK, at)) >= 0:
            self._data(wire[at:mark], events)
            taken = self._signed(wire, mark + len(MARK), events)
            if taken is None:
                self._held = wire[mark:]
                return events
            at = taken
        keep = max(at, _partial_mark(wire))
        self._data(wire[at:keep], events)
        self._held = wire[keep:]
        return events

    def _signed(self, wire: bytes, at: int, events: list[Event]) -> int | None:
        """Handle the sign at `at`; where to go on, or None if the wire ends too early."""
        if at == len(wire):
            return None
        match wire[at]:
            case Sign.STUFFED:
                self._data(MARK, events)
                return at + 1
            case Sign.START:
                return self._start(wire, at + 1, events)
            case Sign.END:
                self._close(events)
                return at + 1
            case _:  # cut here, or not our peer: what follows may be a mark
                self._close(events)
                return at

    def _start(self, wire: bytes, at: int, events: list[Event]) -> int | None:
        nonce = wire[at : at + NONCE_SIZE]
        cut = nonce.find(_FIRST)
        if cut >= 0:  # the nonce was cut short: a new mark begins inside of it
            self._close(events)
            return at + cut
        if len(nonce) < NONCE_SIZE:
            return None
        if self._expect is None or nonce == self._expect:
            self._open = True
            events.append(Start(nonce))
        else:
            self._close(events)
        return at + NONCE_SIZE

    def _data(self, payload: bytes, events: list[Event]) -> None:
        if payload and self._open:
            events.append(payload)

    def _close(self, events: list[Event]) -> None:
        if self._open:
            self._open = False
            events.append(End())


def _partial_mark(wire: bytes) -> int:
    """Where an unfinished mark begins at the end of `wire` (its length if none does)."""
    at = wire.rfind(MARK[:1], max(0, len(wire) - len(MARK) + 1))
    if at >= 0 and MARK.startswith(wire[at:]):
        return at
    return len(wire)

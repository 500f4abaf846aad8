"""A virtio-serial port: sessions of HTTP/2, one after the other, on a stream that never ends.

Framing and its reasons are in `innkeeper.v1.session`. Read and write here, for
these ports cannot splice; and epoll is the only thing that waits for the port,
for with a blocked reader beside it the kernel may wake the wrong one.
"""

from __future__ import annotations

import os

from agent.relay.counters import say
from agent.relay.greeting import Verdict, judge
from agent.relay.sessions import AgentSession, AnsweredSession
from innkeeper.v1.session import Decoder, Encoder, End, Start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.relay.loop import Timer
    from agent.relay.relay import Relay
    from agent.relay.sessions import Session
    from innkeeper.v1.session import Event

_CHUNK = 32 * 1024  # what the driver takes in one write
_ROUNDS = 16
_OUTPUT_LIMIT = 256 * 1024
_HOST_GRACE = 1.0


class PortLink:
    """One open port and its present session, if any.

    Whoever does not read is not read from: see the limits here and in
    `sessions`. `gone` is called when the port was unplugged.
    """

    def __init__(self, relay: Relay, name: str, fd: int, *, gone: Callable[[], None]) -> None:
        self._relay = relay
        self._name = name
        self._fd = fd
        self._gone = gone
        self._decoder = Decoder()
        self._encoder = Encoder()
        # A host that was in a session with the relay before this one learns that it is over.
        self._out = bytearray(self._encoder.end())
        self._greeting: bytes | None = None
        self._session: Session | None = None
        self._closed = self._pumping = False
        self._host_timer: Timer | None = None
        relay.loop.watch(fd, lambda _events: self.pump())
        self.pump()

    @property
    def idle(self) -> bool:
        """Nothing waits for the host: the agent may be read."""
        return not self._out

    def send(self, data: bytes) -> None:
        """Data of the session, for the host."""
        self._out += self._encoder.data(data)

    def finish(self) -> None:
        """The guest's side ends the session, behind what it has sent."""
        self._end_session()
        self._out += self._encoder.end()

    def close(self) -> None:
        """Drop the session and let go of the port."""
        self._closed = True
        self._host_is_there()
        self._end_session()
        self._relay.loop.dispose(self._fd)

    def pump(self) -> None:
        """Until nothing moves, or others should have a turn."""
        if self._pumping or self._closed:  # a session that starts or ends asks for it, too
            return
        self._pumping = True
        try:
            for _round in range(_ROUNDS):
                if not (self._write() | self._read() | self._pump_session()):
                    return
            self._relay.loop.again(self.pump)
        except OSError as error:
            say(f"port {self._name}: {error.strerror}; it was unplugged, or it broke")
            self.close()
            self._gone()
        finally:
            self._pumping = False

    def _write(self) -> bool:
        if not self._out:
            return False
        try:
            written = os.write(self._fd, self._out[:_CHUNK])
        except BlockingIOError:  # the queue is full, or the host is not there
            return False
        del self._out[:written]
        return written > 0

    def _read(self) -> bool:
        if len(self._out) >= _OUTPUT_LIMIT or (self._session is not None and self._session.full):
            return False
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            self._host_is_there()
            return False
        if not data:
            self._host_is_away()
            return False
        self._host_is_there()
        for event in self._decoder.feed(data):
            self._take(event)
        return True

    def _pump_session(self) -> bool:
        return self._session.pump() if self._session is not None else False

    def _take(self, event: Event) -> None:
        match event:
            case Start():
                self._start(event.nonce)
            case End():
                self._end_session()
            case bytes() if self._session is not None:
                self._session.take(event)
            case bytes() if self._greeting is not None:
                self._greet(self._greeting + event)

    def _start(self, nonce: bytes) -> None:
        """A new session: all of the former is void, also what waits for the host."""
        self._end_session()
        self._relay.counters.add("port_sessions")
        self._greeting = b""
        self._out = bytearray(self._encoder.start(nonce))

    def _greet(self, seen: bytes) -> None:
        """Connect only when the client speaks: the agent may come in the meantime."""
        match judge(seen):
            case Verdict.MORE:
                self._greeting = seen
            case Verdict.HTTP2:
                self._greeting = None
                self._session = self._open_session()
                self._session.take(seen)
            case other:
                say(f"port {self._name}: session refused: speaks {other.value} ({seen[:8]!r})")
                self._relay.counters.add("refused_greeting")
                self.finish()

    def _open_session(self) -> Session:
        agent = self._relay.agent.connect()
        if agent is None:
            return AnsweredSession(self._relay, self)
        return AgentSession(self._relay, self, agent)

    def _end_session(self) -> None:
        self._greeting = None
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _host_is_there(self) -> None:
        if self._host_timer is not None:
            self._host_timer.cancel()
            self._host_timer = None

    def _host_is_away(self) -> None:
        """The host's side is closed, or was a moment ago.

        That news comes by another queue than the data: the start of the next
        session may have been read before it. So only a host that stays away
        ends the session.
        """
        if self._session is not None and self._host_timer is None:
            self._host_timer = self._relay.loop.later(_HOST_GRACE, self._host_stayed_away)

    def _host_stayed_away(self) -> None:
        self._host_timer = None
        self._end_session()
        self._out = bytearray(self._encoder.end())

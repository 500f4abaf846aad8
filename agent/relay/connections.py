"""An accepted connection, from its first byte to its end.

`Greeting` waits for the preface, then hands the socket to `Spliced` (the agent
is there) or to `Answered` (it is away).
"""

from __future__ import annotations

import select
import socket

from agent.linux.vsock import SEND_LIMIT
from agent.relay.counters import say, worth_saying
from agent.relay.flow import Flow
from agent.relay.greeting import PREFACE, Verdict, judge
from agent.relay.h2away import Answerer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.relay.relay import Relay

_LEFT = select.EPOLLRDHUP | select.EPOLLHUP
_CHUNK = 64 * 1024
_BACKLOG_LIMIT = 256 * 1024
_LAST_WORDS = 1.0


class Greeting:
    """Waits, not for ever, for what tells that the peer speaks HTTP/2. Reads nothing: it peeks."""

    def __init__(self, relay: Relay, client: socket.socket, *, limit: float) -> None:
        self._relay = relay
        self._client = client
        self._timer = relay.loop.later(limit, self._too_late)
        relay.loop.watch(client.fileno(), self._look)
        self._look(0)

    def _look(self, events: int) -> None:
        try:
            seen = self._client.recv(len(PREFACE), socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            seen = b""
        if not seen:
            self._leave("silent", "closed without a word")
            return
        match judge(seen):
            case Verdict.HTTP2:
                self._timer.cancel()
                self._relay.serve(self._client)
            case Verdict.MORE if events & _LEFT:  # peeking sees no end behind these bytes
                self._leave("silent", "closed in the middle of the preface")
            case Verdict.MORE:
                return
            case other:
                self._leave("refused_greeting", f"refused: speaks {other.value} ({seen[:8]!r})")

    def _too_late(self) -> None:
        self._leave("silent", "dropped: sent no HTTP/2 preface in time")

    def _leave(self, count: str, why: str) -> None:
        self._timer.cancel()
        if worth_saying(self._relay.counters.add(count)):
            say(f"a connection was {why}")
        self._relay.dismiss(self._client)


class Spliced:
    """A client and the agent, joined."""

    def __init__(self, relay: Relay, client: socket.socket, agent: socket.socket) -> None:
        self._relay = relay
        self._ends = (client, agent)
        self._up = Flow(client, agent, relay.pipes)
        self._down = Flow(agent, client, relay.pipes)
        self._client_gone = self._agent_gone = self._closed = False
        relay.loop.watch(client.fileno(), self._client_event)
        relay.loop.watch(agent.fileno(), self._agent_event)
        self._pump()

    def _client_event(self, events: int) -> None:
        self._client_gone |= bool(events & select.EPOLLHUP)
        self._pump()

    def _agent_event(self, events: int) -> None:
        self._agent_gone |= bool(events & select.EPOLLHUP)
        self._pump()

    def _pump(self) -> None:
        if self._closed:
            return
        try:
            more = self._up.pump() | self._down.pump()
        except OSError:  # one side was reset: so is the other
            self._close()
            return
        if self._finished():
            self._close()
        elif more:
            self._relay.loop.again(self._pump)

    def _finished(self) -> bool:
        """Both directions ended, or one side is gone for good and its last bytes are handed on.

        A half-close (only reading shows the end) goes on in the other direction.
        """
        up, down = self._up.done, self._down.done
        return (up and down) or (up and self._client_gone) or (down and self._agent_gone)

    def _close(self) -> None:
        self._closed = True
        self._up.close()
        self._down.close()
        client, agent = self._ends
        self._relay.loop.dispose(agent.detach())
        self._relay.dismiss(client)


class Answered:
    """A client whose calls the relay answers itself, until the agent is back."""

    def __init__(self, relay: Relay, client: socket.socket) -> None:
        self._relay = relay
        self._client = client
        self._answerer = Answerer(relay.agent.reason)
        self._out = bytearray(self._answerer.opening())
        self._closed = False
        relay.counters.add("away_sessions")
        relay.agent.when_back(id(self), self._agent_is_back)
        relay.loop.watch(client.fileno(), self._event)
        self._pump()

    def _event(self, _events: int) -> None:
        self._pump()

    def _agent_is_back(self) -> None:
        self._out += self._answerer.goodbye()
        self._pump()

    def _pump(self) -> None:
        """Until nothing moves; a client that does not read its answers is not read either."""
        try:
            while not self._closed and (self._send() | self._receive()):
                pass
        except OSError:
            self._close()

    def _send(self) -> bool:
        if not self._out:
            return False
        try:
            sent = self._client.send(self._out[:SEND_LIMIT])
        except BlockingIOError:
            return False
        del self._out[:sent]
        if self._answerer.over and not self._out:
            self._leave()
        return True

    def _receive(self) -> bool:
        if len(self._out) >= _BACKLOG_LIMIT:
            return False
        try:
            data = self._client.recv(_CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return False
        replies = self._answerer.replies
        self._out += self._answerer.feed(data)
        self._relay.counters.add("away_replies", self._answerer.replies - replies)
        return True

    def _leave(self) -> None:
        """All said: the client closes when it has read that; closing first could lose it."""
        self._client.shutdown(socket.SHUT_WR)
        self._relay.loop.later(_LAST_WORDS, self._close)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._relay.agent.forget(id(self))
            self._relay.dismiss(self._client)

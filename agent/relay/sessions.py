"""What a session on a virtio-serial port talks to: the agent, or the relay in its place."""

from __future__ import annotations

from agent.relay.h2away import Answerer

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Protocol

    from agent.relay.loop import Timer
    from agent.relay.relay import Relay

    class Session(Protocol):
        """The guest's end of a session."""

        @property
        def full(self) -> bool:
            """Takes no more data now."""

        def take(self, data: bytes) -> None:
            """Data from the host."""

        def pump(self) -> bool:
            """Move something; true when something moved."""

        def close(self) -> None:
            """Drop everything; the link does not want to hear of it any more."""

    class Link(Protocol):
        """What a session needs of its port."""

        @property
        def idle(self) -> bool: ...

        def send(self, data: bytes) -> None: ...

        def finish(self) -> None: ...

        def pump(self) -> None: ...


_CHUNK = 32 * 1024
_INPUT_LIMIT = 1024 * 1024
_STALL = 10.0


class AgentSession:
    """Joined to the agent's socket.

    An agent that takes nothing for 10 s while more than 1 MiB waits for it
    loses the session: behind that data a new session's start may lie unseen.
    (The windows of HTTP/2 keep a client from sending as much.)
    """

    def __init__(self, relay: Relay, link: Link, agent: socket.socket) -> None:
        self._loop = relay.loop
        self._link = link
        self._agent = agent
        self._pending = bytearray()
        self._deaf = False
        self._stall: Timer | None = None
        self._loop.watch(agent.fileno(), lambda _events: link.pump())

    @property
    def full(self) -> bool:
        return len(self._pending) >= _INPUT_LIMIT

    def take(self, data: bytes) -> None:
        if not self._deaf:
            self._pending += data
            self._mind_stall()

    def pump(self) -> bool:
        moved = self._push()
        return self._pull() or moved

    def close(self) -> None:
        self._calm()
        self._loop.dispose(self._agent.detach())

    def _push(self) -> bool:
        if not self._pending:
            return False
        try:
            sent = self._agent.send(self._pending)
        except BlockingIOError:
            return False
        except OSError:  # it takes no more, but may have last words
            self._deaf = True
            sent = len(self._pending)
        del self._pending[:sent]
        self._calm()
        self._mind_stall()
        return True

    def _pull(self) -> bool:
        """Only when the host took all there was: so it slows the agent down."""
        if not self._link.idle:
            return False
        try:
            data = self._agent.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._link.send(data)
        else:
            self._link.finish()
        return True

    def _mind_stall(self) -> None:
        if self.full and self._stall is None:
            self._stall = self._loop.later(_STALL, self._stalled)

    def _calm(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        self._link.finish()
        self._link.pump()


class AnsweredSession:
    """Answered by the relay, until the agent is back."""

    full = False  # the link stops reading when its answers pile up

    def __init__(self, relay: Relay, link: Link) -> None:
        self._relay = relay
        self._link = link
        self._answerer = Answerer(relay.agent.reason)
        relay.counters.add("away_sessions")
        relay.agent.when_back(id(self), self._agent_is_back)
        link.send(self._answerer.opening())

    def take(self, data: bytes) -> None:
        replies = self._answerer.replies
        self._link.send(self._answerer.feed(data))
        self._relay.counters.add("away_replies", self._answerer.replies - replies)
        if self._answerer.over:
            self._link.finish()

    def pump(self) -> bool:
        return False

    def close(self) -> None:
        self._relay.agent.forget(id(self))

    def _agent_is_back(self) -> None:
        self._link.send(self._answerer.goodbye())
        self._link.finish()
        self._link.pump()

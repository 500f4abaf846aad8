"""The agent as the relay sees it: a unix socket that answers, or does not.

Only a connect that fails counts as away. An agent that is stopped still
accepts: such calls end at their own deadline.
"""

from __future__ import annotations

import errno
import socket

from agent.linux import inotify
from agent.linux.pseudo import read_optional

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.relay.loop import Loop, Timer

_REASON_LIMIT = 512
_REFUSALS = {
    errno.ENOENT: "not there (yet)",
    errno.ECONNREFUSED: "nothing listens there any more",
    errno.EAGAIN: "its queue of connections is full",
}
_FIRST_LOOK = 0.02
_SLOWEST_LOOK = 1.0


class Agent:
    """Connects to the agent, says why that fails, and tells when it would not fail any more."""

    def __init__(self, loop: Loop, *, socket_path: str, status_path: str) -> None:
        self._loop = loop
        self._path = socket_path
        self._status = status_path
        self._waiting: dict[int, Callable[[], None]] = {}
        self._arrivals: int | None = None
        self._timer: Timer | None = None
        self._interval = _FIRST_LOOK
        self._refusal = ""

    def connect(self) -> socket.socket | None:
        """A non-blocking connection, or None while the agent is away."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(self._path)
        except OSError as error:
            self._refusal = _REFUSALS.get(error.errno or 0, f"connect: {error.strerror}")
            sock.close()
            return None
        return sock

    def reason(self) -> str:
        """Why it is away, in PID 1's words where it left some (`agent.status`)."""
        line = (read_optional(self._status) or "").partition("\n")[0].strip()[:_REASON_LIMIT]
        words = "".join(c if c.isprintable() else "?" for c in line)
        said = words or f"{self._path}: {self._refusal}"
        return f"innkeeper agent is not serving ({said})"

    def when_back(self, key: int, callback: Callable[[], None]) -> None:
        """Call back, once, when the agent can be connected to; `forget(key)` calls it off."""
        self._waiting[key] = callback
        if self._timer is None:
            self._arm()

    def forget(self, key: int) -> None:
        self._waiting.pop(key, None)
        if not self._waiting:
            self._disarm()

    def _arm(self) -> None:
        try:
            self._arrivals = inotify.watch_arrivals(self._path.rpartition("/")[0] or "/")
        except OSError:  # no directory yet, or no inotify: then the timer alone looks
            self._arrivals = None
        else:
            self._loop.watch(self._arrivals, self._arrived)
        # Once more at once: it may have come between the failed connect and the watch.
        self._look_again(0)

    def _disarm(self) -> None:
        if self._arrivals is not None:
            self._loop.dispose(self._arrivals)
            self._arrivals = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arrived(self, _events: int) -> None:
        if self._arrivals is None:
            return
        inotify.drain(self._arrivals)
        self._look_again(0)

    def _look_again(self, after: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._interval = max(_FIRST_LOOK, min(2 * after, _SLOWEST_LOOK))
        self._timer = self._loop.later(after, self._look)

    def _look(self) -> None:
        """Try; a bound socket announces itself before it listens, hence the short intervals."""
        probe = self.connect()
        if probe is None:
            self._look_again(self._interval)
            return
        probe.close()
        waiting, self._waiting = self._waiting, {}
        self._disarm()
        for callback in waiting.values():
            callback()

"""The relay as a whole: who may connect, and where a connection goes."""

from __future__ import annotations

import errno
import resource

from agent.linux import virtio_ports
from agent.relay.agent import Agent
from agent.relay.connections import Answered, Greeting, Spliced
from agent.relay.counters import Counters, say, worth_saying
from agent.relay.flow import Pipes
from agent.relay.loop import Loop
from agent.relay.ports import PortLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

CONNECTION_LIMIT = 512
"""Each takes two sockets and, while bytes wait, two pipes: six descriptors."""
GREETING_LIMIT = 10.0
"""Seconds for a peer to say what it wants."""

_ACCEPT_PAUSE = 1.0


class Relay:
    """Carries connections and port sessions to the agent's unix socket.

    `run_dir` holds the agent's socket (`agent.sock`), PID 1's words on why the
    agent is away (`agent.status`) and the relay's own counters (`relay.json`).
    """

    def __init__(
        self, *, run_dir: str, greeting_limit: float = GREETING_LIMIT, loop: Loop | None = None
    ) -> None:
        self.loop = loop or Loop()
        self.pipes = Pipes()
        self.counters = Counters(f"{run_dir}/relay.json")
        self.agent = Agent(
            self.loop,
            socket_path=f"{run_dir}/agent.sock",
            status_path=f"{run_dir}/agent.status",
        )
        self._greeting_limit = greeting_limit
        self._ports: dict[str, PortLink] = {}
        _raise_descriptor_limit()

    def listen(self, listener: socket.socket, *, admit: Callable[[tuple[int, int]], bool]) -> None:
        """Accept on this non-blocking listener; close and count a peer that `admit` denies."""
        fd = listener.fileno()
        self.loop.watch(fd, lambda _events: self._accept(listener, admit))
        self._accept(listener, admit)

    def serve_ports(self, prefix: str, *, sys_root: str = "/sys", dev_root: str = "/dev") -> None:
        """Serve each virtio-serial port of such a name, those of today and those to come."""

        def scan() -> None:
            for name, node in virtio_ports.find(prefix, sys_root=sys_root, dev_root=dev_root):
                self._serve_port(name, node, gone=lambda: self.loop.again(scan))

        def announced(_events: int) -> None:
            if virtio_ports.ports_changed(listener):
                scan()

        listener = virtio_ports.announcements()
        self.loop.watch(listener.fileno(), announced)
        scan()

    def serve(self, client: socket.socket) -> None:
        """A client that speaks HTTP/2: to the agent, or answered in its place."""
        agent = self.agent.connect()
        if agent is None:
            Answered(self, client)
        else:
            Spliced(self, client, agent)

    def dismiss(self, client: socket.socket) -> None:
        """The end of an accepted connection."""
        self.counters.add("open", -1)
        self.loop.dispose(client.detach())

    def run(self) -> None:
        """Serve until the process is ended."""
        self._save_counters()
        while True:
            self.turn()

    def turn(self) -> None:
        """Wait for something and do all that is due; then the counters are right."""
        self.loop.turn()
        self._save_counters()

    def close(self) -> None:
        """Let go of the ports and of what belongs to no connection."""
        for link in self._ports.values():
            link.close()
        self.pipes.close()
        self.loop.close()

    def _accept(self, listener: socket.socket, admit: Callable[[tuple[int, int]], bool]) -> None:
        while True:
            try:
                client, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                say(f"accept: {error}; trying again in {_ACCEPT_PAUSE:g} s")
                self.loop.later(_ACCEPT_PAUSE, lambda: self._accept(listener, admit))
                return
            self._welcome(client, admitted=admit(address), address=address)

    def _welcome(self, client: socket.socket, *, admitted: bool, address: object) -> None:
        if not admitted:
            self._refuse(client, "refused_cid", f"a connection from {address} is not the host's")
        elif self.counters.values["open"] >= CONNECTION_LIMIT:
            self._refuse(client, "refused_full", f"{CONNECTION_LIMIT} connections are open")
        else:
            client.settimeout(0)
            self.counters.add("accepted")
            self.counters.add("open")
            Greeting(self, client, limit=self._greeting_limit)

    def _refuse(self, client: socket.socket, count: str, why: str) -> None:
        times = self.counters.add(count)
        if worth_saying(times):
            say(f"refused: {why} ({times} so far)")
        client.close()

    def _serve_port(self, name: str, node: str, *, gone: Callable[[], None]) -> None:
        if name in self._ports:
            return
        try:
            fd = virtio_ports.open_port(node)
        except OSError as error:
            say(f"port {name}: {error}")
            return
        self.serve_port(name, fd, gone=gone)

    def serve_port(self, name: str, fd: int, *, gone: Callable[[], None]) -> None:
        """Serve this open port; `gone` is called after it was unplugged."""

        def unplugged() -> None:
            del self._ports[name]
            gone()

        say(f"serving port {name}")
        self._ports[name] = PortLink(self, name, fd, gone=unplugged)

    def _save_counters(self) -> None:
        try:
            self.counters.save()
        except OSError as error:
            if worth_saying(self.counters.add("unsaved")):
                say(f"counters not saved: {error}")


def _raise_descriptor_limit() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

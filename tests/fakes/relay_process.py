"""Starts `relay_child` with a unix listener and one end of a socketpair."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.linux import inotify

_ROOT = Path(__file__).resolve().parents[2]
_CHILD = Path(__file__).with_name("relay_child.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayProcess:
    """A running relay: where to connect, its port's other end, its run directory."""

    listener: Path
    port: socket.socket
    run_dir: Path
    pid: int

    @property
    def agent_socket(self) -> Path:
        return self.run_dir / "agent.sock"

    def counters(self) -> dict[str, int]:
        """What the relay has written of itself; nothing before it runs."""
        try:
            text = (self.run_dir / "relay.json").read_text()
        except FileNotFoundError:
            return {}
        counters: dict[str, int] = json.loads(text)
        return counters

    async def until(self, **wanted: int) -> None:
        """Wait until the relay's counters have these values; they are written behind the deeds."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        arrivals = inotify.watch_arrivals(str(self.run_dir))
        loop.add_reader(arrivals, changed.set)
        try:
            while wanted.items() - self.counters().items():
                await changed.wait()
                inotify.drain(arrivals)
                changed.clear()
        finally:
            loop.remove_reader(arrivals)
            os.close(arrivals)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@contextmanager
def relay_process(run_dir: Path, *, greeting_limit: float = 10.0) -> Iterator[RelayProcess]:
    path = run_dir / "vsock-1024"
    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
        listener.bind(str(path))
        listener.listen(128)
        theirs.setblocking(False)
        fds = (listener.fileno(), theirs.fileno())
        child = subprocess.Popen(
            [sys.executable, _CHILD, run_dir, str(greeting_limit), *map(str, fds)],
            pass_fds=fds,
            env={**os.environ, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'protocol'}"},
        )
    theirs.close()
    try:
        with ours:
            yield RelayProcess(listener=path, port=ours, run_dir=run_dir, pid=child.pid)
    finally:
        alive = child.poll() is None
        child.kill()
        child.wait()
        assert alive, "the relay died of a test"

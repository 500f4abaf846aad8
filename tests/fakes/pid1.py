"""A stand-in for PID 1, at the wire: its socket, its store, its journal.

Tests decide who exits (`exits`) and how it misbehaves (`silent`, `refusing`,
`drop_followers`, `drop_connections`). The fake crun tells of real processes
(`adopt`): they are reaped here, as PID 1 does it, and their exits are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agent.linux import fdpass


@dataclass
class _Follower:
    sock: socket.socket
    after: int


class FakePid1:
    """Serves `path` on the running loop until closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal: list[dict[str, Any]] = []
        self.store: dict[str, int] = {}
        self.requests: list[dict[str, Any]] = []
        self.powered: list[str] = []
        self.silent = False
        self.refusing = ""
        self._sequence = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._clients: set[socket.socket] = set()
        self._children: dict[int, tuple[int, str]] = {}
        self._adopted: set[int] = set()
        self.holding = False
        self._followers: list[_Follower] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)

    async def __aenter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._loop.remove_signal_handler(signal.SIGCHLD)
        self.path.unlink(missing_ok=True)
        self.drop_connections()
        for pidfd in tuple(self._children):
            os.kill(self._children[pidfd][0], signal.SIGKILL)
            self._reap(pidfd, options=os.WEXITED)
        self._end_orphans()
        for fd in self.store.values():
            os.close(fd)
        self.store.clear()

    def exits(self, pid: int, cgroup: str, *, code: int = 0, signal: int = 0) -> int:
        """Put an exit into the journal and tell the followers; returns its sequence."""
        entry: dict[str, Any] = {
            "seq": next(self._sequence),
            "pid": pid,
            "cgroup": cgroup,
            "code": code,
            "signal": signal,
            "at": time.time(),
            "comm": "fake",
        }
        self.journal.append(entry)
        for follower in self._followers:
            # One that has just closed is not known to be gone yet.
            with contextlib.suppress(BrokenPipeError):
                fdpass.send(follower.sock, {"entry": entry})
        return int(entry["seq"])

    def hold(self) -> None:
        """Reap nothing, until `release`: exits fall while nobody looks."""
        self.holding = True

    def release(self) -> None:
        self.holding = False
        for pidfd in tuple(self._children):
            self._reap(pidfd)

    def watch_orphans(self) -> None:
        """Reap, with `reaping`, every orphan that comes to us from a cgroup below /pods.

        `crun exec` joins the container's cgroup itself, and is its caller's to reap; only
        what it starts is in a pid namespace of its own.
        """
        self._loop.add_signal_handler(signal.SIGCHLD, self._look_for_orphans)

    def _look_for_orphans(self) -> None:
        known = {pid for pid, _ in self._children.values()}
        for pid in children_of(os.getpid()) - known:
            if _is_inside(pid) and (cgroup := _cgroup(pid)).startswith("/pods/"):
                self._adopt(pid, cgroup)

    def _adopt(self, pid: int, cgroup: str) -> None:
        pidfd = os.pidfd_open(pid)
        self._adopted.add(pid)
        self._children[pidfd] = (pid, cgroup)
        self._loop.add_reader(pidfd, self._reap, pidfd)

    def _end_orphans(self) -> None:
        """What the adopted left behind in their sessions, which no fake cgroup knows."""
        while left := [p for p in children_of(os.getpid()) if os.getsid(p) in self._adopted]:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _reap(self, pidfd: int, options: int = os.WEXITED | os.WNOHANG) -> None:
        self._loop.remove_reader(pidfd)
        if self.holding:
            return
        pid, cgroup = self._children[pidfd]
        info = os.waitid(os.P_PIDFD, pidfd, options)
        if info is None:
            self._loop.add_reader(pidfd, self._reap, pidfd)
            return
        del self._children[pidfd]
        os.close(pidfd)
        if info.si_code == os.CLD_EXITED:
            self.exits(pid, cgroup, code=info.si_status)
        else:
            self.exits(pid, cgroup, code=128 + info.si_status, signal=info.si_status)

    def drop_followers(self) -> None:
        """As PID 1 does with one that doesn't read."""
        for follower in self._followers:
            self._forget(follower.sock)
        self._followers.clear()

    def drop_connections(self) -> None:
        self._followers.clear()
        for client in tuple(self._clients):
            self._forget(client)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setblocking(False)
        self._clients.add(client)
        self._loop.add_reader(client.fileno(), self._serve, client)

    def _forget(self, client: socket.socket) -> None:
        self._clients.discard(client)
        self._loop.remove_reader(client.fileno())
        client.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            request, fds = fdpass.receive(client)
        except (EOFError, OSError):
            self._followers = [one for one in self._followers if one.sock is not client]
            self._forget(client)
            return
        self.requests.append(request)
        if self.silent:
            return
        if self.refusing == request["op"]:
            for fd in fds:
                os.close(fd)
            fdpass.send(client, {"ok": False, "error": "refused by the test", "errno": "EPERM"})
            return
        reply, sent = self._answer(request, fds)
        fdpass.send(client, reply, sent)
        if request["op"] == "subscribe":
            self._subscribe(client, request["after"])

    def _answer(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        op = request["op"]
        if op == "fetch":
            found = [name for name in request["names"] if name in self.store]
            return {"ok": True, "names": found}, [self.store[name] for name in found]
        if op in ("store", "power", "adopt"):
            self._do(request, fds)
            return {"ok": True}, []
        match op:
            case "ping":
                return {"ok": True, "journal_sequence": self._last(), "boot": {}}, []
            case "drop":
                return {"ok": True, "dropped": self._drop(request["names"])}, []
            case "names":
                return {"ok": True, "names": self._page(request)}, []
            case "subscribe":
                return {"ok": True}, []
        return {"ok": False, "error": f"unknown op {op}"}, []

    def _do(self, request: dict[str, Any], fds: list[int]) -> None:
        match request["op"]:
            case "store":
                self._keep(request["name"], fds)
            case "power":
                self.powered.append(request["action"])
            case "adopt":
                self._adopt(request["pid"], request["cgroup"])

    def _last(self) -> int:
        return int(self.journal[-1]["seq"]) if self.journal else 0

    def _keep(self, name: str, fds: list[int]) -> None:
        (fd,) = fds
        self._drop([name])
        self.store[name] = fd

    def _drop(self, names: list[str]) -> int:
        known = [name for name in names if name in self.store]
        for name in known:
            os.close(self.store.pop(name))
        return len(known)

    def _page(self, request: dict[str, Any]) -> list[str]:
        after = request.get("after", "")
        names = sorted(name for name in self.store if name.startswith(request["prefix"]))
        return [name for name in names if name > after][:3]

    def _subscribe(self, client: socket.socket, after: int) -> None:
        self._followers.append(_Follower(client, after))
        for entry in self.journal:
            if entry["seq"] > after:
                fdpass.send(client, {"entry": entry})


def children_of(parent: int) -> set[int]:
    """Pids of all its children, zombies too."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.add(int(entry.parent.name))
    return found


def _is_inside(pid: int) -> bool:
    """Whether it has another pid in a namespace below ours (NSpid of proc_pid_status(5))."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("NSpid:") and len(line.split()) > 2 for line in lines)


def _cgroup(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return ""
    paths = [line[3:] for line in lines if line.startswith("0::")]
    return paths[0].removesuffix(" (deleted)") if paths else ""

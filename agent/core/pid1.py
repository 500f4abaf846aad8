"""Talking to PID 1: the descriptor store, the exit journal, power.

One connection carries requests and replies in order, so callers need no lock:
each sends its request and waits for its own turn in the queue of replies. A
connection that breaks or stalls fails what waits on it, and the next call makes
a new one. The journal is followed on connections of its own.

PID 1's side of the wire is `agent/init.py`; `linux/fdpass.py` frames it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from agent.core.errors import AgentError, Code, Reason
from agent.linux import fdpass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

CALL_TIMEOUT = 10.0
"""Seconds for one reply. PID 1 answers from memory; past this it is stuck."""

NAMES_A_MESSAGE = 256
"""Names sent to be dropped in one message: far below 64 KiB, whatever the ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One exit that PID 1 has reaped.

    `code` is the exit status, or 128 plus the signal; `cgroup` is the cgroup v2
    path of the zombie, empty when PID 1 could not read it; `at` is in seconds
    of the wall clock. `core_dumped` is False in entries of before there was it.
    """

    sequence: int
    pid: int
    cgroup: str
    code: int
    signal: int
    at: float
    comm: str = ""
    core_dumped: bool = False

    @classmethod
    def from_message(cls, entry: dict[str, Any]) -> Self:
        return cls(
            sequence=int(entry["seq"]),
            pid=int(entry["pid"]),
            cgroup=str(entry["cgroup"]),
            code=int(entry["code"]),
            signal=int(entry["signal"]),
            at=float(entry["at"]),
            comm=str(entry.get("comm", "")),
            core_dumped=bool(entry.get("core_dumped", False)),
        )


class Pid1Client:
    """Calls PID 1 over its socket.

    Every method raises AgentError: UNAVAILABLE when PID 1 can't be reached or
    doesn't answer, FAILED_PRECONDITION (KERNEL_REFUSED) when it refuses.
    """

    def __init__(self, path: Path, *, call_timeout: float = CALL_TIMEOUT) -> None:
        self._path = path
        self._timeout = call_timeout
        self._connection: _Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(self._away("the agent is stopping"))

    async def ping(self) -> dict[str, Any]:
        """Boot times, restarts of children and the journal's sequence, as PID 1 tells them."""
        return await self._call({"op": "ping"})

    async def journal_sequence(self) -> int:
        """The number of the newest entry in the journal; 0 before the first."""
        return int((await self.ping())["journal_sequence"])

    async def store(self, name: str, fd: int) -> None:
        """Let PID 1 keep a duplicate of `fd`; an entry of that name is replaced."""
        await self._call({"op": "store", "name": name}, (fd,))

    async def fetch(self, names: Sequence[str]) -> dict[str, int]:
        """Duplicates of the entries that are there, by name; the caller owns them."""
        found: dict[str, int] = {}
        try:
            for some in _portions(names, fdpass.FDS_LIMIT):
                reply, fds = await self._exchange({"op": "fetch", "names": list(some)})
                found.update(zip(reply["names"], fds, strict=True))
        except BaseException:
            for fd in found.values():
                os.close(fd)
            raise
        return found

    async def drop(self, names: Sequence[str]) -> None:
        """Let PID 1 close these entries; unknown names are fine."""
        for some in _portions(names, NAMES_A_MESSAGE):
            await self._call({"op": "drop", "names": list(some)})

    async def names(self, prefix: str) -> tuple[str, ...]:
        """The names of all entries that start with `prefix`."""
        found: list[str] = []
        request = {"op": "names", "prefix": prefix}
        while page := (await self._call(request))["names"]:
            found += page
            request["after"] = page[-1]
        return tuple(found)

    async def power(self, action: str) -> None:
        """`off` or `reboot`: PID 1 stops everything in order, this agent too."""
        await self._call({"op": "power", "action": action})

    async def follow(self, after: int) -> AsyncIterator[JournalEntry]:
        """Every journal entry above `after`, in order, until the connection breaks (UNAVAILABLE).

        PID 1 drops a follower that is too slow; follow again from the last entry seen.
        """
        with contextlib.closing(_connect(self._path)) as sock:
            fdpass.send(sock, {"op": "subscribe", "after": after})
            self._accepted(await self._next(sock), "subscribe")
            while True:
                yield JournalEntry.from_message((await self._next(sock))["entry"])

    async def _next(self, sock: socket.socket) -> fdpass.Message:
        await _readable(sock)
        try:
            message, fds = fdpass.receive(sock)
        except (OSError, EOFError, fdpass.MessageError) as error:
            raise self._away(f"the journal's connection broke: {error}") from error
        _close_all(fds)
        return message

    async def _call(self, request: fdpass.Message, fds: Sequence[int] = ()) -> fdpass.Message:
        reply, unasked = await self._exchange(request, fds)
        _close_all(unasked)
        return reply

    async def _exchange(
        self, request: fdpass.Message, fds: Sequence[int] = ()
    ) -> tuple[fdpass.Message, list[int]]:
        connection = self._connected()
        try:
            async with asyncio.timeout(self._timeout):
                reply, received = await connection.ask(request, fds)
        except TimeoutError:
            error = self._away(f"no answer to {request['op']} within {self._timeout} s")
            connection.close(error)
            raise error from None
        except (OSError, EOFError, fdpass.MessageError) as error:
            away = self._away(f"{request['op']}: {error}")
            connection.close(away)
            raise away from error
        try:
            return self._accepted(reply, request["op"]), received
        except AgentError:
            _close_all(received)
            raise

    def _connected(self) -> _Connection:
        if self._connection is None or self._connection.closed:
            self._connection = _Connection(_connect(self._path))
        return self._connection

    def _accepted(self, reply: fdpass.Message, op: str) -> fdpass.Message:
        if reply.get("ok"):
            return reply
        raise AgentError(
            f"PID 1 refused {op}: {reply.get('error', 'without a reason')}",
            code=Code.FAILED_PRECONDITION,
            reason=Reason.KERNEL_REFUSED,
            fields={"errno": str(reply.get("errno", ""))},
        )

    def _away(self, why: str) -> AgentError:
        return _unreachable(self._path, why)


class _Connection:
    """A socket and the callers that wait for a reply on it, in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[tuple[fdpass.Message, list[int]]]] = deque()
        self._loop.add_reader(sock.fileno(), self._reply_came)
        self.closed = False

    async def ask(
        self, request: fdpass.Message, fds: Sequence[int]
    ) -> tuple[fdpass.Message, list[int]]:
        fdpass.send(self._sock, request, tuple(fds))
        future: asyncio.Future[tuple[fdpass.Message, list[int]]] = self._loop.create_future()
        self._waiting.append(future)
        return await future

    def close(self, error: Exception) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def _reply_came(self) -> None:
        try:
            message, fds = fdpass.receive(self._sock)
        except BlockingIOError:
            return
        except (OSError, EOFError, fdpass.MessageError) as error:
            self.close(_unreachable(self._sock.getpeername(), str(error)))
            return
        future = self._waiting.popleft() if self._waiting else None
        # A caller that was cancelled still has its place in the queue, and its descriptors.
        if future is None or future.done():
            _close_all(fds)
        else:
            future.set_result((message, fds))


def _connect(path: Path) -> socket.socket:
    """A unix socket connects at once or not at all (EAGAIN: the backlog is full)."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise _unreachable(path, str(error)) from error
    return sock


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def arrived() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(sock.fileno(), arrived)
    try:
        await future
    finally:
        loop.remove_reader(sock.fileno())


def _unreachable(path: object, why: str) -> AgentError:
    return AgentError(
        f"PID 1 can't be reached at {path}: {why}",
        code=Code.UNAVAILABLE,
        reason=Reason.KERNEL_REFUSED,
        fields={"object": str(path)},
    )


def _portions(names: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (names[start : start + size] for start in range(0, len(names), size))


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)

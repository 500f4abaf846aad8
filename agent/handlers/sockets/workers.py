"""Worker processes that walk the paths of unix sockets, with a deadline (DESIGN D3).

One that is warm is kept once there was a first; one that is late, or whose caller has
gone, is killed. A container's own file systems can hold up at most `EACH` of them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.core import commands
from agent.core.errors import timed_out
from agent.core.workerslots import WorkerSlots
from agent.linux import fdpass
from agent.linux.unixsockets import Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.deadlines import Deadline
    from agent.handlers.sockets.places import Inside
    from agent.linux.fdpass import Message

LIMIT: Final = 8
EACH: Final = 2

_CODE = Path(__file__).resolve().parents[3]
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); import agent.linux.socketworker as w; w.main()"
)
WORKER_ARGV = (sys.executable, "-IS", "-c", _BOOT, str(_CODE))


class SocketWorkers:
    """Connects, listens and removes below a root; raises OSError as
    agent.linux.unixsockets does, and OPERATION_TIMED_OUT."""

    def __init__(self, *, argv: Sequence[str] = WORKER_ARGV) -> None:
        self._argv = tuple(argv)
        self._slots = WorkerSlots(LIMIT, each=EACH)
        self._idle: _Worker | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Future[None]] = set()
        self._closed = False

    async def connect(self, inside: Inside, path: str, deadline: Deadline) -> socket.socket:
        seconds = max(deadline.left() / 2, 0.001)
        _, made = await self._run("connect", inside, path, deadline, seconds=seconds)
        return made[0]

    async def listen(
        self, inside: Inside, path: str, deadline: Deadline
    ) -> tuple[socket.socket, Identity]:
        answer, made = await self._run("listen", inside, path, deadline)
        return made[0], Identity(*answer)

    async def remove(
        self, inside: Inside, path: str, identity: Identity, deadline: Deadline
    ) -> None:
        """If it is still that socket, which the caller has open."""
        await self._run("remove", inside, path, deadline, identity=list(identity))

    async def close(self) -> None:
        """Let those at work finish, and end them; those given up are left to the kernel."""
        self._closed = True
        if self._busy:
            await asyncio.wait(self._busy, timeout=commands.KILL_PATIENCE)
        if self._idle is not None:
            self._retire(self._idle)
            self._idle = None
        if self._ending:
            await asyncio.wait(self._ending, timeout=commands.KILL_PATIENCE)

    async def _run(
        self, call: str, inside: Inside, path: str, deadline: Deadline, **words: object
    ) -> tuple[Any, list[socket.socket]]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._busy.add(done)
        try:
            return await self._call(call, inside, path, deadline, **words)
        finally:
            self._busy.discard(done)
            done.set_result(None)

    async def _call(
        self, call: str, inside: Inside, path: str, deadline: Deadline, **words: object
    ) -> tuple[Any, list[socket.socket]]:
        objects = (inside.root,)
        request = {"call": call, "root": inside.root, "path": path, **words}
        process = () if inside.process is None else (inside.process,)
        try:
            await self._slots.take(objects, deadline)
        except TimeoutError:
            raise _late(call, path) from None
        given_up: _Worker | None = None
        try:
            async with deadline.limit():
                worker = given_up = await self._worker()
                answer, fds = await worker.ask(request, process)
                given_up = None
        except TimeoutError:
            raise _late(call, path) from None
        finally:
            self._done_with(given_up, objects)
        made = [_received(fd) for fd in fds]
        await self._keep(worker)
        return _result(answer), made

    async def _worker(self) -> _Worker:
        worker, self._idle = self._idle, None
        if worker is not None and worker.alive:
            return worker
        if worker is not None:
            self._retire(worker)
        return await _Worker.start(self._argv)

    async def _keep(self, worker: _Worker) -> None:
        if self._idle is None and not self._closed:
            self._idle = worker
            return
        ending = self._retire(worker)
        if self._closed:
            # Nobody else waits for it any more.
            await asyncio.shield(ending)

    def _done_with(self, given_up: _Worker | None, objects: tuple[str, ...]) -> None:
        """A worker that the kernel holds keeps its slot as long as it does."""
        if given_up is None:
            self._slots.give_back(objects)
            return
        given_up.kill()
        ending = self._retire(given_up)
        ending.add_done_callback(lambda _: self._slots.give_back(objects))

    def _retire(self, worker: _Worker) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(worker.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


class _Worker:
    """One worker process and our end of its socket."""

    def __init__(self, child: commands.Child, channel: socket.socket) -> None:
        self._child = child
        self._channel = channel

    @classmethod
    async def start(cls, argv: Sequence[str]) -> _Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)  # noqa: FBT003 - socket's own signature
        with theirs:
            try:
                setting = commands.Setting(stdin=theirs.fileno(), stderr=2)
                return cls(await commands.spawn(argv, setting=setting), ours)
            except BaseException:
                ours.close()
                raise

    @property
    def alive(self) -> bool:
        return self._child.code is None

    async def ask(self, request: Message, fds: tuple[int, ...]) -> tuple[Message, list[int]]:
        """Raises OSError when it has died."""
        fdpass.send(self._channel, request, fds)
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), arrived.set)
        try:
            await arrived.wait()
        finally:
            loop.remove_reader(self._channel.fileno())
        try:
            return fdpass.receive(self._channel)
        except EOFError:
            raise OSError(errno.ECHILD, "its worker died", request["path"]) from None

    def kill(self) -> None:
        self._child.kill()

    async def end(self) -> None:
        """Close our side, which ends one that rests, and reap."""
        # Sockets that it has answered with in the last moment are closed with the message.
        self._channel.close()
        await self._child.wait()


def _received(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)  # noqa: FBT003 - socket's own signature
    return sock


def _result(answer: Message) -> Any:
    if "ok" in answer:
        return answer["ok"]
    number = int(answer["errno"])
    raise OSError(number, f"{answer['call']}: {os.strerror(number)}", answer["object"])


def _late(call: str, path: str) -> Exception:
    return timed_out(
        f"{call} at {path} did not come back from the kernel in time and was given up",
        hint="a file system on the way, or its server, does not answer",
        path=path,
    )

"""File-system calls that may hang, with a deadline (DESIGN D3).

Each call runs in a worker process (`agent.linux.fsworker`), one at a time per
worker. One worker is kept warm, so that a call costs a message each way. Past the
deadline, or when the caller is cancelled, the worker is killed and given up, and
another is warmed up: if the kernel holds the old one (state D) it stays until the
kernel lets go, and it counts against the limit until then. Whether a call that was
given up took effect can be asked only after `settled`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.core import commands
from agent.core.errors import AgentError, Code, Reason, exhausted, timed_out
from agent.linux import fdpass
from agent.linux.mounting import MountFlag, UnmountFlag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.core.deadlines import Deadline

log = logging.getLogger(__name__)

WORKER_LIMIT = 8

_CODE = Path(__file__).resolve().parents[2]
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); import agent.linux.fsworker as w; w.main()"
WORKER_ARGV = (sys.executable, "-IS", "-c", _BOOT, str(_CODE))


@dataclass(frozen=True, slots=True, kw_only=True)
class MountCall:
    """The arguments of one mount(2)."""

    source: str
    target: str
    fs_type: str
    flags: MountFlag = MountFlag(0)  # noqa: RUF009 - an enum member is a constant
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemSize:
    """What statfs(2) tells, in bytes and in files."""

    size: int
    free: int
    available: int
    files: int
    files_free: int


class FileWorkers:
    """Runs file-system calls in worker processes.

    Every call raises the kernel's refusal as OSError (errno, call, object),
    OPERATION_TIMED_OUT at its deadline, LIMIT_REACHED when all workers are stuck.
    """

    def __init__(self, *, argv: Sequence[str] = WORKER_ARGV, limit: int = WORKER_LIMIT) -> None:
        self._argv = tuple(argv)
        self._limit = limit
        # Counts workers in a call and workers given up, not the idle one.
        self._slots = asyncio.Semaphore(limit)
        self._idle: _Worker | None = None
        self._warming: asyncio.Task[None] | None = None
        self._ending: dict[asyncio.Task[None], str] = {}

    async def start(self) -> None:
        """Start the warm worker now, so that the first call does not pay for it."""
        if self._idle is None:
            self._idle = await _Worker.start(self._argv)

    async def close(self) -> None:
        """End the idle worker; those given up are left to the kernel."""
        if self._warming is not None:
            await asyncio.wait([self._warming])
        if self._idle is not None:
            self._retire(self._idle, "closing")
            self._idle = None
        waiting = [task for task, what in self._ending.items() if what == "closing"]
        if waiting:
            await asyncio.wait(waiting)

    async def mount(self, call: MountCall, deadline: Deadline) -> None:
        await self._run(
            "mount",
            call.target,
            deadline,
            source=call.source,
            target=call.target,
            fs_type=call.fs_type,
            flags=int(call.flags),
            data=call.data,
        )

    async def unmount(self, target: str, flags: UnmountFlag, deadline: Deadline) -> None:
        await self._run("unmount", target, deadline, target=target, flags=int(flags))

    async def statfs(self, path: str, deadline: Deadline) -> FileSystemSize:
        return FileSystemSize(**await self._run("statfs", path, deadline, path=path))

    async def mkdir(self, path: str, deadline: Deadline, *, mode: int = 0o755) -> None:
        await self._run("mkdir", path, deadline, path=path, mode=mode)

    async def rmdir(self, path: str, deadline: Deadline) -> None:
        await self._run("rmdir", path, deadline, path=path)

    async def is_mount(self, path: str, deadline: Deadline) -> bool:
        return bool(await self._run("is_mount", path, deadline, path=path))

    async def check_directory(self, path: str, deadline: Deadline) -> None:
        """OSError ENOENT, ENOTDIR or ELOOP (a symbolic link on the way)."""
        await self._run("check_directory", path, deadline, path=path)

    async def check_empty_directory(self, path: str, deadline: Deadline) -> None:
        """OSError ENOENT, ENOTDIR, ELOOP (a symbolic link on the way) or ENOTEMPTY."""
        await self._run("check_empty_directory", path, deadline, path=path)

    async def make_link_targets(self, root: str, paths: Sequence[str], deadline: Deadline) -> None:
        """What links on `paths` lead to in `root`, see linux/rootlinks.py; never an OSError."""
        await self._run("make_link_targets", root, deadline, path=root, below=list(paths))

    async def read_text(self, path: Path, deadline: Deadline) -> str:
        return str(await self._run("read_text", str(path), deadline, path=str(path)))

    async def write_text(self, path: Path, text: str, deadline: Deadline) -> None:
        await self._run("write_text", str(path), deadline, path=str(path), text=text)

    async def device_users(
        self, question: Mapping[str, Any], deadline: Deadline
    ) -> list[dict[str, Any]]:
        """Who uses a device; `question` is the arguments of `agent.linux.users.device_users`."""
        answer: list[dict[str, Any]] = await self._run(
            "device_users", question["device"], deadline, **question
        )
        return answer

    async def settled(self, obj: str, patience: float | None = None) -> bool:
        """Wait until no call that was given up works on `obj`; False after `patience` s."""
        ending = [task for task, what in self._ending.items() if what == obj]
        if not ending:
            return True
        _, pending = await asyncio.wait(ending, timeout=patience)
        return not pending

    async def _run(self, call: str, obj: str, deadline: Deadline, **arguments: object) -> Any:
        worker = await self._take(call, obj, deadline)
        try:
            async with deadline.limit():
                answer = await worker.ask({"call": call, "arguments": arguments})
        except TimeoutError:
            self._give_up(worker, call, obj)
            raise _late(call, obj) from None
        except BaseException:
            self._give_up(worker, call, obj)
            raise
        self._give_back(worker)
        if "errno" in answer:
            number = int(answer["errno"])
            text = f"{answer['call']}: {os.strerror(number)}"
            raise OSError(number, text, answer["object"])
        return answer["ok"]

    async def _take(self, call: str, obj: str, deadline: Deadline) -> _Worker:
        try:
            async with deadline.limit():
                await self._slots.acquire()
        except TimeoutError:
            raise self._all_stuck(call, obj) from None
        worker, self._idle = self._idle, None
        if worker is not None and worker.alive:
            return worker
        if worker is not None:
            self._retire(worker, "closing")
        try:
            return await _Worker.start(self._argv)
        except BaseException:
            self._slots.release()
            raise

    def _give_back(self, worker: _Worker) -> None:
        self._slots.release()
        self._keep(worker)

    def _keep(self, worker: _Worker) -> None:
        if self._idle is None:
            self._idle = worker
        else:
            self._retire(worker, "closing")

    def _give_up(self, worker: _Worker, call: str, obj: str) -> None:
        log.warning("%s of %s given up; its worker %d is killed", call, obj, worker.pid)
        worker.kill()
        task = self._retire(worker, obj)
        task.add_done_callback(lambda _: self._slots.release())
        if self._warming is None or self._warming.done():
            self._warming = asyncio.get_running_loop().create_task(self._warm_up())

    async def _warm_up(self) -> None:
        if self._idle is not None:
            return
        try:
            self._keep(await _Worker.start(self._argv))
        except AgentError as error:
            log.warning("no file-system worker is ready for the next call: %s", error)

    def _retire(self, worker: _Worker, what: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(worker.end())
        self._ending[task] = what
        task.add_done_callback(self._ending.pop)
        return task

    def _all_stuck(self, call: str, obj: str) -> AgentError:
        stuck = sorted({what for what in self._ending.values() if what != "closing"})
        return exhausted(
            f"{call} of {obj}: all {self._limit} file-system workers are busy; "
            f"calls given up but still in the kernel: {', '.join(stuck) or 'none'}",
            reason=Reason.LIMIT_REACHED,
            object=obj,
            limit=self._limit,
        )


class _Worker:
    """One worker process and our end of its socket."""

    def __init__(self, child: commands.Child, channel: socket.socket) -> None:
        self._child = child
        self._channel = channel

    @classmethod
    async def start(cls, argv: Sequence[str]) -> _Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        with theirs:
            try:
                setting = commands.Setting(stdin=theirs.fileno(), stderr=2)
                return cls(await commands.spawn(argv, setting=setting), ours)
            except BaseException:
                ours.close()
                raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.code is None

    async def ask(self, request: fdpass.Message) -> fdpass.Message:
        try:
            fdpass.send(self._channel, request)
            loop = asyncio.get_running_loop()
            data = await loop.sock_recv(self._channel, fdpass.MESSAGE_LIMIT)
        except OSError as error:
            raise _died(request, str(error)) from error
        if not data:
            raise _died(request, "it closed its socket")
        answer: fdpass.Message = json.loads(data)
        return answer

    def kill(self) -> None:
        self._child.kill()

    async def end(self) -> None:
        """Close our side, which ends an idle worker, and reap."""
        self._channel.close()
        await self._child.wait()


def _died(request: fdpass.Message, why: str) -> AgentError:
    return AgentError(
        f"{request['call']}: the file-system worker ended in the middle of it: {why}",
        code=Code.UNAVAILABLE,
        reason=Reason.KERNEL_REFUSED,
    )


def _late(call: str, obj: str) -> AgentError:
    return timed_out(
        f"{call} of {obj} did not come back from the kernel in time and was given up",
        hint="the device or the server behind it does not answer",
        call=call,
        object=obj,
    )

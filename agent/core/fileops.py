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
import logging
import os
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.core import commands
from agent.core.errors import AgentError, Code, Reason, exhausted, timed_out
from agent.core.workerslots import WorkerSlots
from agent.linux import parcels
from agent.linux.accounts import Found
from agent.linux.devicemapper import MappingStatus, MappingTable
from agent.linux.mountcalls import (
    BindMount,
    FileRefusal,
    FsMount,
    Location,
    MountCall,
    MountOption,
    OverlayMount,
    from_message,
    to_message,
)
from agent.linux.mounting import UnmountFlag
from agent.linux.mounttargets import ContainerMount
from agent.linux.watchedcopy import Refreshed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.core.deadlines import Deadline
    from agent.linux.fdpass import Message
    from agent.linux.fsctl import Grown

__all__ = [
    "BindMount",
    "ContainerMount",
    "FileKind",
    "FileRefusal",
    "FileSystemSize",
    "FileWorkers",
    "FsMount",
    "Growth",
    "Location",
    "MountCall",
    "MountOption",
    "OverlayMount",
    "PageShare",
    "Refreshed",
    "Resolution",
    "holder",
]

log = logging.getLogger(__name__)

_SILENT = "the device or the server behind it does not answer"

WORKER_LIMIT = 10

IDLE_LIMIT = 3
"""Idle workers that are kept while there is much to do; a new one costs a start of Python."""

LINGER = 5.0
"""Seconds after which all idle workers but one are let go."""

OBJECT_LIMIT = 3
"""Workers in calls on the same thing: a storage's root, a mount point, a disk."""

_CODE = Path(__file__).resolve().parents[2]
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); import agent.linux.fsworker as w; w.main()"
WORKER_ARGV = (sys.executable, "-IS", "-c", _BOOT, str(_CODE))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemSize:
    """What statfs(2) tells, in bytes and in files."""

    size: int
    free: int
    available: int
    files: int
    files_free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Addresses of a host, the best first, or why there are none."""

    addresses: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A mounted file system that shall be as big as its device, in bytes."""

    path: str
    mount_id: int
    fs_type: str
    device_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """`kind` is "directory", "file", "socket", "pipe" or "device"."""

    kind: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PageShare:
    """An owner's huge pages of one size: the pool's directory in sysfs, and the book of owners."""

    path: str
    book: str
    owner: str


def holder(where: Location) -> str:
    """What a call on a location works on, for `FileWorkers.settled`: the storage that it is in."""
    return str(where) if where.root == "/" else where.root


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A call; `objects` are what it works on, the one that errors name first."""

    call: str
    objects: tuple[str, ...]
    urgent: bool = False

    def __str__(self) -> str:
        return f"{self.call} of {self.objects[0]}"


class FileWorkers:
    """Runs file-system calls in worker processes.

    Every call raises the kernel's refusal as OSError (errno, call, object),
    OPERATION_TIMED_OUT at its deadline, also when OBJECT_LIMIT earlier calls on the same
    thing are still in the kernel, LIMIT_REACHED when all workers are stuck.
    """

    def __init__(self, *, argv: Sequence[str] = WORKER_ARGV, limit: int = WORKER_LIMIT) -> None:
        self._argv = tuple(argv)
        # Counts workers in a call and workers given up, not idle ones.
        self._slots = WorkerSlots(limit, each=OBJECT_LIMIT)
        self._idle: list[_Worker] = []
        self._lingering: asyncio.TimerHandle | None = None
        self._warming: asyncio.Task[None] | None = None
        self._ending: dict[asyncio.Task[None], str] = {}

    async def start(self) -> None:
        """Start the warm worker now, so that the first call does not pay for it."""
        if not self._idle:
            self._idle.append(await _Worker.start(self._argv))

    async def close(self) -> None:
        """End the idle workers; those given up are left to the kernel."""
        if self._warming is not None:
            await asyncio.wait([self._warming])
        self._let_go(0)
        waiting = [task for task, what in self._ending.items() if what == "closing"]
        if waiting:
            await asyncio.wait(waiting)

    async def mount(self, call: MountCall, target: str, deadline: Deadline) -> None:
        """Mount on `target`, no part of which may be a link. Raises FileRefusal."""
        await self._run("mount", target, deadline, plan=to_message(call), target=target)

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

    async def is_directory(self, location: Location, deadline: Deadline) -> bool:
        """OSError for what is not there, or lies behind links that the location forbids."""
        where = asdict(location)
        return bool(await self._run("is_directory", str(location), deadline, location=where))

    async def check_directory(self, path: str, deadline: Deadline) -> None:
        """OSError ENOENT, ENOTDIR or ELOOP (a symbolic link on the way)."""
        await self._run("check_directory", path, deadline, path=path)

    async def check_empty_directory(self, path: str, deadline: Deadline) -> None:
        """OSError ENOENT, ENOTDIR, ELOOP (a symbolic link on the way) or ENOTEMPTY."""
        await self._run("check_empty_directory", path, deadline, path=path)

    async def check_regular_file(self, path: str, deadline: Deadline) -> None:
        """OSError ENOENT, EINVAL or ELOOP (a symbolic link on the way)."""
        await self._run("check_regular_file", path, deadline, path=path)

    async def make_targets(
        self, root: str, mounts: Sequence[ContainerMount], deadline: Deadline
    ) -> None:
        """What a container's mounts go to in `root`; refusals: linux/mounttargets.py."""
        plans = [asdict(mount) for mount in mounts]
        await self._run("make_targets", root, deadline, root=root, mounts=plans)

    async def read_text(self, path: Path, deadline: Deadline) -> str:
        return str(await self._run("read_text", str(path), deadline, path=str(path)))

    async def write_text(self, path: Path, text: str, deadline: Deadline) -> None:
        await self._run("write_text", str(path), deadline, path=str(path), text=text)

    async def create_mapping(
        self, control: Path, name: str, uuid: str, deadline: Deadline
    ) -> tuple[int, int]:
        """A device-mapper device without a table; its numbers. See linux/devicemapper.py."""
        major, minor = await self._run(
            "create_mapping", name, deadline, path=str(control), name=name, uuid=uuid
        )
        return int(major), int(minor)

    async def load_mapping(
        self, control: Path, name: str, table: MappingTable, deadline: Deadline
    ) -> None:
        arguments = asdict(table)
        await self._run("load_mapping", name, deadline, path=str(control), name=name, **arguments)

    async def resume_mapping(self, control: Path, name: str, deadline: Deadline) -> None:
        await self._run("resume_mapping", name, deadline, path=str(control), name=name)

    async def mapping_status(self, control: Path, name: str, deadline: Deadline) -> MappingStatus:
        return MappingStatus(
            *await self._run("mapping_status", name, deadline, path=str(control), name=name)
        )

    async def remove_mapping(
        self, control: Path, name: str, deadline: Deadline, *, deferred: bool = False
    ) -> None:
        """OSError ENXIO when there is none, EBUSY while it is in use and not `deferred`."""
        await self._run(
            "remove_mapping", name, deadline, path=str(control), name=name, deferred=deferred
        )

    async def read_disk(self, path: str, offset: int, size: int, deadline: Deadline) -> bytes:
        """Bytes of a block device; at most 16 KiB. OSError ENXIO past its end."""
        text = await self._run("read_disk", path, deadline, path=path, offset=offset, size=size)
        return bytes.fromhex(text)

    async def written_sector(
        self, path: str, size: int, below: tuple[str, int], deadline: Deadline
    ) -> int:
        """Where an encrypted device was written to, -1 for nowhere; see linux/rawdisk.py."""
        disk, offset = below
        return int(
            await self._run(
                "written_sector", path, deadline, path=path, size=size, below=disk, offset=offset
            )
        )

    async def clear_disk(
        self, path: str, size: int, unless: Mapping[int, bytes], deadline: Deadline
    ) -> None:
        """Zeros for a block device's first bytes; OSError EBUSY while it is in use, EEXIST
        where one of `unless` is there (by offsets)."""
        texts = [(at, data.hex()) for at, data in unless.items()]
        await self._run("clear_disk", path, deadline, path=path, size=size, unless=texts)

    async def device_users(
        self, question: Mapping[str, Any], deadline: Deadline
    ) -> list[dict[str, Any]]:
        """Who uses a device; `question` is the arguments of `agent.linux.users.device_users`."""
        answer: list[dict[str, Any]] = await self._run(
            "device_users", question["device"], deadline, **question
        )
        return answer

    async def list_processes(
        self, question: Mapping[str, Any], deadline: Deadline
    ) -> list[dict[str, Any]]:
        """Processes of a cgroup; `question` is the arguments of `list_processes` of
        `agent.linux.processlist`."""
        # Those that hang in a process's memory must not keep from a list without arguments.
        what = "arguments in" if question["argument_bytes"] else "processes of"
        answer: list[dict[str, Any]] = await self._run(
            "list_processes", f"{what} {question['cgroup']}", deadline, **question
        )
        return answer

    async def trim(self, path: str, mount_id: int, deadline: Deadline) -> int:
        """Bytes given back; of this and the next three see `agent.linux.fsctl`."""
        return int(await self._run("trim", path, deadline, path=path, mount_id=mount_id))

    async def freeze(self, path: str, mount_id: int, deadline: Deadline) -> None:
        await self._run("freeze", path, deadline, path=path, mount_id=mount_id)

    async def thaw(self, path: str, mount_id: int, deadline: Deadline) -> None:
        await self._run("thaw", path, deadline, path=path, mount_id=mount_id)

    async def grow(self, wish: Growth, deadline: Deadline) -> Grown:
        grown: Grown = await self._run("grow", wish.path, deadline, **asdict(wish))
        return grown

    async def apply_fs_group(
        self, path: str, gid: int, deadline: Deadline, *, read_only: bool, on_mismatch_only: bool
    ) -> int:
        """How many files were changed, see `agent.linux.fsgroup`."""
        choices = {"read_only": read_only, "on_mismatch_only": on_mismatch_only}
        return int(await self._run("apply_fs_group", path, deadline, path=path, gid=gid, **choices))

    async def know_fs_type(self, fs_type: str, deadline: Deadline) -> None:
        """See to it that the kernel has the file system; ENODEV when it can't."""
        await self._run("know_fs_type", fs_type, deadline, fs_type=fs_type)

    async def resolve(self, host: str, deadline: Deadline) -> Resolution:
        """Ask the guest's resolver; never an OSError."""
        answer = await self._run("resolve", host, deadline, host=host)
        return Resolution(addresses=tuple(answer["addresses"]), failure=answer["failure"])

    async def kind_of(self, where: Location, deadline: Deadline) -> FileKind:
        """OSError ENOENT for what is not there, ELOOP where links are refused."""
        found = await self._run("kind_of", holder(where), deadline, location=asdict(where))
        return FileKind(**found)

    async def make_directory(
        self, where: Location, deadline: Deadline, *, mode: int = 0o755
    ) -> None:
        """One directory, with just these permission bits; OSError EEXIST."""
        location = asdict(where)
        await self._run("make_directory", holder(where), deadline, location=location, mode=mode)

    async def remove_directory(self, where: Location, deadline: Deadline) -> None:
        """One empty directory; OSError ENOENT, ENOTEMPTY."""
        await self._run("remove_directory", holder(where), deadline, location=asdict(where))

    async def remove_tree(self, where: Location, deadline: Deadline) -> tuple[str, ...]:
        """What of it stays and why, see `agent.linux.treeremoval`."""
        return tuple(
            await self._run("remove_tree", holder(where), deadline, location=asdict(where))
        )

    async def add_huge_pages(self, share: PageShare, pages: int, deadline: Deadline) -> int:
        """How many could be had; less than asked for: none were added."""
        return int(
            await self._run("add_huge_pages", share.path, deadline, pages=pages, **asdict(share))
        )

    async def drop_huge_pages(self, share: PageShare, deadline: Deadline) -> int:
        """How many were given back."""
        return int(await self._run("drop_huge_pages", share.path, deadline, **asdict(share)))

    async def refresh_copy(
        self, source: Location, target: str, gid: int | None, deadline: Deadline
    ) -> Refreshed:
        """See `agent.linux.watchedcopy`. It is the `holder` of the source that may never settle."""
        arguments = {"source": asdict(source), "target": target, "gid": gid}
        return Refreshed(*await self._run("refresh_copy", holder(source), deadline, **arguments))

    async def programs(self, directory: str, deadline: Deadline) -> dict[str, list[str]]:
        """Hooks of the guest, see `agent.linux.guesthooks`."""
        found: dict[str, list[str]] = await self._run(
            "programs", directory, deadline, directory=directory
        )
        return found

    async def find_account(
        self, root: str, user: str, group: str | None, deadline: Deadline
    ) -> Found:
        """A user of a container's root, see `agent.linux.accounts`."""
        found = await self._run("find_account", root, deadline, root=root, user=user, group=group)
        return Found(**{**found, "groups": tuple(found["groups"])})

    async def find_home(self, root: str, uid: int, deadline: Deadline) -> str:
        """A user's home directory, see `agent.linux.accounts`."""
        found: str = await self._run("find_home", root, deadline, root=root, uid=uid)
        return found

    async def settled(self, obj: str, patience: float | None = None) -> bool:
        """Wait until no call that was given up works on `obj`; False after `patience` s."""
        ending = [task for task, what in self._ending.items() if what == obj]
        if not ending:
            return True
        _, pending = await asyncio.wait(ending, timeout=patience)
        return not pending

    async def _run(self, call: str, obj: str, deadline: Deadline, **arguments: object) -> Any:
        task = _task(call, obj, arguments)
        worker = await self._take(task, deadline)
        try:
            async with deadline.limit():
                answer = await worker.ask({"call": task.call, "arguments": arguments})
        except TimeoutError:
            self._give_up(worker, task)
            raise _late(task) from None
        except BaseException:
            self._give_up(worker, task)
            raise
        self._slots.give_back(task.objects)
        self._keep(worker)
        if "errno" in answer:
            raise _refusal(answer)
        return answer["ok"]

    async def _take(self, task: _Task, deadline: Deadline) -> _Worker:
        try:
            await self._slots.take(task.objects, deadline, urgent=task.urgent)
        except TimeoutError:
            crowded = self._slots.crowded(task.objects)
            raise (_crowded(task, crowded) if crowded else self._all_stuck(task)) from None
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._retire(worker, "closing")
        try:
            return await _Worker.start(self._argv)
        except BaseException:
            self._slots.give_back(task.objects)
            raise

    def _keep(self, worker: _Worker) -> None:
        if len(self._idle) >= IDLE_LIMIT:
            self._retire(worker, "closing")
            return
        self._idle.append(worker)
        if self._lingering is not None:
            self._lingering.cancel()
        loop = asyncio.get_running_loop()
        self._lingering = loop.call_later(LINGER, self._let_go, 1)

    def _let_go(self, kept: int) -> None:
        """Of the idle ones all but so many."""
        if self._lingering is not None:
            self._lingering.cancel()
        while len(self._idle) > kept:
            self._retire(self._idle.pop(), "closing")

    def _give_up(self, worker: _Worker, task: _Task) -> None:
        log.warning("%s given up; its worker %d is killed", task, worker.pid)
        worker.kill()
        ending = self._retire(worker, task.objects[0])
        ending.add_done_callback(lambda _: self._slots.give_back(task.objects))
        if self._warming is None or self._warming.done():
            self._warming = asyncio.get_running_loop().create_task(self._warm_up())

    async def _warm_up(self) -> None:
        if self._idle:
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

    def _all_stuck(self, task: _Task) -> AgentError:
        stuck = sorted({what for what in self._ending.values() if what != "closing"})
        return exhausted(
            f"{task}: all {self._slots.limit} file-system workers are busy; "
            f"calls given up but still in the kernel: {', '.join(stuck) or 'none'}",
            reason=Reason.LIMIT_REACHED,
            object=task.objects[0],
            limit=self._slots.limit,
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

    async def ask(self, request: Message) -> Message:
        try:
            parcels.send(self._channel, request)
            await _readable(self._channel)
            return parcels.receive(self._channel)
        except OSError as error:
            raise _died(request, str(error)) from error
        except EOFError:
            raise _died(request, "it closed its socket") from None

    def kill(self) -> None:
        self._child.kill()

    async def end(self) -> None:
        """Close our side, which ends an idle worker, and reap."""
        self._channel.close()
        await self._child.wait()


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(sock.fileno(), arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(sock.fileno())


def _died(request: Message, why: str) -> AgentError:
    return AgentError(
        f"{request['call']}: the file-system worker ended in the middle of it: {why}",
        code=Code.UNAVAILABLE,
        reason=Reason.KERNEL_REFUSED,
    )


def _refusal(answer: Message) -> OSError:
    number, obj = int(answer["errno"]), answer["object"]
    if "log" in answer:
        return FileRefusal(number, answer["text"], obj, log=tuple(answer["log"]))
    return OSError(number, f"{answer['call']}: {os.strerror(number)}", obj)


def _late(task: _Task) -> AgentError:
    return timed_out(
        f"{task} did not come back from the kernel in time and was given up",
        hint=_SILENT,
        call=task.call,
        object=task.objects[0],
    )


def _crowded(task: _Task, crowded: str) -> AgentError:
    return timed_out(
        f"{task}: {OBJECT_LIMIT} earlier calls on {crowded} have not come back from the kernel",
        hint=_SILENT,
        call=task.call,
        object=crowded,
    )


def _task(call: str, obj: str, arguments: dict[str, Any]) -> _Task:
    match call:
        case "mount":
            return _Task(call=call, objects=(obj, *_sources(from_message(arguments["plan"]))))
        case "unmount":
            # Taking it off the tree asks nothing of a server that hangs.
            urgent = bool(arguments["flags"] & UnmountFlag.DETACH)
            return _Task(call=call, objects=(obj,), urgent=urgent)
        case _:
            return _Task(call=call, objects=(obj,))


def _sources(call: MountCall) -> frozenset[str]:
    """What a mount touches besides its target; a file system's source that is only a name is
    nobody's."""
    match call:
        case BindMount(source=source):
            return frozenset([holder(source)])
        case OverlayMount(lowers=lowers, upper=upper, work=work):
            return frozenset(holder(each) for each in (*lowers, upper, work) if each is not None)
        case FsMount(source=source):
            return frozenset([source] if "/" in source else [])

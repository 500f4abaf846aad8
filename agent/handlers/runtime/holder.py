"""The sandbox's own namespaces, and the small init that holds them.

A namespace of pids lives as long as its first process, and everything in it dies with that. So
the sandbox has one that no container owns: a hidden container of the runtime's, with an
id that no container can have. Its first process is a shell that waits: whatever is left
behind to it is reaped by that, it takes no signal from inside (pid_namespaces(7), and those
that the shell would catch are ignored), and it has no capability, no user and no file.
It also holds the sandbox's namespaces of System V IPC and of the host name.

    sandbox/pid, config.json   its bundle
    sandbox/shm/               /dev/shm of the containers that share "ipc"
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import signal
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from agent.core.commands import signal_name
from agent.core.errors import AgentError, Reason, kernel_refused, wrong_state
from agent.core.exits import Expectation
from agent.core.fileops import FsMount, MountOption
from agent.core.life import EndCause
from agent.core.model import ProcessExit
from agent.core.undo import UndoStack
from agent.handlers.runtime.cgroup import Cgroup, open_member
from agent.handlers.runtime.exitdetails import details_of
from agent.handlers.runtime.leftovers import wait_for_leftovers
from agent.handlers.runtime.runtime import CreateCall, Stdio
from agent.linux.mounting import MountFlag, UnmountFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.exits import ExitWatcher
    from agent.core.pid1 import JournalEntry
    from agent.core.roots import Roots
    from agent.handlers.runtime.bundle import Files
    from agent.handlers.runtime.context import Events, Group
    from agent.handlers.runtime.runtime import Runtime

log = logging.getLogger(__name__)

HOLDER_ID: Final = "_sandbox"
"""Ids of containers begin with a letter or a digit."""

KINDS: Final = ("pid", "ipc", "uts")
"""What can be shared with the sandbox besides the guest's own network."""

SHARED_MEMORY: Final = "/dev/shm"
HOSTNAME: Final = "hostname"
"""Keys of what `paths` gives besides the kinds: a directory, and the sandbox's host name."""

_KIND, _KEY = "sandbox", "holder"
_ROOT: Final = "/usr/lib/innkeeper/rootfs"
# `wait` takes in every child, also those that the shell did not start; it needs one of its
# own to wait for, and makes another when somebody kills that.
_INIT: Final = (
    "/bin/sh",
    "-c",
    "trap '' HUP INT QUIT TERM; while :; do sleep infinity & wait; done",
)
_NOBODY: Final = 65534
_MEMORY: Final = 16 << 20
_PIDS: Final = 4
_SHM_SIZE: Final = 64 << 20
_PATIENCE: Final = 10.0
"""Seconds for runtime calls of an earlier agent to end by themselves."""

_NOT_THERE: Final = {errno.EINVAL, errno.ENOENT}
"""umount2(2) on what is no mount point, or not there."""

_HINT: Final = "Sandbox.Destroy and Sandbox.Create make it anew"


class State(Protocol):
    """What is needed of `core.state.StateStore`."""

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None: ...
    def delete(self, kind: str, key: str) -> None: ...
    def load(self, kind: str, key: str) -> dict[str, Any] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderRecord:
    """The init: `pid` is 0 until it is known, `after` the journal's sequence before that."""

    kinds: tuple[str, ...]
    cgroup: str
    hostname: str
    after: int
    pid: int = 0

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for data of another shape."""
        return cls(
            kinds=tuple(map(str, data["kinds"])),
            cgroup=str(data["cgroup"]),
            hostname=str(data["hostname"]),
            after=int(data["after"]),
            pid=int(data["pid"]),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class NamespaceHolder:
    """At most one set of namespaces. Its caller sees to it that calls take turns."""

    roots: Roots
    runtime: Runtime
    exits: ExitWatcher
    state: State
    events: Events
    files: Files
    cgroup: Callable[[Roots, str], Group] = Cgroup
    _record: HolderRecord | None = field(init=False)
    _ended: str = field(default="", init=False)
    _following: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._record = _restored(self.state)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What there is to share; also when the init has died."""
        return self._record.kinds if self._record else ()

    async def make(
        self, kinds: Sequence[str], *, cgroup: str, hostname: str, deadline: Deadline
    ) -> None:
        """Make them; the init goes into the group `cgroup`, which nobody else has.

        Raises RUNTIME_REFUSED, MOUNT_REFUSED, NO_SPACE, OPERATION_TIMED_OUT; then `remove`
        takes back what is there.
        """
        after = await self.exits.note()
        record = HolderRecord(kinds=tuple(kinds), cgroup=cgroup, hostname=hostname, after=after)
        self._save(record)
        self._ended = ""
        await self._make_bundle(record, deadline)
        with _null() as stdio:
            call = CreateCall(
                id=HOLDER_ID,
                bundle=self._directory,
                pid_file=self._directory / "pid",
                stdio=stdio,
            )
            pid = await self.runtime.create(call, deadline)
        self._save(replace(record, pid=pid))
        self._follow()
        await self.runtime.start(HOLDER_ID, deadline)

    async def remove(self, deadline: Deadline) -> None:
        """End the init, and with it all processes that are left in its namespace of pids.

        Fine with what is not there, or half there. Raises AgentError when something stays,
        and then it can be asked for again.
        """
        record = self._record
        if record is None:
            return
        await self._stop_following()
        if not record.pid:
            # A runtime call of a dead agent would go on making what is removed here.
            await wait_for_leftovers(self.roots, self.runtime, deadline.earlier(_PATIENCE))
        group = self.cgroup(self.roots, record.cgroup)
        undo = UndoStack("remove the sandbox's namespaces")
        undo.push("their record", self._forget)
        undo.push("their bundle", lambda: self._remove_bundle(deadline))
        undo.push("their cgroup", group.remove)
        undo.push("their init in the runtime", lambda: self.runtime.delete(HOLDER_ID, deadline))
        undo.push("their init", lambda: _end(group, deadline))
        await undo.run()
        if undo.failures:
            # Kept, so that the next one tries again.
            self._save(record)
            raise wrong_state("; ".join(map(str, undo.failures)), reason=Reason.STILL_IN_USE)

    async def restore(self) -> None:
        """Take over what an earlier agent made and finished."""
        if self._record is not None and self._record.pid:
            self._follow()

    async def close(self) -> None:
        """Stop looking after it, without changing anything."""
        await self._stop_following()

    @contextlib.contextmanager
    def paths(self, kinds: Sequence[str]) -> Iterator[Mapping[str, str]]:
        """Paths by which the runtime can open these namespaces while the block runs, by kind.

        They lead through descriptors of this process, which hold them whoever gets the
        init's number meanwhile. `HOSTNAME` is there with "uts", `SHARED_MEMORY` with "ipc".
        Raises WRONG_STATE for a namespace that Sandbox.Create did not make, or whose init
        has died.
        """
        wanted = [kind for kind in kinds if kind in KINDS]
        if not wanted:
            yield {}
            return
        record = self._require(wanted)
        with self._opened(record, wanted) as fds:
            own = self.roots.proc / str(os.getpid()) / "fd"
            found = {kind: str(own / str(fd)) for kind, fd in fds.items()}
            if "uts" in found:
                found[HOSTNAME] = record.hostname
            if "ipc" in found:
                found[SHARED_MEMORY] = str(self._shm)
            yield found

    @property
    def _directory(self) -> Path:
        return self.roots.run / "sandbox"

    @property
    def _shm(self) -> Path:
        return self._directory / "shm"

    def _require(self, wanted: Sequence[str]) -> HolderRecord:
        missing = [kind for kind in wanted if kind not in self.kinds]
        if self._record is None or missing:
            raise wrong_state(
                f"the sandbox has no namespace to share of the kind {' and '.join(missing)}",
                hint="Sandbox.Create makes those of its `shared_namespaces`",
                missing=",".join(missing),
            )
        return self._record

    @contextlib.contextmanager
    def _opened(self, record: HolderRecord, kinds: Sequence[str]) -> Iterator[dict[str, int]]:
        with contextlib.ExitStack() as stack:
            pidfd = open_member(self.roots, record.pid, record.cgroup)
            if pidfd < 0:
                raise self._gone()
            stack.callback(os.close, pidfd)
            found: dict[str, int] = {}
            try:
                for kind in kinds:
                    path = self.roots.proc / str(record.pid) / "ns" / kind
                    found[kind] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    stack.callback(os.close, found[kind])
                # It has its number until it is reaped: so those were its own, nobody else's.
                signal.pidfd_send_signal(pidfd, 0)
            except OSError as error:
                raise self._gone() from error
            yield found

    def _gone(self) -> AgentError:
        how = self._ended or "it is not there any more"
        return wrong_state(
            f"the sandbox's namespaces are gone with the init that held them: {how}", hint=_HINT
        )

    async def _make_bundle(self, record: HolderRecord, deadline: Deadline) -> None:
        try:
            self._directory.mkdir(mode=0o711)
            (self._directory / "config.json").write_text(json.dumps(config_of(record)))
            if "ipc" in record.kinds:
                self._shm.mkdir(mode=0o755)
                await self.files.mount(_SHM, str(self._shm), deadline)
        except OSError as error:
            raise kernel_refused(error, doing=f"make {self._directory}") from error

    async def _remove_bundle(self, deadline: Deadline) -> None:
        flags = UnmountFlag.NOFOLLOW | UnmountFlag.DETACH
        try:
            await self.files.unmount(str(self._shm), flags, deadline)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                doing = f"unmount {self._shm}"
                raise kernel_refused(error, doing=doing, reason=Reason.UNMOUNT_REFUSED) from error
        # Where a mount stays nothing may be removed: it would be entered.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._directory)

    def _save(self, record: HolderRecord) -> None:
        self.state.save(_KIND, _KEY, asdict(record))
        self._record = record

    def _forget(self) -> None:
        self.state.delete(_KIND, _KEY)
        self._record = None

    def _follow(self) -> None:
        self._following = asyncio.create_task(self._until_exit(), name="the sandbox's init")

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
            self._following = None

    async def _until_exit(self) -> None:
        record = self._record
        if record is None:
            return
        entry = await self.exits.wait(
            Expectation(pid=record.pid, cgroup=record.cgroup, after=record.after)
        )
        self._ended = _how(entry)
        log.error("the init of the sandbox's namespaces has ended: %s", self._ended)
        self.events.publish("process_exited", HOLDER_ID, _details(entry))


def config_of(record: HolderRecord) -> dict[str, Any]:
    """OCI's specification of the init."""
    kinds = (*KINDS, "mount", "cgroup")
    return {
        "ociVersion": "1.0.2",
        "hostname": record.hostname,
        "root": {"path": _ROOT, "readonly": True},
        "process": {
            "args": list(_INIT),
            "cwd": "/",
            "env": ["PATH=/bin"],
            "user": {"uid": _NOBODY, "gid": _NOBODY},
            "capabilities": {},
            "noNewPrivileges": True,
            # Everything in the namespace of pids would go with it.
            "oomScoreAdj": -1000,
        },
        "mounts": [
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "noexec", "mode=755", "size=64k"],
            }
        ],
        "linux": {
            "cgroupsPath": record.cgroup,
            "namespaces": [{"type": kind} for kind in kinds],
            "resources": {
                "memory": {"limit": _MEMORY},
                "pids": {"limit": _PIDS},
                "devices": [{"allow": False, "access": "rwm"}],
            },
        },
    }


_SHM: Final = FsMount(
    source="shm",
    fs_type="tmpfs",
    flags=MountFlag.NODEV | MountFlag.NOSUID | MountFlag.NOEXEC,
    options=(
        MountOption(key="size", value=str(_SHM_SIZE)),
        MountOption(key="mode", value="1777"),
    ),
)


async def _end(group: Group, deadline: Deadline) -> None:
    group.kill()
    await group.wait_empty(deadline)


@contextlib.contextmanager
def _null() -> Iterator[Stdio]:
    """Nothing: what is not given to the runtime would be a pipe of its call's."""
    fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield Stdio(stdin=fd, stdout=fd, stderr=fd)
    finally:
        os.close(fd)


def _details(entry: JournalEntry) -> dict[str, str]:
    end = ProcessExit(
        code=entry.code,
        signal=entry.signal,
        cause=EndCause.SIGNALLED if entry.signal else EndCause.EXITED,
        why="it held the namespaces that containers share",
    )
    return {**details_of(end), "pid": str(entry.pid)}


def _how(entry: JournalEntry) -> str:
    if entry.signal:
        return f"{signal_name(entry.signal)} ended it"
    return f"it exited with status {entry.code}"


def _restored(state: State) -> HolderRecord | None:
    saved = state.load(_KIND, _KEY)
    if saved is None:
        return None
    try:
        return HolderRecord.from_data(saved)
    except (KeyError, TypeError, ValueError) as error:
        log.warning("the saved state of the sandbox's init is of another shape: %r", error)
        return None

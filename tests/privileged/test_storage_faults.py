"""Attachments in which the n-th system call fails, for every n, with the real kernel.

Or the worker that makes it is killed, or the agent itself: each time before and after the call
took effect. Nothing is left of the attachment, and the next one succeeds.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.core.fileops import FileWorkers
from agent.core.model import FsGroup, StorageRequest
from agent.core.sources import (
    BindSource,
    BlockSource,
    CryptSetup,
    HugetlbSource,
    LocalSource,
    OverlaySource,
    Source,
    StorageDirectory,
    TmpfsSource,
    WatchedSource,
)
from agent.core.state import StateStore
from tests.privileged import loops, modules
from tests.privileged.counts import often
from tests.privileged.failing_worker import How, Script
from tests.privileged.faultlab import FaultLab, fault_lab, private_room

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts"),
]

MIB = 1 << 20
MOST = 1000
PATIENCE = 60.0
# Under emulation every fifth call has to do, and so it has where each costs a process.
STEP = 6 - often(5)
KILL_STEP = 1 if "INNKEEPER_SOAK" in os.environ else 4 * STEP
ERRNOS = [errno.EIO, errno.ENOSPC, errno.EBUSY]
FEW = often(5)
MAPPER = Path("/dev/mapper/control")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`bases` are storages that it builds on, `keeps` what the user has in them afterwards."""

    source: Source
    bases: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)


def inside(storage_id: str, path: str = "") -> StorageDirectory:
    return StorageDirectory(storage_id=storage_id, path=path)


DISK = BlockSource(device_id="disk", fs_type="ext4")
GROUP = {"fs_group": FsGroup(gid=1000)}
CASES = {
    "disk": Case(source=DISK, more=GROUP),
    "crypt": Case(
        source=BlockSource(
            device_id="disk",
            fs_type="ext4",
            format_if_empty=True,
            crypt=CryptSetup(key=bytes(range(64)), offset=8 * MIB),
        )
    ),
    "tmpfs": Case(source=TmpfsSource(size=MIB), more={**GROUP, "read_only": True}),
    "hugetlb": Case(source=HugetlbSource(size=4 * MIB)),
    "bind": Case(source=BindSource(path="/ROOM/guest/files"), more={"read_only": True}),
    "bind of a file": Case(source=BindSource(path="/ROOM/guest/files/file")),
    "overlay": Case(
        source=OverlaySource(lower=(inside("low", "a"),), upper=inside("up", "deep/down")),
        bases=("low", "up"),
        keeps=("up/deep",),
    ),
    "local": Case(source=LocalSource(), more=GROUP),
    "local in a storage": Case(source=LocalSource(storage_id="up"), bases=("up",)),
    "watched": Case(source=WatchedSource(path="/ROOM/guest/files", interval=0)),
}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    with private_room(tmp_path / "room") as made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    made = Script(tmp_path / "script")
    yield made
    made.close()


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "crypt":
        modules.load("dm_crypt")
        if not MAPPER.exists():
            pytest.skip("this machine's kernel has no device-mapper")
    return CASES[request.param]


every_case = pytest.mark.parametrize("case", CASES, indirect=True)
# Under emulation the longest one speaks for all.
each_killed = pytest.mark.parametrize(
    "case", list(CASES) if STEP == 1 else ["crypt"], indirect=True
)


@pytest.fixture
def disk(tmp_path: Path, case: Case) -> Iterator[str]:
    """A loop device with an empty ext4 in its first half, where the case wants one."""
    if not isinstance(case.source, BlockSource):
        yield ""
        return
    modules.load("loop")
    if shutil.which("mkfs.ext4") is None or not loops.CONTROL.exists():
        pytest.skip("needs mkfs.ext4 and loop devices")
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    subprocess.run(["mkfs.ext4", "-q", str(image), "8M"], check=True)
    with loops.attached(image) as device:
        yield device


def asked(case: Case, room: Path) -> StorageRequest:
    source = case.source
    match source:
        case BindSource(path=path):
            source = BindSource(path=path.replace("/ROOM", str(room)))
        case WatchedSource(path=path, interval=interval):
            source = WatchedSource(path=path.replace("/ROOM", str(room)), interval=interval)
    return StorageRequest(id="data", source=source, **case.more)


async def build(lab: FaultLab, case: Case) -> None:
    """What it builds on, and once through it all: what then is there for good, is there."""
    for base in case.bases:
        made = await lab.storages.attach(StorageRequest(id=base, source=TmpfsSource()))
        (Path(made.mount_point) / "a").mkdir()
    await there_and_gone(lab, case)


async def there_and_gone(lab: FaultLab, case: Case) -> None:
    await lab.storages.attach(asked(case, lab.room))
    assert (await lab.storages.detach("data")).left == ()
    for kept in case.keeps:
        shutil.rmtree(lab.roots.storages / kept)


def same(after: dict[str, object], before: dict[str, object], at: int) -> None:
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, at


@every_case
@pytest.mark.parametrize("number", ERRNOS[:FEW], ids=errno.errorcode.get)
async def test_a_system_call_that_is_refused(
    case: Case, room: Path, disk: str, script: Script, number: int
) -> None:
    async with fault_lab(room, disk, script) as lab:
        await build(lab, case)
        before, descriptors = lab.traces(), lab.descriptors()
        for at in range(1, MOST, STEP):
            script.arm(at, How.REFUSE, number)
            error = await attempt(lab, case)
            struck = script.struck
            script.arm(0)
            if error is None:
                await lab.storages.detach("data")
                for kept in case.keeps:
                    shutil.rmtree(lab.roots.storages / kept)
            same(lab.traces(), before, at)
            assert error is None or "not_undone" not in error.fields
            assert lab.descriptors() == descriptors
            if not struck:
                break
        assert at > 4


async def attempt(lab: FaultLab, case: Case) -> AgentError | None:
    """None where it is attached."""
    try:
        await lab.storages.attach(asked(case, lab.room))
    except AgentError as error:
        return error
    return None


@each_killed
@pytest.mark.parametrize("how", [How.DONE_KILL, How.KILL][:FEW])
async def test_a_worker_that_is_killed(
    case: Case, room: Path, disk: str, script: Script, how: How
) -> None:
    async with fault_lab(room, disk, script) as lab:
        await build(lab, case)
        before = lab.traces()
        for at in range(1 + how % KILL_STEP, MOST, KILL_STEP):
            script.arm(at, how)
            error = await attempt(lab, case)
            struck = script.struck
            script.arm(0)
            assert (error is not None) == struck
            if not struck:
                break
            same(lab.traces(), before, at)
        assert at > 4
        await lab.storages.detach("data")


@each_killed
@pytest.mark.parametrize("how", [How.DONE_KILL_AGENT, How.KILL_AGENT][:FEW])
def test_an_agent_that_is_killed_in_a_call(
    case: Case, room: Path, disk: str, script: Script, how: How
) -> None:
    before = asyncio.run(first_agent(case, room, disk, script))
    for at in range(1 + how % KILL_STEP, MOST, KILL_STEP):
        script.arm(at, how)
        killed = is_killed(case, room, disk, script, StateStore(room / "innkeeper/state"))
        script.arm(0)
        if not killed:
            break
        same(asyncio.run(next_agent(room, disk, script)), before, at)
    assert at > 4
    same(asyncio.run(last_agent(case, room, disk, script)), before, at)


class DyingState(StateStore):
    """Kills the agent at a write, counted from 1, before or after it is made."""

    def __init__(self, directory: Path, at: int, *, done: bool) -> None:
        super().__init__(directory)
        self._left = at
        self._done = done

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None:
        self._left -= 1
        if self._left == 0 and not self._done:
            os.kill(os.getpid(), signal.SIGKILL)
        super().save(kind, key, data)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@each_killed
@pytest.mark.parametrize("done", [False, True][:FEW])
def test_an_agent_that_is_killed_at_a_write_of_its_state(
    case: Case, room: Path, disk: str, script: Script, done: bool
) -> None:
    """All or nothing: once the last write is made, the storage is there."""
    before = asyncio.run(first_agent(case, room, disk, script))
    killed, at = True, 0
    while killed:
        at += 1
        state = DyingState(room / "innkeeper/state", at, done=done)
        killed = is_killed(case, room, disk, script, state)
        after = asyncio.run(next_agent(room, disk, script))
        there = "data" in [each.request.id for each in after["storages"]]  # type: ignore[attr-defined]
        if there:
            break
        same(after, before, at)
    assert at > 1
    same(asyncio.run(last_agent(case, room, disk, script)), before, at)


async def first_agent(case: Case, room: Path, disk: str, script: Script) -> dict[str, object]:
    async with fault_lab(room, disk, script) as lab:
        await build(lab, case)
        return lab.traces()


def is_killed(case: Case, room: Path, disk: str, script: Script, state: StateStore) -> bool:
    """Whether the process that attaches the storage is killed; else it is attached."""
    child = os.fork()
    if not child:
        try:
            asyncio.run(dying_agent(case, room, disk, script, state))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


async def dying_agent(case: Case, room: Path, disk: str, script: Script, state: StateStore) -> None:
    async with fault_lab(room, disk, script, state) as lab:
        await attempt(lab, case)


async def next_agent(room: Path, disk: str, script: Script) -> dict[str, object]:
    async with fault_lab(room, disk, script) as lab:
        return lab.traces()


async def last_agent(case: Case, room: Path, disk: str, script: Script) -> dict[str, object]:
    """Finds it attached, and detaches it."""
    async with fault_lab(room, disk, script) as lab:
        assert (await lab.storages.detach("data")).left == ()
        for kept in case.keeps:
            shutil.rmtree(lab.roots.storages / kept)
        return lab.traces()


def test_a_worker_ends_with_its_agent(tmp_path: Path) -> None:
    """Or its call would take effect after the next agent has swept."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    told, tell = os.pipe()
    agent = os.fork()
    if not agent:
        asyncio.run(hang(pipe, tell))
    worker = os.pidfd_open(int(os.read(told, 100)))
    # Comes back when the worker has opened the other end: now it waits for what to read.
    writer = os.open(pipe, os.O_WRONLY)
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    assert select.select([worker], [], [], PATIENCE)[0]
    for fd in (worker, writer, told, tell):
        os.close(fd)


async def hang(pipe: Path, tell: int) -> None:
    files = FileWorkers()
    await files.start()
    assert files._idle
    os.write(tell, str(files._idle[0].pid).encode())
    await files.read_text(pipe, Deadline.after(PATIENCE))

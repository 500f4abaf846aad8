"""Operations on mounted file systems with the real kernel: ext4, xfs and btrfs on loop devices."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import stat
import struct
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.events import EventLog
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.kernel_log import KernelLog
from agent.core.log_evidence import LogEvidence
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.core.tree import SysfsTree
from agent.handlers.storage.freezes import Freezes
from agent.handlers.storage.health import Health
from agent.handlers.storage.mountpoints import MountPoint
from agent.handlers.storage.operations import StorageOperations
from agent.handlers.storage.superblocks import MountTable
from agent.linux.mounting import MountFlag, UnmountFlag, mount, parse_mountinfo, unmount
from agent.linux.uevents import KernelUevents
from tests.fakes.storage_operations import FakeRecords
from tests.fakes.waiting import until
from tests.privileged import loops, modules
from tests.privileged.counts import often

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and ioctls"),
]

MIB = 1 << 20
# As small as mkfs takes it: under emulation the size costs time.
SIZES = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 128 * MIB}
TRIMMED = 8 * MIB
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-E", "nodiscard"],
    "xfs": ["mkfs.xfs", "-q", "-K"],
    "btrfs": ["mkfs.btrfs", "-q", "-K"],
}
_LOOP_SET_CAPACITY = 0x4C07  # <linux/loop.h>
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN: _IOR('X', 125, __u32)

GROUP = 123
FUSE = "/dev/fuse"
_NO_FLAGS = MountFlag(0)


class Lab:
    """The operations on the real kernel, for mounts that the tests make."""

    def __init__(self, folder: Path) -> None:
        self.roots = Roots(run=folder / "innkeeper")
        self.folder = folder
        self.files = FileWorkers()
        self.log = KernelLog.open(self.roots)
        self.log.start()
        tree = SysfsTree(roots=self.roots, log=LogEvidence(self.log))
        self.board = HotplugBoard(tree=tree, source=KernelUevents(), files=self.files)
        self.board.start()
        self.state = StateStore(self.roots.state)
        self.events = EventLog(self.state)
        self.records = FakeRecords()
        self.operations = self.new_operations()

    def new_operations(self) -> StorageOperations:
        freezes = Freezes(
            files=self.files,
            mounts=MountTable(self.roots),
            state=self.state,
            events=self.events,
        )
        return StorageOperations(
            storages=self.records,
            files=self.files,
            board=self.board,
            freezes=freezes,
            log=self.log,
            patience=0.0,
        )

    def know(self, storage_id: str, point: Path, **more: Any) -> None:
        """Enter what is mounted there."""
        entries = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
        top = next(entry for entry in reversed(entries) if entry.mount_point == str(point))
        self.records.add(storage_id, top.mount_id, **more)
        record = self.records.table[storage_id]
        place = MountPoint(path=str(point), own=True)
        self.records.table[storage_id] = replace(record, point=place)

    async def close(self) -> None:
        await self.operations.close()
        self.board.close()
        self.log.close()
        await self.files.close()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path)
    yield made
    await made.close()


class Disk:
    """A file system of a type on a loop device, mounted as the storage `data`."""

    def __init__(self, lab: Lab, fs_type: str, image: Path, device: str) -> None:
        self.lab = lab
        self.fs_type = fs_type
        self.image = image
        self.device = device
        self.size = image.stat().st_size
        self.point = lab.folder / "data"
        self.point.mkdir()

    def mount(self, data: str = "", flags: MountFlag = _NO_FLAGS, **more: Any) -> None:
        mount(self.device, str(self.point), self.fs_type, flags, data)
        self.lab.know("data", self.point, **more)

    def unmount(self) -> None:
        unmount(str(self.point))

    def double(self) -> None:
        """What the host does, and the driver then tells."""
        self.size *= 2
        os.truncate(self.image, self.size)
        with open(self.device, "rb") as loop:
            fcntl.ioctl(loop, _LOOP_SET_CAPACITY)

    def trouble(self, why: str) -> None:
        """An error that ext4 finds (CONFIG_EXT4_DEBUG is not needed for it)."""
        Path("/sys/fs/ext4", Path(self.device).name, "trigger_fs_error").write_text(why)

    def clean_up(self) -> None:
        """Whatever a test has left: a frozen file system would outlive its unmount."""
        with contextlib.suppress(OSError):
            fd = os.open(self.point, os.O_RDONLY)
            try:
                fcntl.ioctl(fd, 0xC0045878, bytearray(4))
            finally:
                os.close(fd)
        with contextlib.suppress(OSError):
            unmount(str(self.point), UnmountFlag.DETACH)


@pytest.fixture
def fs_type() -> str:
    return "ext4"


@pytest.fixture
def disk(lab: Lab, fs_type: str) -> Iterator[Disk]:
    """Not mounted yet."""
    with made(lab, fs_type, lab.folder / "disk.img", SIZES[fs_type]) as disk:
        yield disk


@contextlib.contextmanager
def made(lab: Lab, fs_type: str, image: Path, size: int) -> Iterator[Disk]:
    program = MAKE[fs_type]
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not on this machine")
    modules.load("loop")
    modules.load(fs_type)
    if not loops.CONTROL.exists():
        pytest.skip("this machine's kernel has no loop devices")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([*program, str(image)], check=True)
    with loops.attached(image) as device:
        disk = Disk(lab, fs_type, image, device)
        try:
            yield disk
        finally:
            disk.clean_up()


def needs_right_to_resize(fs_type: str) -> None:
    """Of the three ext4 alone wants CAP_SYS_RESOURCE (ext4_resize_begin)."""
    effective = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
    if fs_type == "ext4" and not int(effective, 16) >> 24 & 1:
        pytest.skip("this machine's root may not resize an ext4: it lacks CAP_SYS_RESOURCE")


def has_fuse() -> bool:
    return Path(FUSE).exists()


def soon() -> Deadline:
    return Deadline.after(60.0)


every_type = pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])


@every_type
async def test_it_grows_online_and_what_is_in_it_stays(lab: Lab, disk: Disk, fs_type: str) -> None:
    needs_right_to_resize(fs_type)
    disk.mount()
    (disk.point / "kept").write_text("kept")
    disk.double()
    resized = await lab.operations.resize("data", soon())
    assert resized.device_size == disk.size
    # All three use nearly all of what is new for data.
    assert resized.size - resized.before > disk.size / 2 * 0.9
    assert (await lab.operations.stats("data", soon())).size == resized.size
    assert (disk.point / "kept").read_text() == "kept"
    disk.unmount()
    disk.mount()
    assert (disk.point / "kept").read_text() == "kept"


@every_type
async def test_a_second_time_there_is_nothing_to_grow(lab: Lab, disk: Disk, fs_type: str) -> None:
    needs_right_to_resize(fs_type)
    disk.mount()
    first = await lab.operations.resize("data", soon())
    assert (first.size, first.device_size) == (first.before, disk.size)
    disk.double()
    grown = await lab.operations.resize("data", soon())
    again = await lab.operations.resize("data", soon())
    assert (again.before, again.size) == (grown.size, grown.size)


@pytest.mark.parametrize("fs_type", ["xfs"])
async def test_a_bigger_disk_that_is_told_while_it_is_waited_for(lab: Lab, disk: Disk) -> None:
    """The loop driver tells it as virtio-blk does: `change` with RESIZE=1."""
    lab.operations._growing._patience = 60.0
    disk.mount()
    asking = asyncio.ensure_future(lab.operations.resize("data", soon()))
    await until(lambda: lab.records.visits)
    disk.double()
    resized = await asking
    assert resized.device_size == disk.size
    assert resized.size > resized.before


async def test_a_read_only_mount_does_not_grow(lab: Lab, disk: Disk) -> None:
    disk.mount(flags=MountFlag.RDONLY, read_only=True)
    disk.double()
    await refused(lambda: lab.operations.resize("data", soon()), Reason.RESIZE_REFUSED)


@every_type
async def test_trimmed_blocks_go_back_to_the_host(lab: Lab, disk: Disk) -> None:
    disk.mount()
    file = disk.point / "big"
    file.write_bytes(bytes(TRIMMED))
    os.sync()
    file.unlink()
    os.sync()
    before = disk.image.stat().st_blocks
    assert before * 512 > TRIMMED
    assert await lab.operations.trim("data", soon()) >= TRIMMED
    assert disk.image.stat().st_blocks * 512 < before * 512 - TRIMMED * 3 // 4


async def test_a_disk_without_discards(lab: Lab) -> None:
    """ramfs can't punch holes, so a loop device on a file of it takes no discards."""
    images = lab.folder / "ramfs"
    images.mkdir()
    mount("ramfs", str(images), "ramfs")
    try:
        with made(lab, "ext4", images / "disk.img", 16 * MIB) as disk:
            disk.mount()
            error = await refused(lambda: lab.operations.trim("data", soon()))
    finally:
        unmount(str(images), UnmountFlag.DETACH)
    assert error.fields["errno"] == "ENOTSUP"
    assert "discard=unmap" in (error.hint or "")


class Writer:
    """A workload that writes one file, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.done = False

    def _write(self) -> None:
        self._path.write_text("written")
        self.done = True

    def start(self) -> None:
        self._thread.start()

    @property
    def waits(self) -> bool:
        """In the kernel, uninterruptibly (sb_start_write)."""
        number = self._thread.native_id
        line = Path(f"/proc/self/task/{number}/stat").read_text() if number else ""
        return line.rpartition(")")[2].split()[:1] == ["D"]

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


@every_type
async def test_writers_wait_while_it_is_frozen(lab: Lab, disk: Disk) -> None:
    disk.mount()
    await lab.operations.freeze("data", 100.0, soon())
    writer = Writer(disk.point / "file")
    writer.start()
    await until(lambda: writer.waits)
    assert not writer.done
    assert (await lab.operations.stats("data", soon())).health is Health.GOOD
    await lab.operations.thaw("data", soon())
    writer.join()
    assert (disk.point / "file").read_text() == "written"


async def test_a_freeze_ends_by_itself(lab: Lab, disk: Disk) -> None:
    disk.mount()
    await lab.operations.freeze("data", 0.3, soon())
    writer = Writer(disk.point / "file")
    writer.start()
    await until(lambda: writer.done)
    await until(lambda: not lab.operations.frozen("data"))
    writer.join()
    assert [event.kind for event in lab.events._ring] == ["storage-frozen", "storage-thawed"]


async def test_freezing_twice_is_thawed_once(lab: Lab, disk: Disk) -> None:
    disk.mount()
    await lab.operations.freeze("data", 100.0, soon())
    await lab.operations.freeze("data", 200.0, soon())
    await lab.operations.thaw("data", soon())
    (disk.point / "file").write_text("free")
    await lab.operations.thaw("data", soon())


async def test_a_new_agent_ends_the_freeze_of_the_old_one(lab: Lab, disk: Disk) -> None:
    disk.mount()
    await lab.operations.freeze("data", 0.5, soon())
    await lab.operations.close()
    writer = Writer(disk.point / "file")
    writer.start()
    await until(lambda: writer.waits)
    lab.operations = lab.new_operations()
    await lab.operations.restore()
    await until(lambda: writer.done)
    writer.join()


async def test_a_bind_shares_the_freeze(lab: Lab, disk: Disk) -> None:
    disk.mount()
    (disk.point / "part").mkdir()
    bind = lab.folder / "bind"
    bind.mkdir()
    mount(str(disk.point / "part"), str(bind), None, MountFlag.BIND)
    try:
        lab.know("part", bind)
        await lab.operations.freeze("data", 100.0, soon())
        assert lab.operations.frozen("part")
        await lab.operations.freeze("part", 100.0, soon())
        await lab.operations.thaw("data", soon())
        writer = Writer(bind / "file")
        writer.start()
        await until(lambda: writer.waits)
        await lab.operations.thaw("part", soon())
        writer.join()
    finally:
        unmount(str(bind), UnmountFlag.DETACH)


async def test_it_can_be_mounted_again_after_it_was_frozen(lab: Lab, disk: Disk) -> None:
    disk.mount()
    await lab.operations.freeze("data", 100.0, soon())
    await lab.operations.before_unmount("data", soon())
    disk.unmount()
    disk.mount()
    (disk.point / "file").write_text("written")


async def test_somebody_elses_freeze_is_told(lab: Lab, disk: Disk) -> None:
    disk.mount()
    await lab.files.freeze(str(disk.point), lab.records.record("data").mount_id, soon())
    error = await refused(lambda: lab.operations.freeze("data", 100.0, soon()), Reason.WRONG_STATE)
    assert "somebody else" in error.message
    await lab.operations.thaw("data", soon())
    (disk.point / "file").write_text("written")


async def test_the_file_system_under_the_agent_is_refused(lab: Lab, tmp_path: Path) -> None:
    """The run directory of this test is on it."""
    bind = tmp_path / "bind"
    bind.mkdir()
    lab.roots.run.mkdir(parents=True)
    mount(str(tmp_path), str(bind), None, MountFlag.BIND)
    try:
        lab.know("data", bind)
        error = await refused(
            lambda: lab.operations.freeze("data", 1.0, soon()), Reason.WRONG_STATE
        )
        assert "the agent" in error.message
    finally:
        unmount(str(bind))


@pytest.fixture
def tmpfs(lab: Lab) -> Iterator[Path]:
    """A tmpfs, mounted as the storage `data`."""
    point = lab.folder / "tmpfs"
    point.mkdir()
    mount("tmpfs", str(point), "tmpfs", data="size=64m,mode=755")
    try:
        lab.know("data", point)
        yield point
    finally:
        unmount(str(point), UnmountFlag.DETACH)


async def test_memory_is_neither_frozen_nor_trimmed_nor_resized(lab: Lab, tmpfs: Path) -> None:
    await refused(lambda: lab.operations.freeze("data", 1.0, soon()))
    await refused(lambda: lab.operations.trim("data", soon()))
    await refused(lambda: lab.operations.resize("data", soon()), Reason.RESIZE_REFUSED)
    await lab.operations.thaw("data", soon())


async def test_the_figures_are_those_that_df_would_show(lab: Lab, tmpfs: Path) -> None:
    (tmpfs / "file").write_bytes(bytes(8 * MIB))
    told = await lab.operations.stats("data", soon())
    assert (told.health, told.size) == (Health.GOOD, 64 * MIB)
    assert told.used == 8 * MIB
    assert told.available == 56 * MIB
    assert told.inodes_used == 2


async def test_what_is_reserved_for_root_is_not_available(lab: Lab, disk: Disk) -> None:
    """mkfs.ext4 reserves 5 %."""
    disk.mount()
    told = await lab.operations.stats("data", soon())
    assert told.used + told.available < told.size
    assert told.size - told.used - told.available >= disk.size // 25


async def test_an_error_makes_an_ext4_read_only(lab: Lab, disk: Disk) -> None:
    disk.mount("errors=remount-ro")
    assert (await lab.operations.stats("data", soon())).health is Health.GOOD
    disk.trouble("by a test")
    told = await lab.operations.stats("data", soon())
    assert told.health is Health.READ_ONLY
    assert "by a test" in told.detail
    assert told.size > disk.size // 2
    disk.unmount()


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
async def test_a_file_system_that_was_shut_down(lab: Lab, disk: Disk) -> None:
    """As after a write error in its journal."""
    disk.mount()
    fd = os.open(disk.point, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("=I", 2))
    finally:
        os.close(fd)
    told = await lab.operations.stats("data", soon())
    # xfs answers statfs all the same, ext4 does so before 6.14.
    assert told.health in (Health.READ_ONLY, Health.STALLED)
    assert told.detail


async def test_a_server_that_does_not_answer_is_stalled(lab: Lab) -> None:
    """A FUSE mount whose server never says a word."""
    modules.load("fuse")
    if not has_fuse():
        pytest.skip("this machine's kernel has no FUSE")
    point = lab.folder / "served"
    point.mkdir()
    server = os.open(FUSE, os.O_RDWR)
    try:
        data = f"fd={server},rootmode=40000,user_id=0,group_id=0"
        mount("nothing", str(point), "fuse", MountFlag.NODEV | MountFlag.NOSUID, data)
        lab.know("data", point)
        told = await lab.operations.stats("data", Deadline.after(0.2))
        assert (told.health, told.size) == (Health.STALLED, 0)
    finally:
        unmount(str(point), UnmountFlag.DETACH)
        os.close(server)


def look(path: Path) -> tuple[int, int]:
    """Group and permission bits, of a link its own."""
    status = path.lstat()
    return status.st_gid, stat.S_IMODE(status.st_mode)


async def give(lab: Lab, tree: Path, *, on_mismatch_only: bool = False) -> int:
    return await lab.files.apply_fs_group(
        str(tree), GROUP, soon(), read_only=False, on_mismatch_only=on_mismatch_only
    )


def make_as_member(directory: Path, name: str) -> None:
    """A container's process with the group among its own: a file under umask 022."""
    subprocess.run(
        ["/bin/sh", "-c", f": > {name}"],
        cwd=directory,
        user=1001,
        group=1001,
        extra_groups=[GROUP],
        umask=0o022,
        check=True,
    )


async def test_what_a_member_makes_belongs_to_the_group(lab: Lab, tmpfs: Path) -> None:
    """An ephemeral volume with an fsGroup, used by one container after another."""
    assert await give(lab, tmpfs) == 1
    gid, mode = look(tmpfs)
    assert gid == GROUP
    assert mode & 0o2070 == 0o2070
    make_as_member(tmpfs, "first")
    assert look(tmpfs / "first") == (GROUP, 0o644)
    assert (tmpfs / "first").stat().st_uid == 1001
    (tmpfs / "first").chmod(0o600)
    await give(lab, tmpfs, on_mismatch_only=True)
    assert look(tmpfs / "first") == (GROUP, 0o600)


@every_type
async def test_a_tree_on_a_disk(lab: Lab, disk: Disk) -> None:
    disk.mount()
    (disk.point / "a/b").mkdir(parents=True)
    (disk.point / "a/b/file").write_text("x")
    (disk.point / "a/link").symlink_to("b/file")
    await give(lab, disk.point)
    assert look(disk.point / "a/b") == (GROUP, 0o2775)
    assert look(disk.point / "a/b/file") == (GROUP, 0o664)
    assert look(disk.point / "a/link")[0] == GROUP
    make_as_member(disk.point / "a/b", "new")
    assert look(disk.point / "a/b/new")[0] == GROUP


async def test_set_user_id_stays_and_devices_are_left_alone(lab: Lab, tmpfs: Path) -> None:
    """chown(2) takes set-user-id away: the bits come after the group."""
    program = tmpfs / "program"
    program.touch()
    program.chmod(0o4755)
    os.mknod(tmpfs / "disk", 0o600 | stat.S_IFBLK, os.makedev(7, 0))
    await give(lab, tmpfs)
    assert look(program) == (GROUP, 0o4775)
    assert look(tmpfs / "disk") == (0, 0o600)


async def test_no_mount_is_crossed(lab: Lab, tmpfs: Path) -> None:
    """Neither to another file system nor, by a bind, to another place of the same one."""
    outside = tmpfs / "outside"
    tree = tmpfs / "tree"
    for each in (outside, tree / "other", tree / "same"):
        each.mkdir(parents=True)
    (outside / "file").touch()
    (tree / "single").touch()
    mount("tmpfs", str(tree / "other"), "tmpfs", data="mode=700")
    mount(str(outside), str(tree / "same"), None, MountFlag.BIND)
    mount(str(outside / "file"), str(tree / "single"), None, MountFlag.BIND)
    try:
        before = look(outside), look(outside / "file"), look(tree / "other")
        await give(lab, tree)
        assert (look(outside), look(outside / "file"), look(tree / "other")) == before
        assert look(tree)[0] == GROUP
    finally:
        for name in ("single", "same", "other"):
            unmount(str(tree / name), UnmountFlag.DETACH)


async def test_many_files(lab: Lab, tmpfs: Path) -> None:
    """In one call, whose answer is a number."""
    count = often(20_000)
    for folder in range(10):
        (tmpfs / f"d{folder}").mkdir()
        for number in range(count // 10):
            os.close(os.open(tmpfs / f"d{folder}/{number}", os.O_CREAT | os.O_WRONLY, 0o600))
    assert await give(lab, tmpfs) == count + 11
    assert await give(lab, tmpfs) == 0


async def test_a_tree_that_changes_under_the_walk_leads_nowhere(
    lab: Lab, tmp_path: Path, tmpfs: Path
) -> None:
    """A container swaps a directory for a link to the outside, again and again."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    (secret / "key").chmod(0o600)
    before = look(secret), look(secret / "key")
    swapped = tmpfs / "swapped"
    swapped.mkdir()
    (swapped / "key").write_text("bait")
    over = threading.Event()
    swapper = threading.Thread(target=_swap, args=(swapped, secret, over))
    swapper.start()
    try:
        for _ in range(often(100)):
            with contextlib.suppress(OSError):  # ESTALE: it was moved while we were in it
                await give(lab, tmpfs)
    finally:
        over.set()
        swapper.join()
    assert (look(secret), look(secret / "key")) == before


def _swap(place: Path, target: Path, over: threading.Event) -> None:
    aside = place.with_name("aside")
    while not over.is_set():
        place.rename(aside)
        place.symlink_to(target)
        place.unlink()
        aside.rename(place)


async def refused(
    call: Callable[[], Awaitable[object]], reason: Reason = Reason.KERNEL_REFUSED
) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await call()
    assert caught.value.reason is reason, caught.value
    return caught.value

"""Mounts of every kind with the real kernel, by the new calls and by the old ones."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from agent.core.deadlines import Deadline
from agent.core.fileops import FileWorkers
from agent.linux import mounting
from agent.linux.mountapi import Kernel
from agent.linux.mountcalls import (
    BindMount,
    FileRefusal,
    FsMount,
    Location,
    MountCall,
    MountOption,
    OverlayMount,
)
from agent.linux.mounting import MountEntry, MountFlag, UnmountFlag
from agent.linux.mountmaking import make
from tests.fakes.mount_kernel import BeforeSingleLayers, FailingKernel, WithoutMountApi
from tests.privileged import loops

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts"),
]

REPOSITORY = Path(__file__).parents[2]
MIB = 1 << 20
NONE = MountFlag(0)
KERNELS = {"new": Kernel(), "middle": BeforeSingleLayers(), "old": WithoutMountApi()}


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return KERNELS[request.param]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of its own that shares no mount with anybody; `target` in it is empty."""
    path = tmp_path / "room"
    path.mkdir()
    mounting.mount("room", str(path), "tmpfs")
    mounting.mount(None, str(path), None, MountFlag.PRIVATE)
    (path / "target").mkdir()
    yield path
    for entry in reversed(Kernel().mounts()):
        if Path(entry.mount_point).is_relative_to(path):
            mounting.unmount(entry.mount_point, UnmountFlag.DETACH)


def at(path: Path) -> MountEntry:
    """The topmost mount at a path."""
    return next(one for one in reversed(Kernel().mounts()) if one.mount_point == str(path))


def has_mount(path: Path) -> bool:
    return any(one.mount_point == str(path) for one in Kernel().mounts())


def words(path: Path) -> set[str]:
    return set(at(path).options.split(","))


def tmpfs(*options: str, flags: MountFlag = NONE, source: str = "memory") -> FsMount:
    pairs = [option.partition("=") for option in options]
    made = tuple(
        MountOption(key=key, value=value if equals else None) for key, equals, value in pairs
    )
    return FsMount(fs_type="tmpfs", source=source, options=made, flags=flags)


def bind(source: Path, *, recursive: bool = False, flags: MountFlag = NONE) -> BindMount:
    return BindMount(source=Location(root=str(source)), recursive=recursive, flags=flags)


def refused(call: MountCall, target: Path, kernel: Kernel) -> FileRefusal:
    before = Kernel().mounts(), descriptors()
    with pytest.raises(FileRefusal) as caught:
        make(call, str(target), kernel)
    assert (Kernel().mounts(), descriptors()) == before
    return caught.value


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def write_error(path: Path) -> int:
    """The errno of writing a file, 0 for none."""
    try:
        path.write_text("x")
    except OSError as error:
        return error.errno or 0
    return 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (NONE, {"rw", "relatime"}),
        (MountFlag.RDONLY, {"ro", "relatime"}),
        (
            MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC,
            {"rw", "nosuid", "nodev", "noexec", "relatime"},
        ),
        (MountFlag.NOATIME | MountFlag.NODIRATIME, {"rw", "noatime", "nodiratime"}),
        (MountFlag.STRICTATIME, {"rw"}),
        (MountFlag.STRICTATIME | MountFlag.NOATIME, {"rw"}),
        (MountFlag.RELATIME | MountFlag.NOSYMFOLLOW, {"rw", "relatime", "nosymfollow"}),
    ],
)
def test_flags_of_the_mount(
    room: Path, kernel: Kernel, flags: MountFlag, expected: set[str]
) -> None:
    make(tmpfs("size=1m", "mode=700", flags=flags), str(room / "target"), kernel)
    entry = at(room / "target")
    assert words(room / "target") == expected
    assert (entry.fs_type, entry.source) == ("tmpfs", "memory")
    assert "size=1024k" in entry.super_options.split(",")
    assert (room / "target").stat().st_mode & 0o7777 == 0o700


def test_flags_of_the_file_system(room: Path, kernel: Kernel) -> None:
    flags = MountFlag.RDONLY | MountFlag.SYNCHRONOUS | MountFlag.DIRSYNC | MountFlag.LAZYTIME
    make(tmpfs(flags=flags), str(room / "target"), kernel)
    found = set(at(room / "target").super_options.split(","))
    assert {"ro", "sync", "dirsync", "lazytime"} <= found
    make(tmpfs(flags=MountFlag.SILENT | MountFlag.I_VERSION), str(room / "target"), kernel)
    assert words(room / "target") == {"rw", "relatime"}


def test_the_file_system_says_what_it_does_not_like(room: Path) -> None:
    refusal = refused(tmpfs("size=much"), room / "target", Kernel())
    assert (refusal.errno, refusal.log) == (errno.EINVAL, ("tmpfs: Bad value for 'size'",))
    refusal = refused(tmpfs("no_such_option"), room / "target", Kernel())
    assert refusal.errno == errno.EINVAL
    assert refusal.log == ("tmpfs: Unknown parameter 'no_such_option'",)
    assert "fsconfig(no_such_option)" in str(refusal)


def test_refusals_by_the_old_call_have_the_same_errno(room: Path) -> None:
    old = WithoutMountApi()
    for call in (tmpfs("size=much"), tmpfs("no_such_option")):
        assert refused(call, room / "target", old).errno == errno.EINVAL


def test_a_file_system_or_disk_that_is_not_there(room: Path, kernel: Kernel) -> None:
    nowhere = FsMount(fs_type="no_such_type", source="x")
    assert refused(nowhere, room / "target", kernel).errno == errno.ENODEV
    gone = FsMount(fs_type="ext4", source="/dev/no-such-disk")
    assert refused(gone, room / "target", kernel).errno == errno.ENOENT
    file = FsMount(fs_type="ext4", source=str(room))
    assert refused(file, room / "target", kernel).errno == errno.ENOTBLK


def test_the_target_is_where_it_says(room: Path, kernel: Kernel) -> None:
    """A link on the way could lead to any directory of the guest."""
    (room / "way").symlink_to(".")
    (room / "end").symlink_to("target")
    for path in ("way/target", "end"):
        assert refused(tmpfs(), room / path, kernel).errno == errno.ELOOP
    missing = refused(tmpfs(), room / "missing", kernel)
    assert (missing.errno, missing.filename) == (errno.ENOENT, str(room / "missing"))
    (room / "file").touch()
    assert refused(tmpfs(), room / "file", kernel).errno == errno.ENOTDIR


def padded(size: int) -> tuple[str, ...]:
    """Options of tmpfs that are this long as one text."""
    count, rest = divmod(size - len("mode=755"), len(",size=1m"))
    return (f"mode={'0' * rest}755", *["size=1m"] * count)


@pytest.mark.parametrize("size", [4094, 4095, 4096, 5468])
def test_options_of_a_page_and_more(room: Path, kernel: Kernel, size: int) -> None:
    """mount(2) cuts what is over a page, and the answer used to be ENOENT."""
    call = tmpfs(*padded(size))
    assert len(",".join(map(str, call.options))) == size
    if size > 4095 and isinstance(kernel, WithoutMountApi):
        refusal = refused(call, room / "target", kernel)
        assert refusal.errno == errno.EINVAL
        assert f"options too long: {size} bytes" in str(refusal)
    else:
        make(call, str(room / "target"), kernel)
        assert "size=1024k" in at(room / "target").super_options.split(",")


def test_a_string_longer_than_fsconfig_takes(room: Path, kernel: Kernel) -> None:
    make(tmpfs("size=1m", source="s" * 300), str(room / "target"), kernel)
    assert at(room / "target").source == "s" * 300
    make(tmpfs(f"mode={'0' * 300}711"), str(room / "target"), kernel)
    assert (room / "target").stat().st_mode & 0o7777 == 0o711


def test_a_shared_parent_makes_it_shared(room: Path, kernel: Kernel) -> None:
    make(tmpfs(), str(room / "target"), kernel)
    assert at(room / "target").tags == ()
    mounting.unmount(str(room / "target"))
    mounting.mount(None, str(room), None, MountFlag.SHARED)
    make(tmpfs(), str(room / "target"), kernel)
    assert at(room / "target").tags[0].startswith("shared:")


def test_a_read_only_bind_is_read_only(room: Path, kernel: Kernel) -> None:
    """One mount(2) with MS_BIND|MS_RDONLY would still be writable."""
    (room / "source").mkdir()
    make(bind(room / "source", flags=MountFlag.RDONLY), str(room / "target"), kernel)
    assert write_error(room / "target/file") == errno.EROFS
    assert write_error(room / "source/file") == 0
    assert (room / "target/file").read_text() == "x"
    assert at(room / "target").root == "/source"


def test_a_bind_without_flags_can_be_written(room: Path, kernel: Kernel) -> None:
    (room / "source").mkdir()
    make(bind(room / "source"), str(room / "target"), kernel)
    assert write_error(room / "target/file") == 0
    assert (room / "source/file").exists()


def test_recursive_means_the_flags_too(room: Path, kernel: Kernel) -> None:
    (room / "source/inner").mkdir(parents=True)
    make(tmpfs(flags=MountFlag.NOSUID), str(room / "source/inner"), Kernel())
    (room / "source/inner/deep").mkdir()
    make(tmpfs(), str(room / "source/inner/deep"), Kernel())
    flags = MountFlag.RDONLY | MountFlag.NODEV | MountFlag.NOATIME
    make(bind(room / "source", recursive=True, flags=flags), str(room / "target"), kernel)
    for path in ("target", "target/inner", "target/inner/deep"):
        assert write_error(room / path / "file") == errno.EROFS, path
        assert {"ro", "nodev", "noatime"} <= words(room / path), path
    assert "nosuid" in words(room / "target/inner")
    assert write_error(room / "source/inner/deep/file") == 0


def test_a_plain_bind_shows_nothing_that_is_mounted_below(room: Path, kernel: Kernel) -> None:
    (room / "source/inner").mkdir(parents=True)
    make(tmpfs(), str(room / "source/inner"), Kernel())
    (room / "source/inner/file").touch()
    make(bind(room / "source", flags=MountFlag.RDONLY), str(room / "target"), kernel)
    assert os.listdir(room / "target/inner") == []
    assert not has_mount(room / "target/inner")


def test_a_file_is_bound_to_a_file(room: Path, kernel: Kernel) -> None:
    (room / "file").write_text("kept")
    (room / "place").touch()
    make(bind(room / "file", flags=MountFlag.RDONLY), str(room / "place"), kernel)
    assert (room / "place").read_text() == "kept"
    assert write_error(room / "place") == errno.EROFS
    assert refused(bind(room / "file"), room / "target", kernel).errno == errno.ENOTDIR


def test_flags_of_the_source_stay(room: Path, kernel: Kernel) -> None:
    """A bind without `ro` of a read-only source, and one that adds to what the source has."""
    (room / "source").mkdir()
    strict = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC | MountFlag.NOATIME
    make(tmpfs(flags=strict | MountFlag.RDONLY), str(room / "source"), Kernel())
    make(bind(room / "source"), str(room / "target"), kernel)
    expected = {"ro", "nosuid", "nodev", "noexec", "noatime"}
    assert words(room / "target") == expected
    mounting.unmount(str(room / "target"))
    flags = MountFlag.NODIRATIME | MountFlag.STRICTATIME
    make(bind(room / "source", flags=flags), str(room / "target"), kernel)
    assert words(room / "target") == expected | {"nodiratime"}


_LOCKED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from agent.linux.libc import libc
from agent.linux.mountapi import Kernel
from agent.linux.mountcalls import BindMount, Location
from agent.linux.mounting import MountFlag
from agent.linux.mountmaking import make
from tests.fakes.mount_kernel import BeforeSingleLayers, WithoutMountApi
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
assert libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0
Path("/proc/self/uid_map").write_text("0 0 1")
room = sys.argv[2]
kernel = {"new": Kernel, "middle": BeforeSingleLayers, "old": WithoutMountApi}[sys.argv[3]]()
source = Location(root=room + "/source")
make(BindMount(source=source, flags=MountFlag.RDONLY), room + "/target", kernel)
found = [one for one in kernel.mounts() if one.mount_point == room + "/target"]
print(found[-1].options)
"""


@pytest.mark.parametrize("name", KERNELS)
def test_locked_flags_are_kept(room: Path, name: str) -> None:
    """In a user namespace the flags of inherited mounts are locked: clearing one is EPERM."""
    if not Path("/proc/self/ns/user").exists():
        pytest.skip("this kernel has no user namespaces")
    (room / "source").mkdir()
    flags = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC
    make(tmpfs(flags=flags), str(room / "source"), Kernel())
    argv = [sys.executable, "-c", _LOCKED, str(REPOSITORY), str(room), name]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.strip().split(",")) == {"ro", "nosuid", "nodev", "noexec", "relatime"}


def test_what_is_mounted_below_later_is_no_way_to_write(room: Path, kernel: Kernel) -> None:
    """With shared mounts it would come into the read-only tree, writable."""
    mounting.mount(None, str(room), None, MountFlag.SHARED)
    (room / "source/inner").mkdir(parents=True)
    read_only = bind(room / "source", recursive=True, flags=MountFlag.RDONLY)
    make(read_only, str(room / "target"), kernel)
    make(tmpfs(), str(room / "source/inner"), Kernel())
    assert not has_mount(room / "target/inner")
    assert write_error(room / "target/inner/file") == errno.EROFS


def test_links_in_a_source_stay_inside_its_root(room: Path, kernel: Kernel) -> None:
    (room / "root/run/data").mkdir(parents=True)
    (room / "root/run/data/inside").touch()
    (room / "root/var").mkdir()
    (room / "root/var/run").symlink_to("/run")
    (room / "root/up").symlink_to("../../../..")
    root = str(room / "root")
    make(BindMount(source=Location(root=root, path="var/run/data")), str(room / "target"), kernel)
    assert os.listdir(room / "target") == ["inside"]
    mounting.unmount(str(room / "target"))
    make(BindMount(source=Location(root=root, path="up")), str(room / "target"), kernel)
    assert sorted(os.listdir(room / "target")) == ["run", "up", "var"]
    mounting.unmount(str(room / "target"))
    strict = BindMount(source=Location(root=root, path="var/run", links=False))
    assert refused(strict, room / "target", kernel).errno == errno.ELOOP
    proc = BindMount(source=Location(root="/proc", path="self/root"))
    assert refused(proc, room / "target", kernel).errno == errno.ELOOP


ODD = ("a,b", "c:d", "back\\slash", "with space", "new\nline", "tail,", ":head", "q" * 250)


def layers(room: Path, count: int) -> tuple[Location, ...]:
    """Directories under one long parent, some with names that option strings trip over."""
    parent = room / ("p" * 200)
    found = []
    for number in range(count):
        odd = ODD[number] if number < len(ODD) else ""
        path = parent / f"{number}" / (odd or "layer")
        path.mkdir(parents=True)
        (path / "same").write_text(str(number))
        (path / f"only{number}").touch()
        # Half as roots of their own, half below one.
        whole = Location(root=str(path))
        found.append(
            whole if number % 2 else Location(root=str(room), path=str(path.relative_to(room)))
        )
    return tuple(found)


@pytest.mark.parametrize("count", [1, 2, 8, 60, 400, 499])
def test_layers(room: Path, kernel: Kernel, count: int) -> None:
    make(OverlayMount(lowers=layers(room, count)), str(room / "target"), kernel)
    names = {"same"} | {f"only{number}" for number in range(count)}
    assert set(os.listdir(room / "target")) == names
    assert (room / "target/same").read_text() == "0"
    assert write_error(room / "target/new") == errno.EROFS
    assert (at(room / "target").fs_type, at(room / "target").source) == ("overlay", "overlay")


@pytest.mark.parametrize("count", [1, 400])
def test_layers_with_one_that_is_written(room: Path, kernel: Kernel, count: int) -> None:
    top = Location(root=str(room), path="a,b:c\\d")
    (room / "a,b:c\\d/upper").mkdir(parents=True)
    (room / "a,b:c\\d/work").mkdir()
    call = OverlayMount(
        lowers=layers(room, count),
        upper=Location(root=top.root, path=top.path + "/upper"),
        work=Location(root=str(room / top.path / "work")),
        flags=MountFlag.NODEV,
    )
    make(call, str(room / "target"), kernel)
    (room / "target/same").write_text("new")
    assert (room / "a,b:c\\d/upper/same").read_text() == "new"
    (room / "target/only0").unlink()
    assert not (room / "target/only0").exists()
    assert "nodev" in words(room / "target")


def test_a_layer_is_where_its_path_led_first(room: Path, kernel: Kernel) -> None:
    """An absolute link means the storage's own root, not the guest's."""
    (room / "storage/etc").mkdir(parents=True)
    (room / "storage/etc/mine").touch()
    (room / "storage/layer").symlink_to("/etc")
    (room / "other").mkdir()
    lowers = (
        Location(root=str(room / "storage"), path="layer"),
        Location(root=str(room / "other")),
    )
    make(OverlayMount(lowers=lowers), str(room / "target"), kernel)
    assert os.listdir(room / "target") == ["mine"]


def test_layers_that_are_no_directories(room: Path, kernel: Kernel) -> None:
    (room / "file").touch()
    (room / "dir").mkdir()
    directory = Location(root=str(room / "dir"))
    for path, number in (("file", errno.ENOTDIR), ("gone", errno.ENOENT)):
        call = OverlayMount(lowers=(directory, Location(root=str(room), path=path)))
        assert refused(call, room / "target", kernel).errno == number, path


def test_options_of_overlays(room: Path, kernel: Kernel) -> None:
    good = MountOption(key="metacopy", value="off")
    two = layers(room, 2)
    make(OverlayMount(lowers=two, options=(good,)), str(room / "target"), kernel)
    mounting.unmount(str(room / "target"))
    bad = OverlayMount(lowers=two, options=(MountOption(key="no_such_option"),))
    assert refused(bad, room / "target", kernel).errno == errno.EINVAL
    long = OverlayMount(lowers=two, options=(MountOption(key="x", value="y" * 5000),))
    refusal = refused(long, room / "target", kernel)
    assert "options too long" in str(refusal)


def calls(room: Path) -> dict[str, MountCall]:
    """One of each kind, with everything that makes calls of its own."""
    (room / "source/inner").mkdir(parents=True)
    make(tmpfs(), str(room / "source/inner"), Kernel())
    for name in ("upper", "work"):
        (room / name).mkdir()
    flags = MountFlag.RDONLY | MountFlag.NOEXEC
    return {
        "fs": tmpfs("size=1m", "huge=never", flags=flags),
        "bind": bind(room / "source", recursive=True, flags=flags),
        "overlay": OverlayMount(
            lowers=layers(room, 3),
            upper=Location(root=str(room), path="upper"),
            work=Location(root=str(room), path="work"),
            options=(MountOption(key="metacopy", value="off"),),
        ),
    }


@pytest.mark.parametrize("kind", ["fs", "bind", "overlay"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EBUSY])
def test_whatever_call_fails_nothing_is_left(
    room: Path, kernel: Kernel, kind: str, number: int
) -> None:
    """The n-th call fails, for every n."""
    call, target = calls(room)[kind], str(room / "target")
    counted = FailingKernel(kernel)
    make(call, target, cast(Kernel, counted))
    mounting.unmount(target, UnmountFlag.DETACH)
    before = Kernel().mounts(), descriptors(), os.getcwd()
    for fails, name in enumerate(counted.names):
        failing = cast(Kernel, FailingKernel(kernel, fails=fails, number=number))
        if name == "fchdir" and fails == len(counted.names) - 1:
            # The way back from the descriptors' directory: the mount is there by then.
            make(call, target, failing)
            mounting.unmount(target)
            os.chdir(before[2])
            continue
        with pytest.raises(FileRefusal) as caught:
            make(call, target, failing)
        assert caught.value.errno == number, name
        assert (Kernel().mounts(), descriptors(), os.getcwd()) == before, name


@pytest.mark.parametrize("kind", ["fs", "bind", "overlay"])
def test_whatever_call_is_missing_there_is_one_mount_or_none(room: Path, kind: str) -> None:
    """A kernel, or a filter of system calls, may have some of the new calls only."""
    call, target = calls(room)[kind], room / "target"
    counted = FailingKernel(Kernel())
    make(call, str(target), cast(Kernel, counted))
    mounting.unmount(str(target), UnmountFlag.DETACH)
    before = Kernel().mounts(), descriptors()
    for fails, name in enumerate(counted.names):
        failing = FailingKernel(Kernel(), fails=fails, number=errno.ENOSYS)
        try:
            make(call, str(target), cast(Kernel, failing))
        except FileRefusal:
            assert name not in ("clone_tree", "set_attributes"), name
        else:
            mounts = [one for one in Kernel().mounts() if one.mount_point == str(target)]
            assert len(mounts) == 1, name
            mounting.unmount(str(target), UnmountFlag.DETACH)
        assert (Kernel().mounts(), descriptors()) == before, name


@pytest.fixture
async def workers() -> AsyncIterator[FileWorkers]:
    made = FileWorkers()
    yield made
    await made.close()


async def test_a_worker_makes_them(room: Path, workers: FileWorkers) -> None:
    """Five hundred layers of 300 bytes are more than one packet of its socket."""
    target, deadline = room / "target", Deadline.after(60.0)
    await workers.mount(tmpfs("size=1m"), str(target), deadline)
    assert at(target).fs_type == "tmpfs"
    await workers.unmount(str(target), UnmountFlag.NOFOLLOW, deadline)
    lowers = layers(room, 499)
    assert sum(len(str(lower)) for lower in lowers) > 100_000
    await workers.mount(OverlayMount(lowers=lowers), str(target), deadline)
    assert len(os.listdir(target)) == 500
    assert await workers.is_directory(lowers[3], deadline)
    with pytest.raises(FileRefusal) as caught:
        await workers.mount(tmpfs("size=much"), str(room / "source"), deadline)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(room / "source"))
    with pytest.raises(FileRefusal) as caught:
        await workers.mount(tmpfs("size=much"), str(target), deadline)
    assert caught.value.log == ("tmpfs: Bad value for 'size'",)


def test_ext4_read_only_leaves_the_disk_alone(room: Path, kernel: Kernel, tmp_path: Path) -> None:
    """Both the mount and the file system are read-only, as with mount(2)."""
    if shutil.which("mkfs.ext4") is None or not loops.CONTROL.exists():
        pytest.skip("needs mkfs.ext4 and loop devices")
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with loops.attached(image) as disk:
        call = FsMount(fs_type="ext4", source=disk, flags=MountFlag.RDONLY)
        make(call, str(room / "target"), kernel)
        assert at(room / "target").super_options.split(",")[0] == "ro"
        assert write_error(room / "target/file") == errno.EROFS
        mounting.unmount(str(room / "target"))
        wrong = FsMount(fs_type="xfs", source=disk)
        assert refused(wrong, room / "target", kernel).errno in (errno.EINVAL, errno.ENODEV)

"""Bind mounts: flags before anybody can see the mount; on old kernels by remounting."""

from __future__ import annotations

import errno

import pytest

from agent.linux.mountapi import MountAttribute
from agent.linux.mountcalls import BindMount, FileRefusal, Location
from agent.linux.mounting import MountEntry, MountFlag, UnmountFlag, parse_mountinfo
from agent.linux.mountmaking import make
from agent.linux.openat2 import Resolve
from tests.fakes.mount_kernel import FakeKernel

pytestmark = [pytest.mark.unit, pytest.mark.storage]

SOURCE = Location(root="/s", path="d")
DEEP = BindMount(source=SOURCE, recursive=True, flags=MountFlag.RDONLY | MountFlag.NOATIME)
PLAIN = Resolve.NO_SYMLINKS
INSIDE = Resolve.IN_ROOT | Resolve.NO_MAGICLINKS


def table(*lines: str) -> tuple[MountEntry, ...]:
    return parse_mountinfo("\n".join(lines))


def test_the_copy_gets_its_flags_before_it_shows() -> None:
    kernel = FakeKernel()
    make(DEEP, "/t", kernel)
    assert kernel.calls == [
        ("open", "/t", PLAIN),
        ("open", "/s", PLAIN),
        ("open", "/s|d", INSIDE),
        ("clone_tree", "copy of /s|d", True),
        (
            "set_attributes",
            MountAttribute.RDONLY | MountAttribute.NOATIME,
            MountAttribute.ATIME,
            MountFlag.PRIVATE,
            True,
        ),
        ("move_mount", "copy of /s|d", "/t"),
    ]
    assert kernel.open == {}


@pytest.mark.parametrize(
    "flags", [MountFlag(0), MountFlag.RELATIME, MountFlag.STRICTATIME, MountFlag.SYNCHRONOUS]
)
def test_what_adds_nothing_is_not_set(flags: MountFlag) -> None:
    """Setting an access time other than the source's would clear the source's."""
    kernel = FakeKernel()
    make(BindMount(source=Location(root="/s"), flags=flags), "/t", kernel)
    assert [name for name, *_ in kernel.calls] == ["open", "open", "clone_tree", "move_mount"]


def test_links_can_be_forbidden() -> None:
    kernel = FakeKernel()
    make(BindMount(source=Location(root="/s", path="d", links=False)), "/t", kernel)
    assert ("open", "/s|d", INSIDE | Resolve.NO_SYMLINKS) in kernel.calls


def test_a_directory_on_a_file_is_refused_first() -> None:
    kernel = FakeKernel()
    with pytest.raises(FileRefusal) as caught:
        make(BindMount(source=Location(root="/s/file")), "/t", kernel)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTDIR, "/t")
    assert kernel.open == {}


@pytest.mark.parametrize("missing", ["clone_tree", "set_attributes"])
def test_old_kernels_restate_every_flag_of_every_mount(missing: str) -> None:
    """A remount sets all flags: one that is not said is cleared, and EPERM if it is locked."""
    kernel = FakeKernel(**{missing: errno.ENOSYS})
    kernel.table = table(
        "10 1 0:1 / /t rw,relatime - ext4 x rw",
        "20 10 0:2 /d /t rw,nosuid,noexec,relatime - tmpfs x rw",
        "21 20 0:3 / /t/a\\040b rw,nodev - tmpfs x rw",
        "22 21 0:4 / /t/a\\040b/c ro,noatime,nodiratime,nosymfollow - tmpfs x rw",
        "23 1 0:5 / /t2 rw - tmpfs x rw",
    )
    make(DEEP, "/t", kernel)
    asked = MountFlag.RDONLY | MountFlag.NOATIME
    remount = MountFlag.REMOUNT | MountFlag.BIND
    expected = {
        "/t": MountFlag.NOSUID | MountFlag.NOEXEC,
        "/t/a b": MountFlag.NODEV | MountFlag.STRICTATIME,
        "/t/a b/c": MountFlag.NODIRATIME | MountFlag.NOSYMFOLLOW,
    }
    mounts = [call[1:] for call in kernel.calls if call[0] == "mount"]
    assert mounts[0] == ("fd of /s|d", "fd of /t", None, MountFlag.BIND | MountFlag.REC, "")
    assert mounts[1:] == [
        entry
        for path, flags in expected.items()
        for entry in (
            (None, f"fd of {path}", None, MountFlag.PRIVATE, ""),
            (None, f"fd of {path}", None, remount | asked | flags, ""),
        )
    ]
    assert kernel.open == {}


def test_a_remount_that_fails_takes_the_mount_off_again() -> None:
    kernel = FakeKernel(clone_tree=errno.ENOSYS, mounts=errno.EIO)
    with pytest.raises(FileRefusal) as caught:
        make(DEEP, "/t", kernel)
    assert caught.value.errno == errno.EIO
    assert kernel.calls[-1] == ("unmount", "/t", UnmountFlag.DETACH | UnmountFlag.NOFOLLOW)
    assert kernel.open == {}


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
def test_other_refusals_are_final(number: int) -> None:
    """EINVAL: the source is unbindable, or in another mount namespace."""
    kernel = FakeKernel(clone_tree=number)
    with pytest.raises(FileRefusal) as caught:
        make(DEEP, "/t", kernel)
    assert caught.value.errno == number
    assert kernel.calls[-1][0] == "clone_tree"

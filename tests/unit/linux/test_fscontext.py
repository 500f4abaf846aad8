"""Mounts of a file system: the order of the calls, and when the old one is taken."""

from __future__ import annotations

import errno

import pytest

from agent.linux.fscontext import attributes
from agent.linux.mountapi import MountAttribute
from agent.linux.mountcalls import FileRefusal, FsMount, MountOption
from agent.linux.mounting import MountFlag
from agent.linux.mountmaking import make
from agent.linux.openat2 import Resolve
from tests.fakes.mount_kernel import FakeKernel

pytestmark = [pytest.mark.unit, pytest.mark.storage]

DISK = FsMount(
    fs_type="ext4",
    source="/dev/vdb",
    options=(MountOption(key="data", value="ordered"), MountOption(key="discard")),
    flags=MountFlag.RDONLY | MountFlag.NODEV | MountFlag.LAZYTIME,
)
OPEN_TARGET = ("open", "/t", Resolve.NO_SYMLINKS)


def refused(kernel: FakeKernel, call: FsMount) -> FileRefusal:
    with pytest.raises(FileRefusal) as caught:
        make(call, "/t", kernel)
    assert kernel.open == {}
    return caught.value


def test_the_mount_shows_last() -> None:
    kernel = FakeKernel()
    make(DISK, "/t", kernel)
    assert kernel.calls == [
        OPEN_TARGET,
        ("fsopen", "context of ext4"),
        ("set", "source", "/dev/vdb"),
        ("set", "data", "ordered"),
        ("flag", "discard"),
        ("flag", "ro"),
        ("flag", "lazytime"),
        ("create",),
        ("fsmount", "mount", MountAttribute.RDONLY | MountAttribute.NODEV),
        ("move_mount", "mount", "/t"),
    ]
    assert kernel.open == {}


def test_a_kernel_without_the_calls() -> None:
    kernel = FakeKernel(fsopen=errno.ENOSYS)
    make(DISK, "/t", kernel)
    assert kernel.calls == [
        OPEN_TARGET,
        ("fsopen", "context of ext4"),
        ("mount", "/dev/vdb", "fd of /t", "ext4", DISK.flags, "data=ordered,discard"),
    ]
    assert kernel.open == {}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENODEV, errno.EINVAL])
def test_a_refusal_is_no_old_kernel(number: int) -> None:
    """EPERM is what a filter of system calls answers."""
    kernel = FakeKernel(fsopen=number)
    assert refused(kernel, DISK).errno == number
    assert [call[0] for call in kernel.calls] == ["open", "fsopen"]


@pytest.mark.parametrize(
    "call",
    [
        FsMount(fs_type="x", source="s" * 256),
        FsMount(fs_type="x", source="s", options=(MountOption(key="k", value="v" * 256),)),
        FsMount(fs_type="x", source="s", flags=MountFlag.SILENT),
        FsMount(fs_type="x", source="s", flags=MountFlag.I_VERSION),
    ],
)
def test_what_only_the_old_call_can_take(call: FsMount) -> None:
    """fsconfig(2) has strings of 255 bytes, and no words for these flags."""
    kernel = FakeKernel()
    make(call, "/t", kernel)
    assert [name for name, *_ in kernel.calls] == ["open", "mount"]
    assert kernel.calls[1][1] == call.source
    assert kernel.calls[1][4] == call.flags


def test_too_much_for_both_is_told_before_anything_is_tried() -> None:
    kernel = FakeKernel()
    long = (MountOption(key="k", value="v" * 5000),)
    refusal = refused(kernel, FsMount(fs_type="x", source="s", options=long))
    assert refusal.errno == errno.EINVAL
    assert "options too long: 5002 bytes" in str(refusal)
    assert [name for name, *_ in kernel.calls] == ["open"]


def test_the_file_systems_words_come_with_the_refusal() -> None:
    kernel = FakeKernel(create=errno.EINVAL)
    kernel.log = ("first", "second")
    refusal = refused(kernel, DISK)
    assert (refusal.errno, refusal.filename) == (errno.EINVAL, "/t")
    assert refusal.log == ("first", "second")


def test_secrets_are_cut_out_of_the_words() -> None:
    kernel = FakeKernel(set=errno.EINVAL)
    kernel.log = ("bad password hunter2 of user me",)
    options = (
        MountOption(key="user", value="me"),
        MountOption(key="password", value="hunter2", secret=True),
    )
    refusal = refused(kernel, FsMount(fs_type="cifs", source="//s/x", options=options))
    assert refusal.log == ("bad password *** of user me",)
    assert "hunter2" not in str(refusal)


def test_labels_are_whole_and_without_quotes() -> None:
    kernel = FakeKernel()
    label = MountOption(key="context", value="u:r:t:s0:c1,c2")
    make(FsMount(fs_type="x", source="s", options=(label,)), "/t", kernel)
    assert ("set", "context", "u:r:t:s0:c1,c2") in kernel.calls


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        # include/uapi/linux/mount.h
        (MountFlag.RDONLY, 0x1),
        (MountFlag.NOSUID, 0x2),
        (MountFlag.NODEV, 0x4),
        (MountFlag.NOEXEC, 0x8),
        (MountFlag.NOATIME, 0x10),
        (MountFlag.STRICTATIME, 0x20),
        (MountFlag.NODIRATIME, 0x80),
        (MountFlag.NOSYMFOLLOW, 0x200000),
        (MountFlag.RELATIME, 0),
        (MountFlag.NOATIME | MountFlag.STRICTATIME, 0x20),
        (MountFlag.SYNCHRONOUS | MountFlag.LAZYTIME, 0),
    ],
)
def test_numbers_of_the_attributes(flags: MountFlag, number: int) -> None:
    assert int(attributes(flags)) == number

"""In which order what is mounted is written out and let go, and that its bounds fit the host's."""

from __future__ import annotations

import pytest

from agent.pid1 import leaving
from agent.pid1.layout import Bounds
from innkeeper.shim.vm import DEFAULT_GRACE

pytestmark = [pytest.mark.unit, pytest.mark.boot]

_AT = "/run/innkeeper/storages"
_BASE = (
    "1 0 254:0 / / ro - ext4 /dev/vda ro\n"
    "2 1 0:5 / /proc rw - proc proc rw\n"
    "3 1 0:6 / /run rw - tmpfs tmpfs rw\n"
)


def _mounted(*lines: str) -> str:
    return _BASE + "".join(f"{line}\n" for line in lines)


def test_nothing_of_the_kernel_in_memory_or_read_only() -> None:
    found = leaving.plan(_mounted(f"6 3 254:32 / {_AT}/d ro - xfs /dev/vdc ro,attr2"))
    assert found == leaving.Leaving(disks=(), waves=(), served=())


@pytest.mark.parametrize(
    "fs_type", ["virtiofs", "9p", "nfs", "nfs4", "cifs", "ceph", "fuse", "fuse.sshfs", "fuseblk"]
)
def test_no_disk_waits_for_a_served_file_system(fs_type: str) -> None:
    found = leaving.plan(
        _mounted(
            f"4 3 254:16 / {_AT}/a rw - ext4 /dev/vdb rw",
            f"5 3 0:40 / {_AT}/b\\040c rw - {fs_type} tag rw",
            f"6 3 254:32 / {_AT}/d rw - xfs /dev/vdc rw,attr2",
        )
    )
    assert found.disks == (f"{_AT}/d", f"{_AT}/a")
    assert found.waves == (((f"{_AT}/d", f"{_AT}/d"), (f"{_AT}/a", f"{_AT}/a")),)
    assert found.served == (f"{_AT}/b c",)


def test_a_file_system_is_written_once_and_each_of_its_mounts_let_go() -> None:
    """btrfs and bind mounts: what counts is the device number, not the mount."""
    found = leaving.plan(
        _mounted(
            f"4 3 0:50 / {_AT}/a rw - btrfs /dev/vdb rw",
            f"5 3 0:50 /sub {_AT}/bound rw - btrfs /dev/vdb rw",
        )
    )
    assert found.disks == (f"{_AT}/bound",)
    assert found.waves == (((f"{_AT}/bound", f"{_AT}/bound"), (f"{_AT}/a", f"{_AT}/bound")),)


def test_what_lies_on_top_goes_first_and_an_overlay_before_its_layers() -> None:
    """umount(2): EBUSY while something is mounted below."""
    found = leaving.plan(
        _mounted(
            f"4 3 254:16 / {_AT}/a rw - ext4 /dev/vdb rw",
            f"5 4 254:32 / {_AT}/a/deep rw - ext4 /dev/vdc rw",
            f"6 3 0:41 / {_AT}/o rw - overlay overlay rw,upperdir={_AT}/a/u",
        )
    )
    assert found.disks == (f"{_AT}/a/deep", f"{_AT}/a")
    assert found.waves == (
        ((f"{_AT}/a/deep", f"{_AT}/a/deep"),),
        ((f"{_AT}/o", None),),
        ((f"{_AT}/a", f"{_AT}/a"),),
    )


def test_the_way_down_ends_before_the_host_loses_patience() -> None:
    assert sum(Bounds()) < DEFAULT_GRACE

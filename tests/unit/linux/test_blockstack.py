"""Which disks are made of which, on a sysfs of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.linux.blockstack import Stack, numbers, stack

pytestmark = [pytest.mark.unit, pytest.mark.devices]


class Blocks:
    """/sys/class/block, without the detour by links that the kernel has there."""

    def __init__(self, sys: Path) -> None:
        self.sys = sys
        self.directory = sys / "class/block"
        self.directory.mkdir(parents=True)

    def add(self, name: str, dev: str = "254:0", *, partition_of: str = "") -> None:
        directory = self.directory / name
        if partition_of:
            directory = self.directory / partition_of / name
            (self.directory / name).symlink_to(directory)
        (directory / "holders").mkdir(parents=True)
        (directory / "dev").write_text(f"{dev}\n")
        if partition_of:
            (directory / "partition").write_text("1\n")

    def hold(self, name: str, by: str) -> None:
        (self.directory / name / "holders" / by).symlink_to(f"../../{by}")

    def loop(self, name: str, file: str) -> None:
        self.add(name, "7:0")
        (self.directory / name / "loop").mkdir()
        (self.directory / name / "loop/backing_file").write_text(f"{file}\n")


@pytest.fixture
def blocks(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path / "sys")


def test_a_disk_with_partitions(blocks: Blocks) -> None:
    blocks.add("vdb", "254:16")
    blocks.add("vdb1", "254:17", partition_of="vdb")
    blocks.add("vdc")
    assert stack(str(blocks.sys), ["vdb"]) == Stack(("vdb", "vdb1"), ())
    assert numbers(str(blocks.sys), "vdb1") == (254, 17)


def test_devices_on_top_of_devices_on_top(blocks: Blocks) -> None:
    """LVM on LUKS on one partition, md on the other, with a partition of its own."""
    blocks.add("vdb")
    blocks.add("vdb1", partition_of="vdb")
    blocks.add("vdb2", partition_of="vdb")
    for name in ("dm-0", "dm-1", "md127"):
        blocks.add(name)
    blocks.add("md127p1", partition_of="md127")
    blocks.hold("vdb1", "dm-0")
    blocks.hold("dm-0", "dm-1")
    blocks.hold("vdb2", "md127")
    found = stack(str(blocks.sys), ["vdb"])
    assert found.base == ("vdb", "vdb1", "vdb2")
    assert set(found.above) == {"dm-0", "dm-1", "md127", "md127p1"}


def test_a_device_on_top_of_two_counts_once(blocks: Blocks) -> None:
    for name in ("vdb", "vdc", "md0"):
        blocks.add(name)
    blocks.hold("vdb", "md0")
    blocks.hold("vdc", "md0")
    assert stack(str(blocks.sys), ["vdb", "vdc"]).above == ("md0",)


def test_a_loop_device_on_a_disk(blocks: Blocks) -> None:
    """It opens the disk like a file and claims nothing, so `holders` is empty."""
    blocks.add("vdb")
    blocks.loop("loop0", "/dev/vdb")
    blocks.loop("loop1", "/srv/image (deleted)")
    assert stack(str(blocks.sys), ["vdb"]).above == ("loop0",)


def test_a_ring_ends(blocks: Blocks) -> None:
    blocks.add("dm-0")
    blocks.add("dm-1")
    blocks.hold("dm-0", "dm-1")
    blocks.hold("dm-1", "dm-0")
    assert stack(str(blocks.sys), ["dm-0"]) == Stack(("dm-0",), ("dm-1",))


def test_a_disk_that_is_gone(blocks: Blocks) -> None:
    assert stack(str(blocks.sys), ["vdz"]) == Stack(("vdz",), ())
    assert numbers(str(blocks.sys), "vdz") is None

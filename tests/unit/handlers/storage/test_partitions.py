"""Partitions by number and label, in a sysfs with the kernel's shapes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.kinds import BlockExpectation, BlockInfo
from agent.core.model import AttachedDevice, DeviceNode, DeviceRequest, NodeType
from agent.core.pci import PciPath
from agent.handlers.storage.partitions import as_in_sysfs, partition_node
from tests.fakes.hotplug import turns
from tests.fakes.storage_jobs import JobBench, job_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

MIB = 1 << 20


class Disk:
    """A disk of a given kernel name, and its partitions."""

    def __init__(self, lab: JobBench, name: str = "vdb") -> None:
        self.lab = lab
        self.node = lab.disk(name, "254:16", b"x" * 512)
        self.path = lab.directory(self.node)

    def partition(
        self,
        name: str,
        number: int,
        *,
        label: str | None = None,
        size: int = MIB,
        node: bool = True,
    ) -> Path:
        sysfs, path, dev = self.lab.bench.sysfs, self.path / name, f"254:{16 + number}"
        sysfs.write(path / "dev", dev)
        sysfs.write(path / "partition", str(number))
        sysfs.write(path / "size", str(size // 512))
        lines = [
            f"MAJOR=254\nMINOR={16 + number}\nDEVNAME={name}\nDEVTYPE=partition\nPARTN={number}"
        ]
        name_line = [f"PARTNAME={label}"] if label is not None else []
        sysfs.write(path / "uevent", "\n".join([*lines, *name_line]))
        sysfs.link(path / "subsystem", "../../../../../../class/block")
        if node:
            sysfs.node(name, dev)
        return path

    async def find(self, number: int = 0, label: str = "", seconds: float = 60.0) -> DeviceNode:
        device = AttachedDevice(
            request=DeviceRequest(id="d1", address=PciPath.parse("02"), kind=BlockExpectation()),
            pci_path=None,
            bdf="0000:00:02.0",
            sysfs_path="",
            driver="",
            numa_node=None,
            iommu_group=None,
            nodes=(self.node,),
            info=BlockInfo(size=MIB, logical_block_size=512, read_only=False),
        )
        within = Deadline.after(seconds)
        return await partition_node(self.lab.tools, device, number, label, within)

    async def missing(self, number: int = 0, label: str = "") -> AgentError:
        with pytest.raises(AgentError) as caught:
            await self.find(number, label, 0.05)
        return caught.value


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[JobBench]:
    async with job_bench(tmp_path) as made:
        yield made


@pytest.fixture
def disk(lab: JobBench) -> Disk:
    return Disk(lab)


def name_of(node: DeviceNode) -> str:
    return Path(node.path).name


@pytest.mark.parametrize(
    ("name", "part"), [("vdb", "vdb2"), ("nvme0n1", "nvme0n1p2"), ("mmcblk0", "mmcblk0p2")]
)
async def test_by_number_whatever_the_kernel_calls_it(lab: JobBench, name: str, part: str) -> None:
    disk = Disk(lab, name)
    disk.partition(part.replace("2", "12"), 12)
    disk.partition(part, 2)
    found = await disk.find(2)
    assert (name_of(found), found.major, found.minor, found.type) == (
        part,
        254,
        18,
        NodeType.BLOCK,
    )


async def test_by_label(disk: Disk) -> None:
    disk.partition("vdb1", 1, label="boot")
    disk.partition("vdb2", 2, label="root fs=1")
    disk.partition("vdb3", 3)
    assert name_of(await disk.find(label="root fs=1")) == "vdb2"
    assert name_of(await disk.find(2, "root fs=1")) == "vdb2"


async def test_number_and_label_of_two_partitions(disk: Disk) -> None:
    disk.partition("vdb1", 1, label="boot")
    disk.partition("vdb2", 2, label="root")
    error = await disk.missing(1, "root")
    assert "partition 1 with the label 'root' of device d1" in error.message
    assert "vdb has no such partition, only 1 'boot', 2 'root'" in error.message


async def test_two_partitions_with_one_label(disk: Disk) -> None:
    """Refused at once: no event can make it right."""
    disk.partition("vdb1", 1, label="data")
    disk.partition("vdb2", 2, label="data", size=2 * MIB)
    with pytest.raises(AgentError) as caught:
        await disk.find(label="data")
    assert caught.value.reason is Reason.UNEXPECTED_DEVICE
    assert caught.value.code is Code.FAILED_PRECONDITION
    listed = "1 (label 'data', 1048576 bytes), 2 (label 'data', 2097152 bytes)"
    assert f"2 partitions of vdb have the label 'data': {listed}" in caught.value.message
    assert name_of(await disk.find(2, "data")) == "vdb2"


async def test_a_partition_that_is_not_there(disk: Disk) -> None:
    """The error says which there are."""
    disk.partition("vdb10", 10)
    disk.partition("vdb1", 1, label="boot")
    error = await disk.missing(3)
    assert error.reason is Reason.DEVICE_NOT_READY
    assert error.code is Code.DEADLINE_EXCEEDED
    listed = "1 (label 'boot', 1048576 bytes), 10 (no label, 1048576 bytes)"
    assert error.message.count("partition 3") == 1
    assert error.fields["evidence"] == "vdb has no such partition, only 1 'boot', 10"
    assert error.fields["partitions"] == listed
    assert listed not in error.message
    assert error.hint is None
    assert "with the label 'x'" in (await disk.missing(label="x")).message


async def test_a_disk_without_a_table(disk: Disk) -> None:
    error = await disk.missing(1)
    assert "no partition table on vdb" in error.message
    assert error.hint is not None
    assert "GPT" not in error.hint
    assert error.fields["partitions"] == "none"


async def test_a_label_on_a_disk_with_an_mbr(disk: Disk) -> None:
    disk.partition("vdb1", 1)
    error = await disk.missing(label="root")
    assert "a label needs a GPT" in str(error)


async def test_the_log_of_an_earlier_disk_of_this_name_is_not_told(disk: Disk) -> None:
    """It is told by its PCI function since when the disk is there."""
    asked: list[tuple[str, ...]] = []

    class Log:
        def lines(self, names: tuple[str, ...]) -> tuple[str, ...]:
            asked.append(names)
            return ()

        def refusal(self, names: tuple[str, ...]) -> None: ...
        def explanation(self, names: tuple[str, ...]) -> None: ...

    board = disk.lab.bench.board
    board.tree = replace(board.tree, log=Log())
    await disk.missing(1)
    assert asked == [("vdb", "0000:00:02.0")]


async def test_partitions_come_after_their_disk(disk: Disk) -> None:
    task = asyncio.ensure_future(disk.find(1))
    await turns()
    path = disk.partition("vdb1", 1, size=0, node=False)
    disk.lab.bench.announce("add", path)
    await turns()
    disk.lab.bench.sysfs.write(path / "size", "8")
    disk.lab.bench.announce("change", path)
    await turns()
    assert not task.done()
    disk.lab.bench.sysfs.node("vdb1", "254:17")
    disk.lab.bench.announce("change", path)
    assert name_of(await task) == "vdb1"


async def test_a_node_with_the_numbers_of_another_device(disk: Disk) -> None:
    disk.partition("vdb1", 1, node=False)
    disk.lab.bench.sysfs.node("vdb1", "254:99")
    error = await disk.missing(1)
    assert "is b 254:99, but vdb1 is b 254:17" in error.message


async def test_a_disk_that_is_gone(disk: Disk) -> None:
    disk.partition("vdb1", 1)
    disk.lab.bench.sysfs.remove(disk.path)
    with pytest.raises(AgentError, match=r"the disk .*vdb is gone"):
        await disk.find(1)


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("root", "root"),
        ("a\tb", "a!b"),
        # U+00FC: 7C is left of it. Linux 6.12 shows so in a guest.
        ("für alle", "f|r alle"),
        # U+4E16 U+754C: 16 and 4C.
        ("世界", "!L"),
        # U+0100 ends the text.
        ("rootĀdata", "root"),
    ],
)
async def test_labels_that_are_not_ascii(disk: Disk, label: str, shown: str) -> None:
    """Only seven bits of each UTF-16 unit reach sysfs (utf16_le_to_7bit)."""
    assert as_in_sysfs(label) == shown
    disk.partition("vdb1", 1, label=shown)
    assert name_of(await disk.find(label=label)) == "vdb1"


@given(st.text(max_size=40))
def test_any_label_has_a_form_in_sysfs(label: str) -> None:
    shown = as_in_sysfs(label)
    assert len(shown) <= 2 * len(label)
    assert shown.isascii()
    assert shown.isprintable()

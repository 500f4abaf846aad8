"""Disks behind PCI functions, as sysfs shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core import addresses
from agent.core.errors import Reason
from agent.core.kinds import BlockExpectation
from agent.core.model import DeviceNode, NodeType
from agent.core.pci import parse_address
from agent.core.places import Place, find
from agent.core.tree import SysfsTree
from agent.core.verdict import Failed, NotYet, Ready
from agent.handlers.devices.base import Found, iommu_group, numa_node
from agent.handlers.devices.block import BlockDevices
from tests.fakes.devices import disk_of
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ANY = BlockExpectation()
MIB = 1 << 20


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def look(
    sysfs: FakeSysfs, address: str = "02/00", expected: BlockExpectation = ANY
) -> Ready[Found] | NotYet | Failed:
    """What the class says, with its slow reads made."""
    tree = sysfs.tree
    verdict = BlockDevices().probe(tree, function(tree, address), expected)
    if isinstance(verdict, NotYet) and verdict.needs:
        for read in verdict.needs:
            tree.slow_texts[read] = read.path.read_text().strip()
        verdict = BlockDevices().probe(tree, function(tree, address), expected)
    return verdict


def function(tree: SysfsTree, address: str) -> Place:
    located = find(tree, parse_address(address))
    assert isinstance(located, Ready), located
    return located.result


def ready(verdict: Ready[Found] | NotYet | Failed) -> Found:
    assert isinstance(verdict, Ready), verdict
    return verdict.result


def waiting(verdict: Ready[Found] | NotYet | Failed) -> NotYet:
    assert isinstance(verdict, NotYet), verdict
    return verdict


def test_a_virtio_disk_with_all_its_facts(sysfs: FakeSysfs) -> None:
    disk = sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0", size=64 * MIB, serial="disk-1")
    sysfs.write(disk / "virtio_vdb/block/vdb/ro", "1")
    sysfs.write(disk / "virtio_vdb/block/vdb/queue/logical_block_size", "4096")
    found = ready(look(sysfs))
    node = DeviceNode(path=str(sysfs.roots.dev / "vdb"), type=NodeType.BLOCK, major=254, minor=16)
    assert found.nodes == (node,)
    assert (disk_of(found).size, disk_of(found).logical_block_size) == (64 * MIB, 4096)
    told = disk_of(found)
    assert (told.serial, told.model, told.read_only) == ("disk-1", "", True)


def test_an_nvme_namespace(sysfs: FakeSysfs) -> None:
    controller = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="nvme")
    nvme = controller / "nvme/nvme0"
    sysfs.write(nvme / "serial", "S64   ")
    sysfs.write(nvme / "model", "QEMU NVMe Ctrl")
    disk = sysfs.disk(nvme, "nvme0n1", dev="259:0", size=4 * MIB)
    sysfs.link(disk / "device", str(nvme))
    found = ready(look(sysfs))
    assert found.nodes[0].path.endswith("/dev/nvme0n1")
    assert (disk_of(found).serial, disk_of(found).model) == ("S64", "QEMU NVMe Ctrl")
    assert disk_of(found).size == 4 * MIB


def test_an_nvme_namespace_with_multipath_is_its_head(sysfs: FakeSysfs) -> None:
    """The controller then has only a hidden path; the disk lies below its subsystem."""
    controller = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="nvme")
    path = controller / "nvme/nvme0/nvme0c0n1"
    sysfs.write(path / "hidden", "1")
    sysfs.link(path / "subsystem", "../../../../../../class/block")
    assert "no disk" in waiting(look(sysfs)).evidence
    head = sysfs.sys / "devices/virtual/nvme-subsystem/nvme-subsys0"
    sysfs.disk(head, "nvme0n1", dev="259:1")
    assert ready(look(sysfs)).nodes[0].path.endswith("/dev/nvme0n1")
    near = waiting(look(sysfs, expected=BlockExpectation(size=1))).near
    assert sysfs.devpath(head.parent) in near


def test_a_scsi_disk(sysfs: FakeSysfs) -> None:
    adapter = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="virtio-pci")
    lun = sysfs.virtio(adapter, "virtio2", driver="virtio_scsi") / "host0/target0:0:0/0:0:0:0"
    sysfs.disk(lun / "block", "sda", dev="8:0")
    assert ready(look(sysfs)).nodes[0].path.endswith("/dev/sda")


def test_the_disk_and_never_its_partition(sysfs: FakeSysfs) -> None:
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0")
    assert [node.path for node in ready(look(sysfs)).nodes] == [str(sysfs.roots.dev / "vdb")]


def test_a_disk_behind_a_bridge_is_not_the_bridges(sysfs: FakeSysfs) -> None:
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0")
    assert "no disk" in waiting(look(sysfs, "02")).evidence


def test_sysfs_before_the_node(sysfs: FakeSysfs) -> None:
    """The directory in sysfs is no proof: the node may come later."""
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0", node=False)
    assert "no node" in waiting(look(sysfs)).evidence
    sysfs.node("vdb", "254:16")
    ready(look(sysfs))


@pytest.mark.parametrize(("dev", "kind"), [("254:32", "b"), ("254:16", "c")])
def test_a_node_with_other_numbers_is_not_the_disks(sysfs: FakeSysfs, dev: str, kind: str) -> None:
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0", node=False)
    sysfs.node("vdb", dev, kind)
    assert f"is {kind} {dev}, but vdb is b 254:16" in waiting(look(sysfs)).evidence


def test_a_minor_far_above_255(sysfs: FakeSysfs) -> None:
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0", dev="259:1048575")
    assert ready(look(sysfs)).nodes[0].minor == 1048575


def test_a_disk_without_a_size_is_not_usable_yet(sysfs: FakeSysfs) -> None:
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0", size=0)
    assert "size 0" in waiting(look(sysfs)).evidence


def test_the_device_was_seen_but_no_driver_came(sysfs: FakeSysfs) -> None:
    """Only the PCI event came: the text has to say what is there and what is missing."""
    bare = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0")
    evidence = waiting(look(sysfs)).evidence
    assert "the PCI function 0000:01:00.0 (path 02/00, 1af4:1042) is there" in evidence
    assert "it has no driver" in evidence
    assert "no disk" in evidence
    sysfs.link(bare / "driver", "../../../bus/pci/drivers/virtio-pci")
    sysfs.virtio(bare, "virtio3", driver=None)
    evidence = waiting(look(sysfs)).evidence
    assert "its driver is virtio-pci, below it: virtio3 (no driver)" in evidence


def test_a_driver_that_gave_up_is_final(sysfs: FakeSysfs) -> None:
    function = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="virtio-pci")
    sysfs.write(sysfs.virtio(function, "virtio3", driver=None) / "status", "0x00000083")
    verdict = look(sysfs)
    assert isinstance(verdict, Failed)
    assert "refused virtio3" in verdict.why


NO_ADDRESS = """0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000fff 0x0000000020040200"""
NO_PORT = "0x0000000000000000 0x000000000000007f 0x0000000020040101"


def test_a_bar_without_an_address_is_final_once_the_kernel_is_done(sysfs: FakeSysfs) -> None:
    """A new function shows unset addresses for a moment: before the kernel has added it."""
    function = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0")
    sysfs.write(function / "resource", NO_ADDRESS)
    waiting(look(sysfs))
    sysfs.added("01", "00.0")
    verdict = look(sysfs)
    assert isinstance(verdict, Failed)
    assert "BAR 1 of 0000:01:00.0 has no address" in verdict.why
    sysfs.link(function / "driver", "../../../bus/pci/drivers/nvme")
    waiting(look(sysfs))


def test_an_io_bar_without_an_address_hurts_nobody(sysfs: FakeSysfs) -> None:
    """Ports give no I/O space, and modern virtio needs none."""
    function = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0")
    sysfs.write(function / "resource", NO_PORT)
    sysfs.added("01", "00.0")
    waiting(look(sysfs))


def test_another_disk_than_expected_is_waited_out(sysfs: FakeSysfs) -> None:
    """It may be the old device in a slot that is used again."""
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0", serial="old", size=MIB)
    by_serial = waiting(look(sysfs, expected=BlockExpectation(serial="new")))
    assert "its serial number is 'old', not 'new'" in by_serial.evidence
    assert by_serial.reason is Reason.UNEXPECTED_DEVICE
    by_size = waiting(look(sysfs, expected=BlockExpectation(serial="old", size=2 * MIB)))
    assert f"its size is {MIB} bytes, not {2 * MIB}" in by_size.evidence
    ready(look(sysfs, expected=BlockExpectation(serial="old", size=MIB)))


def test_a_serial_number_is_cut_to_what_the_device_can_tell(sysfs: FakeSysfs) -> None:
    """virtio-blk answers with 20 bytes, however long the host's own text is."""
    long = "0123456789abcdefghijklmnop"
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0", serial=long[:20])
    ready(look(sysfs, expected=BlockExpectation(serial=long)))
    waiting(look(sysfs, expected=BlockExpectation(serial=long[:19])))


def test_a_virtio_serial_number_is_asked_for_by_the_board(sysfs: FakeSysfs) -> None:
    """Each read of it is a request to the device, which may hang."""
    disk = sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0", serial="s")
    tree = sysfs.tree
    verdict = waiting(BlockDevices().probe(tree, function(tree, "02/00"), ANY))
    assert [read.path for read in verdict.needs] == [disk / "virtio_vdb/block/vdb/serial"]
    assert verdict.needs[0].instance == "1"


def test_of_several_disks_the_one_that_fits(sysfs: FakeSysfs) -> None:
    controller = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="nvme")
    sysfs.disk(controller / "nvme/nvme0", "nvme0n1", dev="259:0", size=MIB)
    sysfs.disk(controller / "nvme/nvme0", "nvme0n2", dev="259:1", size=2 * MIB)
    fitting = ready(look(sysfs, expected=BlockExpectation(size=2 * MIB)))
    assert fitting.nodes[0].path.endswith("nvme0n2")
    verdict = look(sysfs)
    assert isinstance(verdict, Failed)
    assert "several disks (nvme0n1, nvme0n2)" in verdict.why
    neither = waiting(look(sysfs, expected=BlockExpectation(size=3)))
    assert neither.reason is Reason.UNEXPECTED_DEVICE
    assert "nvme0n1" in neither.evidence
    assert "nvme0n2" in neither.evidence


def test_numa_node_and_iommu_group(sysfs: FakeSysfs) -> None:
    path = sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0")
    tree = sysfs.tree
    there = function(tree, "02/00").function
    assert there is not None
    assert numa_node(tree, there) is None
    assert iommu_group(tree, there) is None
    sysfs.write(path / "numa_node", "1")
    sysfs.link(path / "iommu_group", "../../../../kernel/iommu_groups/7")
    assert numa_node(tree, there) == 1
    assert iommu_group(tree, there) == 7


def by(sysfs: FakeSysfs, kind: str, text: str) -> Ready[Found] | NotYet | Failed:
    located = find(sysfs.tree, addresses.parse(kind, text))
    assert isinstance(located, Ready), located
    return BlockDevices().probe(sysfs.tree, located.result, ANY)


def test_a_logical_unit_by_its_address(sysfs: FakeSysfs) -> None:
    """LUN 1 and LUN 10 of one adapter, each its own disk; the serial is in page 0x80."""
    adapter = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="virtio-pci")
    target = sysfs.virtio(adapter, "virtio2", driver="virtio_scsi") / "host0/target0:0:0"
    for lun, letter, minor in ((1, "a", 0), (10, "b", 16)):
        unit = target / f"0:0:0:{lun}"
        disk = sysfs.disk(unit / "block", f"sd{letter}", dev=f"8:{minor}")
        sysfs.link(disk / "device", str(unit))
        serial = f"lun-{lun}".encode()
        (unit / "vpd_pg80").write_bytes(b"\x00\x80\x00" + bytes([len(serial)]) + serial)
        sysfs.link(sysfs.sys / "bus/scsi/devices" / unit.name, str(unit))
    for lun, node in ((1, "sda"), (10, "sdb")):
        found = ready(by(sysfs, "scsi", f"[02/00]*:0:0:{lun}"))
        assert [Path(each.path).name for each in found.nodes] == [node]
        assert disk_of(found).serial == f"lun-{lun}"


def test_a_channel_disk(sysfs: FakeSysfs) -> None:
    """s390: css0/SUBCHANNEL/DEVICE/virtioN/block, of the device asked for alone."""
    for number, name in (("0001", "vda"), ("0010", "vdb")):
        device = sysfs.sys / f"devices/css0/0.0.000{number[-2]}/0.0.{number}"
        sysfs.disk(sysfs.virtio(device, f"virtio{number[-2]}") / "block", name)
        sysfs.link(sysfs.sys / f"bus/ccw/devices/0.0.{number}", str(device))
    found = ready(by(sysfs, "ccw", "0.0.0001"))
    assert [Path(each.path).name for each in found.nodes] == ["vda"]


def test_an_mmio_disk(sysfs: FakeSysfs) -> None:
    """As Firecracker has them: made on the command line, told by their registers."""
    sysfs.write(
        sysfs.roots.proc / "iomem",
        "d0000000-d0000fff : virtio-mmio.0\nd0001000-d0001fff : virtio-mmio.1",
    )
    for number, name in ((0, "vda"), (1, "vdb")):
        device = sysfs.sys / f"devices/platform/virtio-mmio.{number}"
        sysfs.disk(sysfs.virtio(device, f"virtio{number}") / "block", name)
        sysfs.link(sysfs.sys / f"bus/platform/devices/virtio-mmio.{number}", str(device))
    found = ready(by(sysfs, "mmio", "0xd0001000"))
    assert [Path(each.path).name for each in found.nodes] == ["vdb"]


def test_a_partition_by_its_node_is_no_disk(sysfs: FakeSysfs) -> None:
    function = sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0")
    part = function / "virtio_vdb/block/vdb/vdb1"
    sysfs.node("vdb1", "254:17")
    sysfs.link(sysfs.sys / "dev/block/254:17", str(part))
    refused = by(sysfs, "path", "/dev/vdb1")
    assert isinstance(refused, Failed)
    assert "vdb1 is a partition of vdb" in refused.why
    sysfs.link(sysfs.sys / "dev/block/254:16", str(part.parent))
    assert ready(by(sysfs, "path", "/dev/vdb")).nodes[0].path.endswith("/vdb")

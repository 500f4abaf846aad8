"""Persistent memory: behind a function, and as a node of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.addresses import Address, NodePath
from agent.core.errors import Reason
from agent.core.kinds import PmemExpectation, PmemInfo
from agent.core.model import DeviceRequest
from agent.core.pci import parse_address
from agent.core.places import find
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.attached import entry_of
from agent.handlers.devices.base import Found, Sighting, Taken
from agent.handlers.devices.pmem import PmemDevices
from tests.fakes.pmem_trees import NFIT, disk, mapped, namespace, virtio_pmem
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ANY = PmemExpectation()
MIB = 1 << 20


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


@pytest.fixture
def region(sysfs: FakeSysfs) -> Path:
    """The namespace of a virtio-pmem at 02/00."""
    return namespace(sysfs, virtio_pmem(sysfs, sysfs.port_with_slot(), "0000:01:00.0"))


def look(
    sysfs: FakeSysfs, address: str | Address = "02/00", expected: PmemExpectation = ANY
) -> Verdict[Found]:
    wanted = parse_address(address) if isinstance(address, str) else address
    place = find(sysfs.tree, wanted)
    if not isinstance(place, Ready):
        return place
    return PmemDevices().probe(sysfs.tree, place.result, expected)


def ready(verdict: Verdict[Found]) -> Found:
    assert isinstance(verdict, Ready), verdict
    return verdict.result


def waiting(verdict: Verdict[Found]) -> NotYet:
    assert isinstance(verdict, NotYet), verdict
    return verdict


def why_not_removable(sysfs: FakeSysfs, address: Address) -> str | None:
    place = find(sysfs.tree, address)
    assert isinstance(place, Ready)
    found = ready(look(sysfs, address))
    request = DeviceRequest(id="pm", address=address, kind=ANY)
    taken = Taken(sighting=Sighting(place=place.result, instance="1", found=found))
    return PmemDevices().removable(entry_of(sysfs.tree, request, "pmem", taken).device)


def test_virtio_pmem(sysfs: FakeSysfs, region: Path) -> None:
    disk(sysfs, region, size=64 * MIB)
    found = ready(look(sysfs))
    assert found.info == PmemInfo(size=64 * MIB, dax=True, removable=True)
    (node,) = found.nodes
    assert (node.path, node.type) == (str(sysfs.roots.dev / "pmem0"), "b")
    assert why_not_removable(sysfs, parse_address("02/00")) is None


def test_an_nvdimm_by_its_node(sysfs: FakeSysfs) -> None:
    """The guest can't let go of one: nobody may try (case 16)."""
    disk(sysfs, namespace(sysfs, sysfs.sys / NFIT), size=128 * MIB)
    address = NodePath.parse("/dev/pmem0")
    assert ready(look(sysfs, address)).info == PmemInfo(size=128 * MIB, dax=True, removable=False)
    assert "NVDIMM" in (why_not_removable(sysfs, address) or "")


def test_without_dax(sysfs: FakeSysfs, region: Path) -> None:
    disk(sysfs, region, size=MIB, dax=False)
    assert ready(look(sysfs)).info == PmemInfo(size=MIB, dax=False, removable=True)


def test_mapped_whole(sysfs: FakeSysfs, region: Path) -> None:
    """/dev/dax0.0 is a character device, and has its size in bytes."""
    mapped(sysfs, region, size=62 * MIB)
    found = ready(look(sysfs))
    assert found.info == PmemInfo(size=62 * MIB, dax=True, removable=True)
    assert [(node.path, node.type) for node in found.nodes] == [
        (str(sysfs.roots.dev / "dax0.0"), "c")
    ]
    assert ready(look(sysfs, NodePath.parse("/dev/dax0.0"))).info == found.info


@pytest.mark.parametrize("driver", [None, "kmem"])
def test_a_node_that_cannot_be_opened(sysfs: FakeSysfs, region: Path, driver: str | None) -> None:
    """Without `device_dax` opening it is ENXIO; `kmem` has made ordinary memory of it."""
    device = mapped(sysfs, region, size=62 * MIB, driver=driver)
    verdict = waiting(look(sysfs))
    assert "no persistent memory" in verdict.evidence
    assert verdict.driverless == (() if driver else (device,))


def test_before_its_driver(sysfs: FakeSysfs) -> None:
    function = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="virtio-pci")
    device = sysfs.virtio(function, "virtio2", driver=None)
    sysfs.write(device / "modalias", "virtio:d0000001Bv00001AF4")
    verdict = waiting(look(sysfs))
    assert "virtio2 (no driver)" in verdict.evidence
    assert verdict.driverless == (device,)


def test_a_namespace_without_its_disk(sysfs: FakeSysfs, region: Path) -> None:
    assert "no persistent memory" in waiting(look(sysfs)).evidence
    disk(sysfs, region, size=0)
    assert "pmem0" in waiting(look(sysfs)).evidence


def test_sysfs_before_the_node(sysfs: FakeSysfs, region: Path) -> None:
    disk(sysfs, region, size=MIB)
    sysfs.nodes.clear()
    assert "no node" in waiting(look(sysfs)).evidence


def test_another_size_may_be_the_old_one_of_the_slot(sysfs: FakeSysfs, region: Path) -> None:
    disk(sysfs, region, size=MIB)
    verdict = waiting(look(sysfs, expected=PmemExpectation(size=2 * MIB)))
    assert verdict.reason is Reason.UNEXPECTED_DEVICE
    assert f"pmem0 ({MIB} bytes)" in verdict.evidence


def test_of_several_namespaces_the_one_of_the_size(sysfs: FakeSysfs) -> None:
    device = virtio_pmem(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    disk(sysfs, namespace(sysfs, device), "pmem0", size=MIB)
    disk(sysfs, namespace(sysfs, device, 1), "pmem1", size=2 * MIB)
    found = ready(look(sysfs, expected=PmemExpectation(size=2 * MIB)))
    assert found.nodes[0].path.endswith("/pmem1")
    verdict = look(sysfs)
    assert isinstance(verdict, Failed)
    assert "pmem0" in verdict.why
    assert "pmem1" in verdict.why


def test_another_disk_is_no_persistent_memory(sysfs: FakeSysfs) -> None:
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0")
    assert "no persistent memory" in waiting(look(sysfs)).evidence
    sysfs.link(
        sysfs.sys / "dev/block/254:16",
        str(sysfs.sys / "devices/pci0000:00/0000:00:02.0/0000:01:00.0/virtio_vdb/block/vdb"),
    )
    assert "no persistent memory" in waiting(look(sysfs, NodePath.parse("/dev/vdb"))).evidence


def test_a_partition_is_not_the_memory(sysfs: FakeSysfs) -> None:
    whole = disk(sysfs, namespace(sysfs, sysfs.sys / NFIT), size=MIB)
    sysfs.link(sysfs.sys / "dev/block/254:17", str(whole / "pmem01"))
    sysfs.node("pmem01", "254:17")
    assert "no persistent memory" in waiting(look(sysfs, NodePath.parse("/dev/pmem01"))).evidence


def test_an_nvdimm_that_is_not_there_yet(sysfs: FakeSysfs) -> None:
    assert (
        "no device node /dev/pmem0" in waiting(look(sysfs, NodePath.parse("/dev/pmem0"))).evidence
    )

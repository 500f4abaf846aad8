"""Functions of no class of ours: their drivers and nodes, as sysfs shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.addresses import Address, NodePath
from agent.core.errors import Reason
from agent.core.kinds import CommonExpectation, CommonInfo
from agent.core.pci import parse_address
from agent.core.places import find
from agent.core.tree import SysfsTree
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.base import Found
from agent.handlers.devices.common import CommonDevices
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ANY = CommonExpectation()


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def look(
    sysfs: FakeSysfs, address: str | Address = "02/00", expected: CommonExpectation = ANY
) -> Verdict[Found]:
    """What the class says once the driver's probe has been waited for."""
    verdict = probe(sysfs.tree, address, expected)
    if isinstance(verdict, NotYet) and verdict.needs:
        texts = {read: read.path.read_text().strip() for read in verdict.needs}
        verdict = probe(replace(sysfs.tree, slow_texts=texts), address, expected)
    return verdict


def probe(
    tree: SysfsTree, address: str | Address = "02/00", expected: CommonExpectation = ANY
) -> Verdict[Found]:
    place = find(tree, parse_address(address) if isinstance(address, str) else address)
    return (
        CommonDevices().probe(tree, place.result, expected) if isinstance(place, Ready) else place
    )


def nodes(verdict: Verdict[Found]) -> list[tuple[str, str]]:
    assert isinstance(verdict, Ready), verdict
    assert verdict.result.info == CommonInfo()
    return [(node.type.value, Path(node.path).name) for node in verdict.result.nodes]


def waiting(verdict: Verdict[Found]) -> NotYet:
    assert isinstance(verdict, NotYet), verdict
    return verdict


def function(sysfs: FakeSysfs, *, driver: str | None = "uio_pci_generic") -> Path:
    path = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver=driver)
    sysfs.write(path / "power/control", "auto")
    return path


def device(sysfs: FakeSysfs, path: Path, subsystem: str, dev: str, name: str = "") -> Path:
    """A device with a node, as its driver makes it; its name in /dev may have a slash."""
    name = name or path.name
    sysfs.write(path / "dev", dev)
    sysfs.write(path / "uevent", f"MAJOR={dev.partition(':')[0]}\nDEVNAME={name}")
    sysfs.link(path / "subsystem", f"../../../../../../class/{subsystem}")
    sysfs.link(path / "device", "../..")
    sysfs.node(name, dev, "b" if subsystem == "block" else "c")
    return path


def test_a_function_with_a_driver_and_no_nodes(sysfs: FakeSysfs) -> None:
    function(sysfs)
    assert nodes(look(sysfs)) == []


def test_the_drivers_probe_is_waited_for(sysfs: FakeSysfs) -> None:
    """The link `driver` is there before the driver has made anything."""
    path = function(sysfs)
    verdict = waiting(probe(sysfs.tree))
    assert "still at work" in verdict.evidence
    assert [read.path for read in verdict.needs] == [path / "power/control"]


@pytest.mark.parametrize(
    ("below", "subsystem", "dev", "name"),
    [
        ("uio/uio0", "uio", "243:0", "uio0"),
        ("tpm/tpm0", "tpm", "10:224", "tpm0"),
        ("tty/ttyS4", "tty", "4:68", "ttyS4"),
        ("accel/accel0", "accel", "261:0", "accel/accel0"),
        ("infiniband_verbs/uverbs0", "infiniband_verbs", "231:192", "infiniband/uverbs0"),
        ("infiniband_mad/umad0", "infiniband_mad", "231:0", "infiniband/umad0"),
    ],
)
def test_nodes_of_any_subsystem(
    sysfs: FakeSysfs, below: str, subsystem: str, dev: str, name: str
) -> None:
    device(sysfs, function(sysfs) / below, subsystem, dev, name)
    verdict = look(sysfs, expected=CommonExpectation(nodes=1))
    assert isinstance(verdict, Ready), verdict
    (node,) = verdict.result.nodes
    assert node.path == str(sysfs.roots.dev / name)
    assert (node.type.value, f"{node.major}:{node.minor}") == ("c", dev)


def test_an_nvme_controller_with_its_disk(sysfs: FakeSysfs) -> None:
    """Controller, generic node and disk with its partition, each of its own type."""
    controller = function(sysfs, driver="nvme") / "nvme/nvme0"
    device(sysfs, controller, "nvme", "241:0")
    device(sysfs, controller / "ng0n1", "nvme-generic", "240:0")
    device(sysfs, controller / "nvme0n1", "block", "259:0")
    device(sysfs, controller / "nvme0n1/nvme0n1p1", "block", "259:1")
    assert nodes(look(sysfs)) == [
        ("c", "nvme0"),
        ("c", "ng0n1"),
        ("b", "nvme0n1"),
        ("b", "nvme0n1p1"),
    ]


def test_what_is_behind_a_bridge_is_not_the_bridges(sysfs: FakeSysfs) -> None:
    device(sysfs, function(sysfs) / "uio/uio0", "uio", "243:0")
    bridge = sysfs.sys / "devices/pci0000:00/0000:00:02.0"
    sysfs.write(bridge / "power/control", "auto")
    assert nodes(look(sysfs, "02")) == []


def test_a_node_that_is_not_there_yet(sysfs: FakeSysfs) -> None:
    device(sysfs, function(sysfs) / "uio/uio0", "uio", "243:0")
    sysfs.nodes.clear()
    assert "no node" in waiting(look(sysfs)).evidence


def test_a_node_of_other_numbers_is_not_its(sysfs: FakeSysfs) -> None:
    device(sysfs, function(sysfs) / "uio/uio0", "uio", "243:0")
    sysfs.node("uio0", "243:1", "c")
    assert "c 243:1" in waiting(look(sysfs)).evidence


def test_fewer_nodes_than_expected(sysfs: FakeSysfs) -> None:
    device(sysfs, function(sysfs) / "uio/uio0", "uio", "243:0")
    verdict = waiting(look(sysfs, expected=CommonExpectation(nodes=2)))
    assert "no 2 nodes in /dev but 1" in verdict.evidence
    assert "uio0" in verdict.evidence


def test_no_driver_in_the_kernel_at_all(sysfs: FakeSysfs) -> None:
    path = function(sysfs, driver=None)
    sysfs.write(path / "modalias", "pci:v00001AF4d00001042")
    tree = sysfs.tree
    tree.driver_notes["pci:v00001AF4d00001042"] = "no module matches its alias"
    verdict = waiting(probe(tree))
    assert "it has no driver" in verdict.evidence
    assert "no driver for 0000:01:00.0: no module matches its alias" in verdict.evidence
    assert verdict.driverless == (path,)


def test_a_virtio_device_without_its_driver(sysfs: FakeSysfs) -> None:
    """Its function has one, which only carries it."""
    carried = sysfs.virtio(function(sysfs, driver="virtio-pci"), "virtio2", driver=None)
    sysfs.write(carried / "modalias", "virtio:d00000014v00001AF4")
    verdict = waiting(look(sysfs))
    assert "no driver of virtio2" in verdict.evidence
    assert verdict.driverless == (carried,)
    sysfs.link(carried / "driver", "../../../../../bus/virtio/drivers/virtio_crypto")
    assert nodes(look(sysfs)) == []


def test_a_driver_that_refused(sysfs: FakeSysfs) -> None:
    """VIRTIO_CONFIG_S_FAILED (virtio 1.2, 2.1) is 128."""
    carried = sysfs.virtio(function(sysfs, driver="virtio-pci"), "virtio2", driver=None)
    sysfs.write(carried / "status", "0x00000083")
    verdict = look(sysfs)
    assert isinstance(verdict, Failed)
    assert verdict.reason is Reason.DRIVER_REFUSED


def test_another_device_than_expected(sysfs: FakeSysfs) -> None:
    function(sysfs)
    assert nodes(look(sysfs, expected=CommonExpectation(pci_id="1af4:1042"))) == []
    verdict = waiting(look(sysfs, expected=CommonExpectation(pci_id="1af4:1044")))
    assert verdict.reason is Reason.UNEXPECTED_DEVICE


def test_another_driver_than_expected(sysfs: FakeSysfs) -> None:
    function(sysfs)
    assert nodes(look(sysfs, expected=CommonExpectation(driver="uio_pci_generic"))) == []
    verdict = waiting(look(sysfs, expected=CommonExpectation(driver="qat_4xxx")))
    assert verdict.reason is Reason.UNEXPECTED_DEVICE
    assert "uio_pci_generic" in verdict.evidence


def test_a_class_device_by_its_node_has_no_driver(sysfs: FakeSysfs) -> None:
    """A loop disk is not on a bus: its directory never has a `driver`."""
    loop = device(sysfs, sysfs.sys / "devices/virtual/block/loop0", "block", "7:0")
    sysfs.link(sysfs.sys / "dev/block/7:0", str(loop))
    assert nodes(look(sysfs, NodePath.parse("/dev/loop0"))) == [("b", "loop0")]


def test_a_device_of_another_bus_needs_its_driver(sysfs: FakeSysfs) -> None:
    """Found by its node, which an earlier driver made; the driver is gone since."""
    path = device(sysfs, sysfs.sys / "devices/pnp0/00:04", "tty", "4:64", "ttyS0")
    sysfs.link(path / "subsystem", "../../../bus/pnp")
    sysfs.link(sysfs.sys / "dev/char/4:64", str(path))
    assert "it has no driver" in waiting(look(sysfs, NodePath.parse("/dev/ttyS0"))).evidence
    sysfs.link(path / "driver", "../../../bus/pnp/drivers/serial")
    assert nodes(look(sysfs, NodePath.parse("/dev/ttyS0"))) == [("c", "ttyS0")]

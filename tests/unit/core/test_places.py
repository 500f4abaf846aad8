"""From an address to the device that sysfs has there now."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core import addresses
from agent.core.places import Place, find
from agent.core.verdict import Failed, NotYet, Order, Ready, Verdict
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ADAPTER = "0000:01:00.0"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def look(sysfs: FakeSysfs, kind: str, text: str) -> Verdict[Place]:
    return find(sysfs.tree, addresses.parse(kind, text))


def place(verdict: Verdict[Place]) -> Place:
    assert isinstance(verdict, Ready), verdict
    return verdict.result


def waiting(verdict: Verdict[Place]) -> NotYet:
    assert isinstance(verdict, NotYet), verdict
    return verdict


def adapter(sysfs: FakeSysfs, host: int, *, slot: str = "02", bus: str = "01") -> Path:
    """A virtio-scsi controller with one SCSI host; returns the host's directory."""
    port = sysfs.port_with_slot(slot, bus)
    function = sysfs.function(port, f"0000:{bus}:00.0", driver="virtio-pci")
    directory = sysfs.virtio(function, f"virtio{host}", driver="virtio_scsi") / f"host{host}"
    (directory / "scsi_host" / f"host{host}").mkdir(parents=True)
    sysfs.link(
        sysfs.sys / f"class/scsi_host/host{host}", str(directory / "scsi_host" / f"host{host}")
    )
    sysfs.link(sysfs.sys / f"bus/scsi/devices/host{host}", str(directory))
    return directory


def unit(sysfs: FakeSysfs, host: Path, name: str) -> Path:
    target = host / f"target{name.rpartition(':')[0]}"
    directory = target / name
    sysfs.write(directory / "type", "0")
    sysfs.link(sysfs.sys / "bus/scsi/devices" / target.name, str(target))
    sysfs.link(sysfs.sys / "bus/scsi/devices" / name, str(directory))
    return directory


def test_a_function_by_path_and_by_bdf_is_one_place(sysfs: FakeSysfs) -> None:
    function = sysfs.virtio_disk(sysfs.port_with_slot(), ADAPTER)
    by_path, by_bdf = (
        place(look(sysfs, "pci_path", "02/00")),
        place(look(sysfs, "pci_bdf", ADAPTER)),
    )
    assert by_path == by_bdf
    assert (by_path.directory, by_path.is_function, by_path.name) == (function, True, ADAPTER)


def test_a_logical_unit_and_no_neighbour(sysfs: FakeSysfs) -> None:
    """With 0:0:0:10 and 0:0:0:11 there first, 0:0:0:1 is still waited for."""
    host = adapter(sysfs, 0)
    for name in ("0:0:0:10", "0:0:0:11"):
        unit(sysfs, host, name)
    missing = waiting(look(sysfs, "scsi", "0:0:0:1"))
    assert "0:0:0:10, 0:0:0:11" in missing.evidence
    wanted = unit(sysfs, host, "0:0:0:1")
    found = place(look(sysfs, "scsi", "0:0:0:1"))
    assert found.directory == wanted
    assert found.function is not None
    assert (str(found.function.bdf), str(found.function.path)) == (ADAPTER, "02/00")
    assert not found.is_function


def test_several_hosts(sysfs: FakeSysfs) -> None:
    first, second = adapter(sysfs, 0), adapter(sysfs, 3, slot="03", bus="02")
    unit(sysfs, first, "0:0:0:1")
    wanted = unit(sysfs, second, "3:0:0:1")
    assert place(look(sysfs, "scsi", "[03/00]*:0:0:1")).directory == wanted
    assert place(look(sysfs, "scsi", "3:0:0:1")).directory == wanted
    ambiguous = look(sysfs, "scsi", "*:0:0:1")
    assert isinstance(ambiguous, Failed)
    assert "0:0:0:1, 3:0:0:1" in ambiguous.why
    waiting(look(sysfs, "scsi", "[03/00]0:0:0:1"))


def test_the_hosts_that_may_have_a_missing_unit_are_asked_to_look(sysfs: FakeSysfs) -> None:
    """scsi_scan: a host's `scan` takes CHANNEL TARGET LUN; hosts of others are left alone."""
    adapter(sysfs, 0)
    adapter(sysfs, 3, slot="03", bus="02")
    missing = waiting(look(sysfs, "scsi", "[03/00]*:0:5:1"))
    assert missing.orders == (Order(path=sysfs.sys / "class/scsi_host/host3/scan", text="0 5 1\n"),)
    assert len(waiting(look(sysfs, "scsi", "*:0:5:1")).orders) == 2


def test_a_controller_that_is_not_there_yet_is_waited_for(sysfs: FakeSysfs) -> None:
    sysfs.port_with_slot()
    assert "no 0000:01:00.0" in waiting(look(sysfs, "scsi", "[02/00]*:0:0:1")).evidence


def test_a_channel_device(sysfs: FakeSysfs) -> None:
    """The disk lies below its own subchannel: css0/0.0.0001/0.0.0002 (s390 driver model)."""
    directory = sysfs.sys / "devices/css0/0.0.000a/0.0.0001"
    assert "has no 0.0.0001: there is nothing" in waiting(look(sysfs, "ccw", "0.0.0001")).evidence
    sysfs.write(directory / "online", "1")
    sysfs.link(sysfs.sys / "bus/ccw/devices/0.0.0001", str(directory))
    found = place(look(sysfs, "ccw", "0.0.0001"))
    assert (found.directory, found.function) == (directory, None)
    assert "there is 0.0.0001" in waiting(look(sysfs, "ccw", "0.0.0010")).evidence


IOMEM = """\
00000000-00000fff : Reserved
d0000000-d00001ff : virtio-mmio.0
d0000200-d00003ff : LNRO0005:01
  d0000200-d00003ff : virtio-mmio LNRO0005:01
"""


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("0xd0000000", "virtio-mmio.0"),
        ("0xd0000200", "LNRO0005:01"),
        ("0xa000000", "a000000.virtio_mmio"),
    ],
)
def test_a_register_window(sysfs: FakeSysfs, address: str, name: str) -> None:
    """Made on the command line, by ACPI, or by a device tree (drivers/virtio/virtio_mmio.c)."""
    sysfs.write(sysfs.roots.proc / "iomem", IOMEM)
    assert "virtio-mmio devices: none" in waiting(look(sysfs, "mmio", address)).evidence
    directory = sysfs.sys / "devices/platform" / name
    sysfs.write(directory / "uevent", "DRIVER=virtio-mmio")
    sysfs.link(sysfs.sys / "bus/platform/devices" / name, str(directory))
    assert place(look(sysfs, "mmio", address)).directory == directory
    waiting(look(sysfs, "mmio", "0xd0000400"))


def test_a_node_leads_to_its_device(sysfs: FakeSysfs) -> None:
    function = sysfs.virtio_disk(sysfs.port_with_slot(), ADAPTER)
    disk = function / "virtio_vdb/block/vdb"
    assert "no device node /dev/vdz" in waiting(look(sysfs, "path", "/dev/vdz")).evidence
    assert "no device" in waiting(look(sysfs, "path", "/dev/vdb")).evidence
    sysfs.link(sysfs.sys / "dev/block/254:16", str(disk))
    found = place(look(sysfs, "path", "/dev/vdb"))
    assert found.directory == disk
    assert found.function is not None
    assert str(found.function.path) == "02/00"


def test_an_interface_by_its_mac_is_the_physical_one(sysfs: FakeSysfs) -> None:
    """A VLAN on top has the same address, and no device of its own."""
    function = sysfs.function(sysfs.port_with_slot(), ADAPTER, driver="virtio-pci")
    interface = sysfs.virtio(function, "virtio1", driver="virtio_net") / "net/eth0"
    for name, directory in (("eth0", interface), ("eth0.5", sysfs.sys / "devices/virtual/net/v5")):
        sysfs.write(directory / "address", "52:54:00:12:34:56")
        sysfs.link(sysfs.sys / "class/net" / name, str(directory))
    missing = waiting(look(sysfs, "mac", "52:54:00:12:34:56"))
    assert "no physical interface" in missing.evidence
    sysfs.link(interface / "device", str(function / "virtio1"))
    found = place(look(sysfs, "mac", "52:54:00:12:34:56"))
    assert (found.directory, found.interface) == (function, "eth0")
    assert "there is eth0, eth0.5" in waiting(look(sysfs, "mac", "52:54:00:12:34:57")).evidence


def test_two_interfaces_of_one_mac_are_an_error(sysfs: FakeSysfs) -> None:
    for number in ("1", "2"):
        function = sysfs.function(
            sysfs.port_with_slot(f"0{number}", f"0{number}"), f"0000:0{number}:00.0"
        )
        interface = function / f"net/eth{number}"
        sysfs.write(interface / "address", "52:54:00:12:34:56")
        sysfs.link(interface / "device", str(function))
        sysfs.link(sysfs.sys / f"class/net/eth{number}", str(interface))
    several = look(sysfs, "mac", "52:54:00:12:34:56")
    assert isinstance(several, Failed)
    assert "eth1, eth2" in several.why


def test_another_root_complex_and_four_levels(sysfs: FakeSysfs) -> None:
    root = sysfs.root_bus("0000:20")
    parent = root
    for bus, child in ((0x20, 0x21), (0x21, 0x22), (0x22, 0x23)):
        parent = sysfs.bridge(parent, f"0000:{bus:02x}:00.0", f"0000:{child:02x}")
    function = sysfs.function(parent, "0000:23:03.1")
    assert place(look(sysfs, "pci_path", "0000:20/00/00/00/03.1")).directory == function


def test_a_bridge_that_is_not_enumerated_yet_is_waited_for(sysfs: FakeSysfs) -> None:
    sysfs.bridge(sysfs.root_bus(), "0000:00:02.0")
    missing = waiting(look(sysfs, "pci_path", "02/03"))
    assert "the bridge 0000:00:02.0 (path 02) has 0 buses" in missing.evidence


def test_a_bridge_with_two_buses_is_an_error_with_both(sysfs: FakeSysfs) -> None:
    sysfs.bridge(sysfs.root_bus(), "0000:00:02.0", "0000:01", "0000:02")
    failed = look(sysfs, "pci_path", "02/03")
    assert isinstance(failed, Failed)
    assert "0000:00:02.0 (path 02) has 2 buses: 0000:01, 0000:02" in failed.why

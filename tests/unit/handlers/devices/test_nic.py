"""Network interfaces behind functions, as sysfs shows them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.addresses import Address, MacAddress
from agent.core.errors import Reason
from agent.core.kinds import NicExpectation, NicInfo
from agent.core.pci import parse_address
from agent.core.places import find
from agent.core.tree import SysfsTree
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.base import Found
from agent.handlers.devices.nic import NicDevices
from tests.fakes.nic_trees import MAC, ethernet, interface, rename, virtio_net
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

ANY = NicExpectation()
OTHER = "52:54:00:aa:bb:01"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def look(
    sysfs: FakeSysfs, address: str | Address = "02/00", expected: NicExpectation = ANY
) -> Verdict[Found]:
    """What the class says, with its slow reads made."""
    verdict = probe(sysfs.tree, address, expected)
    if isinstance(verdict, NotYet) and verdict.needs:
        texts = {read: read.path.read_text().strip() for read in verdict.needs}
        verdict = probe(replace(sysfs.tree, slow_texts=texts), address, expected)
    return verdict


def probe(
    tree: SysfsTree, address: str | Address = "02/00", expected: NicExpectation = ANY
) -> Verdict[Found]:
    wanted = parse_address(address) if isinstance(address, str) else address
    place = find(tree, wanted)
    return NicDevices().probe(tree, place.result, expected) if isinstance(place, Ready) else place


def nic(verdict: Verdict[Found]) -> NicInfo:
    assert isinstance(verdict, Ready), verdict
    assert verdict.result.nodes == ()
    assert isinstance(verdict.result.info, NicInfo)
    return verdict.result.info


def waiting(verdict: Verdict[Found]) -> NotYet:
    assert isinstance(verdict, NotYet), verdict
    return verdict


def test_an_interface_behind_virtio(sysfs: FakeSysfs) -> None:
    """Its events have no DEVNAME, and it has no node: found all the same (case 11)."""
    function = sysfs.function(sysfs.port_with_slot(), "0000:01:00.0", driver="virtio-pci")
    device = sysfs.virtio(function, "virtio2", driver="virtio_net")
    sysfs.write(function / "power/control", "auto")
    interface(sysfs, device, "eth7", index=12, mtu=9000)
    assert nic(look(sysfs)) == NicInfo(name="eth7", mac=MAC, mtu=9000, ifindex=12)


def test_an_interface_of_the_functions_own_driver(sysfs: FakeSysfs) -> None:
    interface(sysfs, ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0"), "enp1s0")
    assert nic(look(sysfs)).name == "enp1s0"


def test_the_neighbours_interface_is_not_its(sysfs: FakeSysfs) -> None:
    """Slot 12 is not slot 2, and a bridge is not what is behind it (case 9)."""
    ethernet(sysfs, sysfs.port_with_slot("02", "01"), "0000:01:00.0")
    interface(sysfs, ethernet(sysfs, sysfs.port_with_slot("12", "02"), "0000:02:00.0"), "eth0")
    assert "no network interface" in waiting(look(sysfs)).evidence
    assert "no network interface" in waiting(look(sysfs, "12")).evidence


def test_a_virtual_function_is_another_device(sysfs: FakeSysfs) -> None:
    port = sysfs.port_with_slot()
    interface(sysfs, ethernet(sysfs, port, "0000:01:00.0", driver="igb"), "eth0", index=2)
    virtual = ethernet(sysfs, port, "0000:01:10.0", driver="igbvf")
    interface(sysfs, virtual, "eth1", mac=OTHER, index=3)
    assert (nic(look(sysfs)).ifindex, nic(look(sysfs, "02/10")).ifindex) == (2, 3)


def test_without_an_address_to_go_by_the_driver_has_to_be_done(sysfs: FakeSysfs) -> None:
    """A driver with two ports makes one interface after the other."""
    function = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    interface(sysfs, function, "eth0")
    verdict = waiting(probe(sysfs.tree))
    assert [read.path for read in verdict.needs] == [function / "power/control"]
    assert nic(probe(sysfs.tree, expected=NicExpectation(mac=MAC))).name == "eth0"


def test_of_several_ports_the_one_with_the_address(sysfs: FakeSysfs) -> None:
    function = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0", driver="mlx4_core")
    interface(sysfs, function, "eth0", index=2)
    interface(sysfs, function, "eth1", mac=OTHER, index=3)
    assert nic(look(sysfs, expected=NicExpectation(mac=OTHER))).ifindex == 3
    verdict = look(sysfs)
    assert isinstance(verdict, Failed)
    assert f"eth0 ({MAC}), eth1 ({OTHER})" in verdict.why


def test_another_address_may_be_the_old_device_of_the_slot(sysfs: FakeSysfs) -> None:
    interface(sysfs, ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0"), "eth0")
    verdict = waiting(look(sysfs, expected=NicExpectation(mac=OTHER)))
    assert verdict.reason is Reason.UNEXPECTED_DEVICE
    assert OTHER in verdict.evidence
    assert f"eth0 ({MAC})" in verdict.evidence


def test_addresses_are_compared_whatever_their_case(sysfs: FakeSysfs) -> None:
    """The kernel writes lower case; a request's is made so on entry (case 69)."""
    function = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    interface(sysfs, function, "eth0", mac=OTHER.upper())
    assert nic(look(sysfs, expected=NicExpectation(mac=OTHER))).mac == OTHER


def test_found_by_its_address(sysfs: FakeSysfs) -> None:
    """The physical interface, not the VLAN on top of it (case 69)."""
    function = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    interface(sysfs, function, "eth0", mac=OTHER, index=2)
    interface(sysfs, function, "eth1", index=3)
    vlan = sysfs.sys / "devices/virtual/net/eth1.10"
    sysfs.write(vlan / "address", MAC)
    sysfs.link(sysfs.sys / "class/net/eth1.10", str(vlan))
    assert nic(look(sysfs, MacAddress.parse(MAC))).ifindex == 3


def test_of_a_failover_pair_the_master(sysfs: FakeSysfs) -> None:
    """virtio-net with VIRTIO_NET_F_STANDBY makes two of one address
    (Documentation/networking/net_failover.rst)."""
    device = virtio_net(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    interface(sysfs, device, "eth0", index=3)
    standby = interface(sysfs, device, "eth0nsby", index=2)
    sysfs.link(standby / "master", "../eth0")
    assert nic(look(sysfs, expected=NicExpectation(mac=MAC))).ifindex == 3


def test_a_bonds_slave_is_still_the_functions(sysfs: FakeSysfs) -> None:
    device = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    slave = interface(sysfs, device, "eth0")
    sysfs.link(slave / "master", "../../../../virtual/net/bond0")
    assert nic(look(sysfs)).name == "eth0"


def test_in_another_network_namespace(sysfs: FakeSysfs) -> None:
    device = virtio_net(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    (device / "net").mkdir()
    assert "may be in another network namespace" in waiting(look(sysfs)).evidence


def test_a_driver_without_an_interface_yet(sysfs: FakeSysfs) -> None:
    virtio_net(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    verdict = waiting(look(sysfs))
    assert "virtio2 (virtio_net)" in verdict.evidence
    assert "namespace" not in verdict.evidence
    assert sysfs.devpath(sysfs.sys / "devices/pci0000:00/0000:00:02.0/0000:01:00.0") in verdict.near


@pytest.mark.parametrize("name", ["address", "mtu", "uevent"])
def test_half_made(sysfs: FakeSysfs, name: str) -> None:
    device = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    (interface(sysfs, device, "eth0") / name).unlink()
    assert "only half there" in waiting(look(sysfs)).evidence


def test_index_zero_is_no_interface(sysfs: FakeSysfs) -> None:
    """Interfaces are counted from 1 (netdevice(7))."""
    device = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    interface(sysfs, device, "eth0", index=0)
    assert "only half there" in waiting(look(sysfs)).evidence


def test_a_dangling_link_in_the_directory(sysfs: FakeSysfs) -> None:
    device = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    sysfs.link(device / "net/eth9", "../gone")
    assert "no network interface" in waiting(look(sysfs)).evidence


def test_a_disk_is_no_interface(sysfs: FakeSysfs) -> None:
    sysfs.virtio_disk(sysfs.port_with_slot(), "0000:01:00.0")
    evidence = waiting(look(sysfs)).evidence
    assert "virtio_vdb (virtio_blk)" in evidence
    assert "1af4:1042" in evidence


class Renaming(SysfsTree):
    """Renames interfaces after the address of the first one was read."""

    def __init__(self, sysfs: FakeSysfs, device: Path, **renames: str) -> None:
        super().__init__(roots=sysfs.roots)
        self.sysfs = sysfs
        self.device = device
        self.renames = renames

    __slots__ = ("device", "renames", "sysfs")
    __setattr__ = object.__setattr__

    def text(self, path: Path) -> str | None:
        text = SysfsTree.text(self, path)
        if path.name == "address" and self.renames:
            renames, self.renames = self.renames, {}
            for old, new in renames.items():
                rename(self.sysfs, self.device / "net" / old, new)
        return text


def test_renamed_while_it_is_read(sysfs: FakeSysfs) -> None:
    device = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    interface(sysfs, device, "eth0", index=7)
    found = nic(probe(Renaming(sysfs, device, eth0="lan0"), expected=NicExpectation(mac=MAC)))
    assert found == NicInfo(name="lan0", mac=MAC, mtu=1500, ifindex=7)


@pytest.mark.parametrize(("mac", "name", "index"), [(MAC, "eth1", 7), (OTHER, "eth0", 8)])
def test_two_that_swap_their_names_while_they_are_read(
    sysfs: FakeSysfs, mac: str, name: str, index: int
) -> None:
    """Never the index of one with the address of the other."""
    device = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    interface(sysfs, device, "eth0", index=7, mac=MAC, mtu=1400)
    interface(sysfs, device, "eth1", index=8, mac=OTHER, mtu=1400)
    tree = Renaming(sysfs, device, eth0="parked", eth1="eth0", parked="eth1")
    verdict = probe(tree, expected=NicExpectation(mac=mac))
    if mac == MAC:
        assert nic(verdict) == NicInfo(name=name, mac=mac, mtu=1400, ifindex=index)
    else:
        # The directory listed as eth1 is the first interface's by now; a look later it is told.
        assert waiting(verdict).reason is Reason.UNEXPECTED_DEVICE
    assert nic(look(sysfs, expected=NicExpectation(mac=mac))) == NicInfo(
        name=name, mac=mac, mtu=1400, ifindex=index
    )


def test_renamed_after_the_directory_was_listed_it_is_still_one(sysfs: FakeSysfs) -> None:
    """It is read under its old name first, under its new one then."""
    device = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    interface(sysfs, device, "eth0", index=7)
    interface(sysfs, device, "eth1", index=7)
    assert nic(look(sysfs)) == NicInfo(name="eth1", mac=MAC, mtu=1500, ifindex=7)


def test_removed_while_it_is_read(sysfs: FakeSysfs) -> None:
    device = ethernet(sysfs, sysfs.port_with_slot(), "0000:01:00.0")
    path = interface(sysfs, device, "eth0")
    (path / "address").unlink()
    waiting(look(sysfs))
    shutil.rmtree(path)
    assert "no network interface" in waiting(look(sysfs)).evidence

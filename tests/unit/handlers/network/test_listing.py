"""What sysfs tells of an interface (Documentation/ABI/testing/sysfs-class-net)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.network import Link, LinkFlag
from agent.handlers.network.listing import Hardware, World, hardware_of, state_of
from agent.handlers.network.predictable import Port
from tests.fakes import nic_trees
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.network]

ETH0 = Link(index=7, name="eth0", flags=LinkFlag.UP, mtu=1500, mac=nic_trees.MAC)


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    made = FakeSysfs(tmp_path)
    device = nic_trees.virtio_net(made, made.port_with_slot(), "0000:01:00.0")
    nic_trees.interface(made, device, "eth0", index=7)
    return made


def test_behind_virtio_the_driver_is_that_of_the_interface(sysfs: FakeSysfs) -> None:
    found = hardware_of(sysfs.tree, ETH0)
    assert (str(found.path), found.bdf, found.driver) == ("02/00", "0000:01:00.0", "virtio_net")
    assert found.port == Port()
    state = state_of(World(links={7: ETH0}), ETH0, found)
    assert (state.pci_path, state.pci_bdf, state.driver) == ("02/00", "0000:01:00.0", "virtio_net")


def test_ports_of_one_function(sysfs: FakeSysfs) -> None:
    port = sysfs.sys / "class/net/eth0"
    sysfs.write(port.resolve() / "dev_port", "1")
    sysfs.write(port.resolve() / "phys_port_name", "p1")
    assert hardware_of(sysfs.tree, ETH0).port == Port(number=1, name="p1")


@pytest.mark.parametrize(
    "other",
    [
        Link(index=8, name="eth0", flags=LinkFlag.UP, mtu=1500, mac=nic_trees.MAC),
        Link(index=7, name="eth0", flags=LinkFlag.UP, mtu=1500, mac="02:00:00:00:00:01"),
        Link(index=7, name="eth1", flags=LinkFlag.UP, mtu=1500, mac=nic_trees.MAC),
        Link(index=7, name="../eth0", flags=LinkFlag.UP, mtu=1500, mac=nic_trees.MAC),
    ],
)
def test_what_sysfs_says_of_another_does_not_count(sysfs: FakeSysfs, other: Link) -> None:
    """It shows the network namespace that it was mounted in, by names of now."""
    assert hardware_of(sysfs.tree, other) == Hardware()


def test_a_virtual_one_has_no_device(sysfs: FakeSysfs) -> None:
    virtual = sysfs.sys / "devices/virtual/net/br0"
    sysfs.write(virtual / "ifindex", "9")
    sysfs.write(virtual / "address", "02:00:00:00:00:09")
    sysfs.link(sysfs.sys / "class/net/br0", str(virtual))
    bridge = Link(index=9, name="br0", flags=LinkFlag.UP, mtu=1500, mac="02:00:00:00:00:09")
    assert hardware_of(sysfs.tree, bridge) == Hardware()


def test_names_of_master_and_parent() -> None:
    """A veth's IFLA_LINK is its other end, which is not below it."""
    bridge = Link(index=2, name="br0", flags=LinkFlag.UP, mtu=1500, kind="bridge")
    vlan = Link(index=3, name="v", flags=LinkFlag.UP, mtu=1500, kind="vlan", parent=2, master=2)
    veth = Link(index=4, name="a", flags=LinkFlag.UP, mtu=1500, kind="veth", parent=3)
    world = World(links={link.index: link for link in (bridge, vlan, veth)})
    state = state_of(world, vlan, Hardware())
    assert (state.parent, state.master) == ("br0", "br0")
    assert state_of(world, veth, Hardware()).parent == ""

"""Ports and their guest PCI paths, before there is a guest."""

from __future__ import annotations

import pytest

from innkeeper.shim import topology
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.topology import Layout, Needs, PortPool

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def test_root_ports_fill_the_functions_of_a_slot_before_the_next() -> None:
    """In the protocol's spelling function 0 of a step is left out."""
    ports = topology.build(Layout(ports=10)).ports
    paths = [port.pci_path for port in ports]
    assert paths[:3] == ["10/00", "10.1/00", "10.2/00"]
    assert paths[7:] == ["10.7/00", "11/00", "11.1/00"]


def test_the_path_says_where_qemu_puts_the_port() -> None:
    built = topology.build(Layout(ports=9))
    assert "id=port8," in built.devices[8]
    assert "addr=11.0," in built.devices[8]
    assert built.ports[8].pci_path == "11/00"


def test_all_ports_of_a_slot_are_told_to_be_multifunction() -> None:
    """The PCI specification has function 0's header say so, and QEMU wants it of all."""
    assert all("multifunction=on" in device for device in topology.build(Layout(ports=8)).devices)


def test_chassis_numbers_differ() -> None:
    """QEMU refuses two ports with the same chassis and slot number."""
    devices = topology.build(Layout(ports=16, bridge=True)).devices
    chassis = [word for device in devices for word in device.split(",") if "chassis=" in word]
    assert len(chassis) == len(set(chassis)) == 17


def test_a_switch_adds_paths_of_four_levels() -> None:
    """Root port, upstream port, downstream port, device."""
    built = topology.build(Layout(ports=1, switch=True))
    assert [port.pci_path for port in built.ports[1:3]] == ["19/00/00/00", "19/00/01/00"]
    assert any(device.startswith("x3130-upstream,") for device in built.devices)


def test_a_second_root_complex_has_a_bus_of_its_own() -> None:
    built = topology.build(Layout(ports=1, second_root=True))
    assert [port.pci_path for port in built.ports[1:]] == ["0000:80/00/00", "0000:80/01/00"]
    assert any("bus_nr=128" in device for device in built.devices)


def test_chassis_numbers_differ_with_everything() -> None:
    layout = Layout(ports=16, bridge=True, switch=True, second_root=True)
    devices = topology.build(layout).devices
    chassis = [word for device in devices for word in device.split(",") if "chassis=" in word]
    assert len(chassis) == len(set(chassis)) == 16 + 1 + 1 + 4 + 2


def test_a_display_gets_a_port_with_a_large_window() -> None:
    """A frame buffer of 16 MiB; firmware gives a port 2 MiB by itself."""
    built = topology.build(Layout(ports=16))
    pool = PortPool(ports=built.ports)
    assert pool.take(needs=Needs(roomy=True)).name == "port8"
    assert "mem-reserve=32M" in built.devices[8]
    assert pool.take().name == "port0"


def test_a_bridge_takes_no_device_for_pci_express() -> None:
    built = topology.build(Layout(ports=1, bridge=True))
    pool = PortPool(ports=built.ports)
    pool.take()
    with pytest.raises(ShimError) as caught:
        pool.take(needs=Needs(express=True))
    assert caught.value.reason is Reason.PORT_POOL_EMPTY
    assert pool.take().name == "bridge.1"


def test_a_bridge_adds_paths_of_three_levels() -> None:
    ports = topology.build(Layout(ports=1, bridge=True)).ports
    assert [port.pci_path for port in ports] == [
        "10/00",
        "18/00/01",
        "18/00/02",
        "18/00/03",
        "18/00/04",
    ]
    assert ports[1].bus == "bridge"


def test_the_most_ports_that_a_vm_may_have_fit_below_the_bridge() -> None:
    from innkeeper.shim.spec import MOST_PORTS

    paths = [port.pci_path for port in topology.build(Layout(ports=MOST_PORTS, bridge=True)).ports]
    assert len(set(paths)) == MOST_PORTS + 4
    assert paths[MOST_PORTS - 1] == "17.7/00"


def test_a_port_is_taken_once_until_it_is_given_back() -> None:
    pool = PortPool(ports=topology.build(Layout(ports=2)).ports)
    first, second = pool.take(), pool.take()
    assert first != second
    with pytest.raises(ShimError) as caught:
        pool.take()
    assert caught.value.reason is Reason.PORT_POOL_EMPTY
    pool.give_back(first)
    assert pool.take() == first


def test_ports_that_are_used_up_are_told_from_those_that_are_taken() -> None:
    """For a display only: QEMU never lets go of the one before."""
    pool = PortPool(ports=topology.build(Layout(ports=2)).ports)
    display = Needs(roomy=True, unspent=True)
    pool.give_back(pool.take(needs=display), spent=True)
    pool.take(needs=display)
    with pytest.raises(ShimError) as caught:
        pool.take(needs=display)
    message = "port1 taken; QEMU still holds displays that were in port0"
    assert caught.value.message == f"no free port with a large window: {message}"
    assert caught.value.hint.startswith("detach a device from port1; ")
    assert caught.value.fields["used_up"] == "port0"
    assert [pool.is_spent(port) for port in pool.ports][:2] == [True, False]


def test_too_many_cold_disks_are_a_bad_field() -> None:
    assert topology.cold_slot(0) == 5
    with pytest.raises(ShimError) as caught:
        topology.cold_slot(11)
    assert caught.value.reason is Reason.BAD_FIELD

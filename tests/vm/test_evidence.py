"""A device that does not come: what the error says of how far it came, for people and programs."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from tests.command_line import Innkeeper
from tests.fakes.plugs import plug
from tests.vm.guest import Guest, booted
from tests.vm.refusals import Refusal, refusal

pytestmark = [pytest.mark.vm, pytest.mark.devices]

NAME = "evidence"
PORT = "port0"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    """Of a flavour without drivers of displays and of Intel's network cards."""
    spec = VmSpec(name=NAME, image=f"{image}/", transport="serial", ports=2)
    async with booted(spec) as running:
        yield running


def wanted(path: str = "", **kind: Any) -> devices.Device:
    address = devices.DeviceAddress(pci_path=path) if path else None
    return devices.Device(id="device", address=address, timeout_seconds=1, **kind)


async def told_by_attach(guest: Guest, device: devices.Device) -> Refusal:
    request = devices.AttachDevicesRequest(devices=[device])
    return late(await refusal(guest.devices.Attach(request)))


async def told_by_plug(guest: Guest, device: devices.Device, **kind: Any) -> Refusal:
    """Both sides are as before afterwards."""
    told = late(await refusal(guest.host.Plug(plug("device", device, PORT, **kind))))
    assert not (await guest.host.ListPlugged(host.ListPluggedRequest())).devices
    ports = (await guest.host.ListPorts(host.ListPortsRequest())).ports
    assert [port.pci_path for port in ports if not port.devices] == ["10/00", "10.1/00"]
    assert not (await guest.devices.List(devices.ListDevicesRequest())).devices
    return told


def late(told: Refusal) -> Refusal:
    """What all of them have."""
    assert (told.code, told.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEVICE_NOT_READY")
    assert told.fields["evidence"] in told.text
    assert {"reached", "children", "events", "events_seen", "events_lost", "kernel_log"} <= {
        *told.fields
    }
    return told


async def test_nothing_is_plugged_in(machine: Guest) -> None:
    """The port is the deepest element of the path that there is."""
    told = await told_by_attach(machine, wanted("10/00", block=devices.BlockDevice()))
    assert told.fields["reached"] == "10"
    assert told.fields["kernel_log"] == "none"
    assert told.fields["events_seen"] == "0"
    assert "is it plugged into the port" in told.fields["hint"]


async def test_the_slot_is_not_there(machine: Guest) -> None:
    """What is on the root bus instead is said: an operator compares it with the port's name."""
    told = await told_by_attach(machine, wanted("0f/00", block=devices.BlockDevice()))
    assert told.fields["reached"] == "0000:00"
    assert "0000:00:10.0" in told.fields["children"].split(", ")


async def test_a_slot_behind_the_port_that_no_device_can_have(machine: Guest) -> None:
    told = await told_by_attach(machine, wanted("10/01", block=devices.BlockDevice()))
    assert told.fields["reached"] == "10"
    assert "no 0000:01:01.0" in told.fields["evidence"]


async def test_no_driver_takes_it(machine: Guest) -> None:
    """The function is there, its alias is known to no module, and the kernel says what it is."""
    told = await told_by_plug(
        machine, wanted(gpu=devices.GpuDevice()), gpu=host.Gpu(model=host.GPU_MODEL_BOCHS)
    )
    fields = told.fields
    assert (fields["reached"], fields["driver"]) == ("0000:01:00.0", "none")
    assert "no module matches its alias pci:v00001234d00001111" in fields["evidence"]
    assert "pci 0000:01:00.0: [1234:1111] type 00" in fields["kernel_log"]
    assert "--module or --package" in fields["hint"]


async def test_a_device_of_another_kind(machine: Guest) -> None:
    """A network interface that is asked for as a disk: its driver, and what it made."""
    told = await told_by_plug(machine, wanted(block=devices.BlockDevice()), nic=host.Nic())
    fields = told.fields
    assert (fields["reached"], fields["driver"]) == ("0000:01:00.0", "virtio-pci")
    assert fields["children"].startswith("virtio")
    assert "(virtio_net)" in fields["evidence"]
    assert int(fields["events_seen"]) > 0
    assert "add net /devices/pci0000:00/0000:00:10.0/0000:01:00.0/virtio" in fields["events"]
    assert "of the kind asked for" in fields["hint"]


async def test_the_command_line_tells_an_operator(machine: Guest) -> None:
    """Message, then facts by name, then what to do: on stderr, one a line."""
    innkeeper = Innkeeper(environment=os.environ)
    done = await innkeeper("device", "attach", NAME, "gpu", "--timeout", "3")
    assert (done.code, done.out) == (125, b"")
    message, *facts = done.err.splitlines()
    found = re.search(r"the PCI function (\S+) \(path \S+, 1234:1111\) is there", message)
    assert found is not None, message
    for fact in ("reason: DEVICE_NOT_READY", f"reached: {found[1]}", "driver: none"):
        assert f"  {fact}" in facts, done.err
    assert any(f"pci {found[1]}: [1234:1111] type 00" in fact for fact in facts), done.err
    assert facts[-1].startswith("  hint: no driver takes it")

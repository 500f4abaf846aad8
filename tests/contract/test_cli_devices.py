"""`innkeeper device` as a program, with a VM's daemon that is a fake: what both sides know."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from innkeeper.v1 import devices_pb2, host_pb2
from tests.command_line import Innkeeper
from tests.fakes.vm_daemon import FakeGuest, running_vm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.devices]

CONTROLLER = host_pb2.PluggedDevice(
    id="c0", pci_path="10/00", state="plugged", model="virtio-scsi", port="port0"
)
LUN = host_pb2.PluggedDevice(id="lun", state="plugged", model="scsi-hd", source="/d.img")
DIMM = host_pb2.PluggedDevice(id="more", state="plugged", model="pc-dimm")


def attached(device_id: str, **known: object) -> devices_pb2.AttachedDevice:
    device = devices_pb2.Device(id=device_id)
    return devices_pb2.AttachedDevice(device=device, **known)  # type: ignore[arg-type]


def lun_in_guest() -> devices_pb2.AttachedDevice:
    made = attached("lun", bus_address="2:0:0:1", pci_bdf="0000:01:00.0")
    made.device.address.scsi.adapter_pci_path = "10/00"
    return made


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "INNKEEPER_STATE_DIR": str(tmp_path / "vms")}


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[FakeGuest]:
    (tmp_path / "vms").mkdir(mode=0o700)
    guest = FakeGuest()
    async with running_vm(tmp_path / "vms", guest):
        yield guest


@pytest.fixture
def innkeeper(environment: dict[str, str]) -> Innkeeper:
    return Innkeeper(environment=environment)


async def row(innkeeper: Innkeeper) -> str:
    (line,) = (await innkeeper("device", "list", "web")).lines[1:]
    return " ".join(line.split())


async def test_a_nic_has_its_name_and_its_mac(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    nic = devices_pb2.NicInfo(name="eth1", mac="52:54:00:00:00:01")
    guest.hardware = [host_pb2.PluggedDevice(id="n", pci_path="10/00", state="plugged", model="m")]
    guest.attached = [attached("n", pci_bdf="0000:01:00.0", nic=nic)]
    assert await row(innkeeper) == "n m plugged 10/00 0000:01:00.0 eth1 52:54:00:00:00:01 - -"


async def test_a_scsi_disk_has_its_address_on_the_bus(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.hardware, guest.attached = [LUN], [lun_in_guest()]
    assert await row(innkeeper) == "lun scsi-hd plugged - 2:0:0:1 - - /d.img"


async def test_memory_has_the_size_that_qemu_tells(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    """As `query-memory-devices` answers it, by QEMU's own id."""
    guest.hardware, guest.attached = [DIMM], []
    data = {"id": "dev-more", "size": 256 << 20}
    guest.answers["query-memory-devices"] = [{"type": "dimm", "data": data}]
    assert await row(innkeeper) == "more pc-dimm plugged - - - 256 MiB -"


async def test_persistent_memory_has_a_size_too(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.attached = [attached("data", pmem=devices_pb2.PmemInfo(size=4 << 20))]
    assert " 4 MiB " in await row(innkeeper)


@pytest.mark.parametrize(
    ("host", "state", "shown"),
    [
        ("plugged", devices_pb2.DEVICE_STATE_ATTACHED, "plugged"),
        ("plugged", devices_pb2.DEVICE_STATE_VANISHED, "vanished"),
        ("plugged", devices_pb2.DEVICE_STATE_LEAVING, "leaving"),
        ("leaving", devices_pb2.DEVICE_STATE_VANISHED, "leaving"),
        ("plugging", devices_pb2.DEVICE_STATE_ATTACHED, "plugging"),
    ],
)
async def test_the_state_is_the_guests_where_it_knows_more(
    guest: FakeGuest,
    innkeeper: Innkeeper,
    host: str,
    state: devices_pb2.DeviceState.ValueType,
    shown: str,
) -> None:
    guest.hardware = [host_pb2.PluggedDevice(id="data", state=host)]
    guest.attached = [attached("data", state=state)]
    (record,) = json.loads((await innkeeper("device", "list", "web", "--json")).out)
    assert record["state"] == shown


async def test_the_disks_on_a_controller_hold_it(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.hardware, guest.attached = [CONTROLLER, LUN], [attached("c0"), lun_in_guest()]
    lines = (await innkeeper("device", "holders", "web", "c0")).lines
    assert [line.split()[:2] for line in lines] == [["KIND", "NAME"], ["plugged", "lun"]]
    told = json.loads((await innkeeper("device", "holders", "web", "c0", "--json")).out)
    assert told == [{"kind": "plugged", "name": "lun"}]
    assert (await innkeeper("device", "holders", "web", "lun")).out == b"lun: nobody uses it\n"


@pytest.mark.parametrize("words", [("holders", "web", "more"), ("reconfigure", "web", "more")])
async def test_memory_is_no_device_in_the_guest(
    guest: FakeGuest, innkeeper: Innkeeper, words: tuple[str, ...]
) -> None:
    guest.hardware, guest.attached = [DIMM], []
    vfio = ("--vfio",) if words[0] == "reconfigure" else ()
    done = await innkeeper("device", *words, *vfio)
    assert done.code == 125
    assert "more: pc-dimm is no device in the guest" in done.err


async def test_hardware_from_the_start_is_named_as_not_attached(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.attached = []
    done = await innkeeper("device", "holders", "web", "data")
    assert done.code == 125
    assert "data: is plugged in at 02/00, and not attached in the guest" in done.err
    assert "innkeeper device attach web cold data" in done.err


async def test_what_neither_side_knows_is_the_guests_to_say(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("device", "holders", "web", "nosuch")
    assert done.code == 125
    assert "no device nosuch" in done.err

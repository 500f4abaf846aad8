"""What is plugged into a VM, as the host and as the guest know it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import grpc

from innkeeper.cli import output
from innkeeper.cli.errors import CliError
from innkeeper.shim.hardware import Names
from innkeeper.v1 import devices_pb2, devices_pb2_grpc, host_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from innkeeper.shim.client import Vm

    Record = dict[str, str | int | None]

COLUMNS = ("ID", "MODEL", "STATE", "PCI PATH", "ADDRESS", "IN THE GUEST", "SIZE", "SOURCE")

# What the guest sees as more of what it has, and not as a device.
_MEMORY = frozenset({"pc-dimm", "virtio-mem"})
_NO_DEVICES = _MEMORY | {"cpu"}
_SHARE = "virtiofs"

# Only what the guest knows better than the host; "attached" is the host's "plugged".
_GUEST_STATES = {
    devices_pb2.DEVICE_STATE_LEAVING: "leaving",
    devices_pb2.DEVICE_STATE_VANISHED: "vanished",
}


async def records(vm: Vm) -> list[Record]:
    """By id; for people and for programs."""
    found = await vm.plugged()
    guest = {device.device.id: device for device in await _attached(vm)}
    sizes = await _memory_sizes(vm, found)
    return [_record(each, guest.get(each.id), sizes.get(each.id)) for each in found]


def rows(records: Iterable[Record]) -> list[list[str]]:
    """For `COLUMNS`."""
    made = []
    for record in records:
        size = record["size"]
        cells = (
            *(record["id"], record["model"], record["state"], record["pci_path"]),
            record["bus_address"] or record["bdf"],
            " ".join(str(record[name]) for name in ("node", "interface", "mac") if record[name]),
            output.size(size) if isinstance(size, int) else "",
            record["source"],
        )
        made.append([str(cell or "-") for cell in cells])
    return made


async def find(vm: Vm, device_id: str) -> host_pb2.PluggedDevice | None:
    return next((each for each in await vm.plugged() if each.id == device_id), None)


def require_in_guest(device: host_pb2.PluggedDevice | None) -> None:
    """Raises CliError for what the guest has, and has no device for."""
    if device is not None and device.model == _SHARE:
        raise CliError(
            f"{device.id}: a share is no device in the guest, but a storage once it is mounted",
            hint="innkeeper storage list says which, and who uses it",
        )
    if device is not None and device.model in _NO_DEVICES:
        raise CliError(
            f"{device.id}: {device.model} is no device in the guest: more of what it has anyway,"
            " which all of it uses",
            hint="innkeeper device detach asks the guest's kernel for it",
        )


@contextlib.contextmanager
def explained(vm: Vm, device: host_pb2.PluggedDevice | None) -> Iterator[None]:
    """A guest that does not know what is plugged in was never told of it."""
    try:
        yield
    except grpc.RpcError as error:
        code = getattr(error, "code", lambda: None)()
        if device is None or code is not grpc.StatusCode.NOT_FOUND:
            raise
        raise CliError(
            f"{device.id}: is plugged in at {device.pci_path}, and not attached in the guest",
            hint=f"attach it with: innkeeper device attach {vm.name} cold {device.id}",
        ) from error


async def disks_on(vm: Vm, device: host_pb2.PluggedDevice | None) -> tuple[str, ...]:
    """Ids of the disks on a SCSI controller, which `device detach` refuses for them."""
    if device is None or not device.model.startswith("virtio-scsi"):
        return ()
    return tuple(
        each.device.id
        for each in await _attached(vm)
        if each.device.address.scsi.adapter_pci_path == device.pci_path
    )


async def _attached(vm: Vm) -> tuple[devices_pb2.AttachedDevice, ...]:
    async with vm.channel() as channel:
        stub = devices_pb2_grpc.DevicesStub(channel)
        answer = await stub.List(devices_pb2.ListDevicesRequest())
    return tuple(answer.devices)


async def _memory_sizes(vm: Vm, found: Iterable[host_pb2.PluggedDevice]) -> Mapping[str, int]:
    """Bytes by id; only QEMU knows them."""
    ids = {Names(id=each.id, number=0).device: each.id for each in found if each.model in _MEMORY}
    if not ids:
        return {}
    told = [each["data"] for each in await vm.query("query-memory-devices")]
    return {ids[data["id"]]: data["size"] for data in told if data.get("id") in ids}


def _record(
    host: host_pb2.PluggedDevice, guest: devices_pb2.AttachedDevice | None, size: int | None
) -> Record:
    """Size in bytes; null for what the guest does not know, or has none."""
    guest = guest or devices_pb2.AttachedDevice()
    state = _GUEST_STATES.get(guest.state, host.state) if host.state == "plugged" else host.state
    return {
        "id": host.id,
        "model": host.model,
        "state": state,
        "pci_path": host.pci_path,
        "port": host.port,
        "bdf": guest.pci_bdf,
        "bus_address": guest.bus_address,
        "node": " ".join(node.path for node in guest.nodes),
        "interface": guest.nic.name,
        "mac": guest.nic.mac,
        "size": size or guest.block.size or guest.pmem.size or None,
        "source": host.source,
        "not_removable": host.not_removable,
    }

"""`innkeeper device`: disks that come and go while a VM runs."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import options, output
from innkeeper.cli.guest import plug
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import Vm, find_vm
from innkeeper.v1 import devices_pb2, devices_pb2_grpc

if TYPE_CHECKING:
    from innkeeper.v1 import host_pb2

app = typer.Typer(no_args_is_help=True, help="Devices of a running VM: attach, detach, list.")

_COLUMNS = ("ID", "STATE", "PCI PATH", "BDF", "NODE", "SIZE", "FILE")

VmArgument = Annotated[str, typer.Argument(metavar="VM", help="Name of the VM.")]


@app.command()
def attach(
    vm: VmArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Disk image or block device.")],
    device_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Id of the device.", show_default="disk-XXXX")
    ] = "",
    format_: Annotated[
        str, typer.Option("--format", metavar="raw|qcow2", help="Never guessed.")
    ] = "raw",
    *,
    read_only: Annotated[bool, typer.Option("--read-only", help="The guest can't write.")] = False,
) -> None:
    """Plugs a disk in and waits until the guest can use it.

    The answer says where it is: its PCI path (slots from the root, which does
    not change), its BDF, and its node in the guest's /dev.

    \b
    Examples:
      innkeeper device attach web data.img
      innkeeper device attach web base.qcow2 --format qcow2 --id base --read-only
    """
    disk = options.DiskOption(
        file=options.existing_file(file), mount="", read_only=read_only, format=format_
    )
    wait_for(_attach(vm, device_id or f"disk-{secrets.token_hex(2)}", disk))


@app.command()
def detach(
    vm: VmArgument,
    device_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the device.")],
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for the guest to let go.")
    ] = 30,
) -> None:
    """Takes a device away; refused while a mount or a container uses it.

    \b
    Example:
      innkeeper device detach web base
    """
    wait_for(find_vm(vm).unplug(device_id, timeout))
    output.say(f"{device_id}: detached")


@app.command("list")
def list_(vm: VmArgument, *, json: options.JsonOption = False) -> None:
    """Shows what is plugged in, as the host and as the guest see it.

    \b
    Examples:
      innkeeper device list web
      innkeeper device list web --json
    """
    wait_for(_list(find_vm(vm), as_json=json))


async def _attach(vm: str, device_id: str, disk: options.DiskOption) -> None:
    answer = await plug(find_vm(vm), device_id, disk)
    output.say(f"{device_id}: {where(answer.attached)} ({answer.usable_micros / 1000:.0f} ms)")


def where(device: devices_pb2.AttachedDevice) -> str:
    """ "PCI path 02/00, 0000:01:00.0, /dev/vdb, 64 MiB"."""
    parts = [f"PCI path {device.pci_path}", device.pci_bdf]
    parts += [node.path for node in device.nodes]
    if device.HasField("block"):
        parts.append(output.size(device.block.size))
    return ", ".join(part for part in parts if part)


async def _list(vm: Vm, *, as_json: bool) -> None:
    plugged = await vm.plugged()
    async with vm.channel() as channel:
        stub = devices_pb2_grpc.DevicesStub(channel)
        answer = await stub.List(devices_pb2.ListDevicesRequest())
    guest = {device.device.id: device for device in answer.devices}
    records = [_record(device, guest.get(device.id)) for device in plugged]
    if as_json:
        output.say_json(records)
        return
    output.table(_COLUMNS, [_row(record) for record in records])


def _row(record: dict[str, str | int | None]) -> list[str]:
    size = record["size"]
    shown = record | {"size": output.size(size) if isinstance(size, int) else ""}
    return [str(value or "-") for value in shown.values()]


def _record(
    host: host_pb2.PluggedDevice, guest: devices_pb2.AttachedDevice | None
) -> dict[str, str | int | None]:
    """Size in bytes; null for what the guest does not know, or is no disk."""
    nodes = [node.path for node in guest.nodes] if guest else []
    return {
        "id": host.id,
        "state": host.state,
        "pci_path": host.pci_path,
        "bdf": guest.pci_bdf if guest else "",
        "node": " ".join(nodes),
        "size": guest.block.size if guest and guest.HasField("block") else None,
        "file": host.file,
    }

"""`innkeeper device`: hardware that comes and goes while a VM runs."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer
from google.protobuf import json_format

from innkeeper.cli import hardware, hints, options, output, plugged, refusals
from innkeeper.cli.attached import online, where
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import Vm, find_vm
from innkeeper.v1 import devices_pb2, devices_pb2_grpc, host_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    no_args_is_help=True, help="Devices of a running VM: attach, detach, list, who holds them."
)

_PORT_COLUMNS = ("PORT", "PCI PATH", "DEVICES", "NOTES")

VmArgument = Annotated[
    str, typer.Argument(metavar="VM", help="Name of the VM.", callback=hints.about)
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the device.")]
IdOption = Annotated[
    str, typer.Option("--id", metavar="ID", help="Id of the device.", show_default="KIND-XXXX")
]
TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time for the whole, in the guest too.")
]

_ATTACH_HELP = f"""Plugs hardware in and waits until the guest can use it.

The answer says what it became: its PCI path (slots from the root, which does
not change), its BDF, its nodes in the guest's /dev, a name or a group. When it
does not come, the error says how far it came.

\b
Kinds (a FILE alone is a disk):
{hardware.table()}

\b
Examples:
  innkeeper device attach web data.img
  innkeeper device attach web base.qcow2 --format qcow2 --id base --read-only
  innkeeper device attach web nvme data.img --port port3
  innkeeper device attach web scsi-controller --id c0
  innkeeper device attach web scsi-disk data.img --controller c0 --lun 1
  innkeeper device attach web nic --mac 52:54:00:12:34:56
  innkeeper device attach web memory 256M
  innkeeper device attach web vfio 0000:3b:00.0 --guest vfio
"""


@app.command(help=_ATTACH_HELP)
def attach(  # noqa: PLR0913 - typer makes each parameter an option
    context: typer.Context,
    vm: VmArgument,
    what: Annotated[str, typer.Argument(metavar="KIND|FILE", help="What it is; see above.")],
    source: Annotated[
        str, typer.Argument(metavar="[FILE|SIZE|N|BDF|DIR|ID]", help="What it is made of.")
    ] = "",
    device_id: IdOption = "",
    format_: Annotated[
        str, typer.Option("--format", metavar="raw|qcow2", help="Of a disk; never guessed.")
    ] = "raw",
    port: Annotated[
        str, typer.Option(metavar="PORT", help="Where to plug it; see `device ports`.")
    ] = "",
    controller: Annotated[
        str, typer.Option(metavar="ID", help="The controller of a SCSI disk.")
    ] = "",
    target: Annotated[int, typer.Option(metavar="N", help="Its target there.")] = 0,
    lun: Annotated[int, typer.Option(metavar="N", help="Its logical unit.")] = 0,
    mac: Annotated[
        str, typer.Option(metavar="MAC", help="Of a NIC; made from its id without it.")
    ] = "",
    rate: Annotated[
        int,
        typer.Option(metavar="BYTES", help="Of an RNG: bytes a second at most; 0 means no limit."),
    ] = 0,
    guest: Annotated[
        str,
        typer.Option(
            metavar="vfio|kernel", help="Give it to VFIO in the guest, or to its own driver."
        ),
    ] = "",
    timeout: TimeoutOption = 30,
    *,
    read_only: Annotated[bool, typer.Option("--read-only", help="The guest can't write.")] = False,
    user_network: Annotated[
        bool, typer.Option("--user-network", help="A NIC that reaches the host's network.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    hardware.require_fitting(what, _given(context))
    wanted = options_of_guest(guest)
    if what == hardware.COLD:
        wait_for(_attach_cold(vm, source, wanted, timeout, as_json=json))
        return
    words = hardware.Words(
        source=source,
        format=format_,
        read_only=read_only,
        controller=controller,
        target=target,
        lun=lun,
        mac=mac,
        rate=rate,
        user_network=user_network,
    )
    function = host_pb2.PlugFunction(
        id=device_id or hardware.default_id(what, secrets.token_hex(2)),
        hardware=hardware.parse(what, words),
        guest=wanted,
    )
    request = host_pb2.PlugRequest(functions=[function], port=port, timeout_seconds=timeout)
    wait_for(_attach(vm, request, as_json=json))


def _given(context: typer.Context) -> Iterator[str]:
    """The options that are on the command line, by their names."""
    names = {"format_": "format", "device_id": "id"}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        is_option = parameter.param_type_name == "option"
        if is_option and source is not None and source.name == "COMMANDLINE":
            yield names.get(str(parameter.name), str(parameter.name))


def options_of_guest(mode: str) -> devices_pb2.Device | None:
    """What the agent is asked for, where that is not what the hardware has of itself."""
    modes = {"vfio": devices_pb2.VFIO_MODE_VFIO, "kernel": devices_pb2.VFIO_MODE_GUEST_KERNEL}
    if not mode:
        return None
    if mode not in modes:
        raise typer.BadParameter(f"--guest {mode}: one of vfio, kernel")
    return devices_pb2.Device(vfio=devices_pb2.VfioDevice(mode=modes[mode]))


@app.command()
def detach(vm: VmArgument, device_id: IdArgument, timeout: TimeoutOption = 30) -> None:
    """Takes a device away; refused while somebody uses it, with who.

    Of a device of several functions all go.

    \b
    Example:
      innkeeper device detach web base
    """
    with refusals.told():
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


@app.command()
def ports(vm: VmArgument, *, json: options.JsonOption = False) -> None:
    """Shows the places for devices, in the order in which they are taken.

    \b
    Example:
      innkeeper device ports web
    """
    found = wait_for(find_vm(vm).ports())
    if json:
        output.say_json([_as_dict(port) for port in found])
        return
    rows = [
        (port.name, port.pci_path, " ".join(port.devices) or "-", _notes(port)) for port in found
    ]
    output.table(_PORT_COLUMNS, rows)


def _notes(port: host_pb2.Port) -> str:
    if port.used_up:
        return "no display any more"
    return "large window" if port.large_window else ""


@app.command()
def holders(vm: VmArgument, device_id: IdArgument, *, json: options.JsonOption = False) -> None:
    """Shows who uses a device: what would refuse `device detach` now.

    \b
    Example:
      innkeeper device holders web data
    """
    with refusals.told():
        found, disks = wait_for(_holders(find_vm(vm), device_id))
    on: list[dict[str, object]] = [{"kind": "plugged", "name": name} for name in disks]
    if json:
        output.say_json([*map(_as_dict, found), *on])
    elif not (found or on):
        output.say(f"{device_id}: nobody uses it")
    else:
        rows = [*map(_plain, found), *on]
        output.table(refusals.HOLDERS, [refusals.row(row) for row in rows])


@app.command()
def reconfigure(  # noqa: PLR0913 - typer makes each parameter an option
    vm: VmArgument,
    device_id: IdArgument,
    driver: Annotated[str, typer.Option(metavar="NAME", help="A kernel driver of the guest.")] = "",
    mig: Annotated[
        str, typer.Option(metavar="PROFILE", help='A MIG profile, as in "1g.10gb".')
    ] = "",
    *,
    vfio: Annotated[bool, typer.Option("--vfio", help="To VFIO.")] = False,
    kernel: Annotated[bool, typer.Option("--kernel", help="Back to its own driver.")] = False,
    json: options.JsonOption = False,
) -> None:
    """Changes who drives a device in the guest, while it is attached.

    \b
    Examples:
      innkeeper device reconfigure web nic0 --vfio
      innkeeper device reconfigure web nic0 --kernel
      innkeeper device reconfigure web gpu0 --mig 1g.10gb
    """
    if sum(map(bool, (driver, mig, vfio, kernel))) != 1:
        raise typer.BadParameter("one of --vfio, --kernel, --driver NAME, --mig PROFILE")
    request = devices_pb2.ReconfigureDeviceRequest(id=device_id)
    if driver:
        request.driver = driver
    elif mig:
        request.mig_profile = mig
    else:
        modes = devices_pb2.VFIO_MODE_VFIO, devices_pb2.VFIO_MODE_GUEST_KERNEL
        request.vfio = modes[0] if vfio else modes[1]
    with refusals.told():
        device = wait_for(_reconfigure(find_vm(vm), request))
    _say(device_id, device, f"driver {device.driver or 'none'}", as_json=json)


async def _attach(vm: str, request: host_pb2.PlugRequest, *, as_json: bool) -> None:
    with refusals.told():
        answer = await find_vm(vm).plug(request)
    if as_json:
        output.say_json(_as_dict(answer))
        return
    time = f"{answer.usable_micros / 1000:.0f} ms"
    for device in answer.attached:
        told = online(answer.online) if answer.HasField("online") else where(device)
        output.say(f"{device.device.id}: {told} ({time})")


async def _attach_cold(
    vm: str, device_id: str, wanted: devices_pb2.Device | None, timeout: float, *, as_json: bool
) -> None:
    """The guest is told of what the host has put there from the start."""
    found = find_vm(vm)
    with refusals.told():
        path = await _path_of(found, device_id)
        device = devices_pb2.Device(id=device_id, address=devices_pb2.DeviceAddress(pci_path=path))
        device.MergeFrom(wanted or await _kind_of(found, device_id))
        device.timeout_seconds = timeout
        async with found.channel() as channel:
            stub = devices_pb2_grpc.DevicesStub(channel)
            answer = await stub.Attach(devices_pb2.AttachDevicesRequest(devices=[device]))
    _say(device_id, answer.attached[0], "", as_json=as_json)


_COLD_KINDS = {
    "virtio-blk": devices_pb2.Device(block=devices_pb2.BlockDevice()),
    "nvme": devices_pb2.Device(block=devices_pb2.BlockDevice()),
    "virtio-net": devices_pb2.Device(nic=devices_pb2.NicDevice()),
    "e1000e": devices_pb2.Device(nic=devices_pb2.NicDevice()),
    "igb": devices_pb2.Device(nic=devices_pb2.NicDevice()),
    "virtio-gpu": devices_pb2.Device(gpu=devices_pb2.GpuDevice()),
    "bochs-display": devices_pb2.Device(gpu=devices_pb2.GpuDevice()),
    "virtio-rng": devices_pb2.Device(rng=devices_pb2.RngDevice()),
    "virtio-pmem": devices_pb2.Device(pmem=devices_pb2.PmemDevice()),
}


async def _plugged(vm: Vm, device_id: str) -> host_pb2.PluggedDevice:
    device = await plugged.find(vm, device_id)
    if device is not None:
        return device
    raise typer.BadParameter(f"cold {device_id!r}: not in {vm.name}; see: innkeeper device list")


async def _path_of(vm: Vm, device_id: str) -> str:
    return (await _plugged(vm, device_id)).pci_path


async def _kind_of(vm: Vm, device_id: str) -> devices_pb2.Device:
    common = devices_pb2.Device(common=devices_pb2.CommonDevice())
    return _COLD_KINDS.get((await _plugged(vm, device_id)).model, common)


async def _holders(
    vm: Vm, device_id: str
) -> tuple[tuple[devices_pb2.DeviceHolder, ...], tuple[str, ...]]:
    """Who uses it in the guest, and the ids of the disks that are plugged on it."""
    there = await plugged.find(vm, device_id)
    plugged.require_in_guest(there)
    async with vm.channel() as channel:
        stub = devices_pb2_grpc.DevicesStub(channel)
        with plugged.explained(vm, there):
            answer = await stub.Holders(devices_pb2.DeviceHoldersRequest(id=device_id))
    return tuple(answer.holders), await plugged.disks_on(vm, there)


async def _reconfigure(
    vm: Vm, request: devices_pb2.ReconfigureDeviceRequest
) -> devices_pb2.AttachedDevice:
    there = await plugged.find(vm, request.id)
    plugged.require_in_guest(there)
    async with vm.channel() as channel:
        with plugged.explained(vm, there):
            return await devices_pb2_grpc.DevicesStub(channel).Reconfigure(request)


def _plain(holder: devices_pb2.DeviceHolder) -> dict[str, object]:
    kind = devices_pb2.HolderKind.Name(holder.kind).removeprefix("HOLDER_KIND_").lower()
    return {
        "kind": kind,
        "name": holder.name,
        "path": holder.path,
        "pid": holder.pid,
        "command": holder.command,
    }


def _say(device_id: str, device: devices_pb2.AttachedDevice, more: str, *, as_json: bool) -> None:
    if as_json:
        output.say_json(_as_dict(device))
        return
    output.say(f"{device_id}: " + ", ".join(text for text in (where(device), more) if text))


def _as_dict(message: object) -> object:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)  # type: ignore[arg-type]


async def _list(vm: Vm, *, as_json: bool) -> None:
    records = await plugged.records(vm)
    if as_json:
        output.say_json(records)
    else:
        output.table(plugged.COLUMNS, plugged.rows(records))

"""`innkeeper vm`: VMs that go on after the command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import grpc
import typer

from innkeeper.cli import forward_specs, nics, options, output
from innkeeper.cli.booting import boot
from innkeeper.cli.errors import CliError
from innkeeper.cli.forward import described
from innkeeper.cli.hardware import parse_cold
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import Vm, VmSpec, find_vm, list_vms
from innkeeper.shim.errors import ShimError
from innkeeper.shim.forwarding import record
from innkeeper.shim.vm import DEFAULT_GRACE
from innkeeper.v1 import host_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innkeeper.shim.forwarding.words import ForwardState

app = typer.Typer(no_args_is_help=True, help="VMs: start one, list them, stop one.")

_COLUMNS = ("NAME", "STATE", "ACCEL", "TRANSPORT", "CPUS", "MEMORY", "QEMU", "IMAGE", "FORWARDS")


@app.command()
def start(  # noqa: PLR0913 - typer makes each parameter an option
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new VM.")],
    memory: options.MemoryOption = "512M",
    cpus: options.CpusOption = 1,
    image: options.ImageOption = "cloud",
    accel: options.AccelOption = "auto",
    transport: options.TransportOption = "auto",
    ports: options.PortsOption = 16,
    boot_timeout: options.BootTimeoutOption = 0,
    append: options.AppendOption = None,
    *,
    bridge: options.BridgeOption = False,
    switch: options.SwitchOption = False,
    second_root: options.SecondRootOption = False,
    iommu: options.IommuOption = False,
    nvdimm: options.NvdimmOption = False,
    max_memory: options.MaxMemoryOption = "",
    max_cpus: options.MaxCpusOption = 0,
    share_9p: options.NinePOption = None,
    private_memory: options.PrivateMemoryOption = False,
    cold: options.ColdOption = None,
    net: options.NetsOption = None,
    publish: forward_specs.PublishOption = None,
    forward: forward_specs.ForwardOption = None,
    reverse: forward_specs.ReverseOption = None,
) -> None:
    """Boots a VM and leaves it running; returns when its agent has answered.

    \b
    Examples:
      innkeeper vm start web
      innkeeper vm start big --memory 2G --cpus 2 --ports 32
      innkeeper vm start odd --append agent.log=debug --transport serial
      innkeeper vm start room --max-memory 4G --nvdimm
      innkeeper vm start old --image generic --share-9p src=.:ro
      innkeeper vm start lab --image generic --iommu --cold gpu0=virtio-gpu
      innkeeper vm start web -p 8080:80 -R /run/agent.sock:$SSH_AUTH_SOCK
      innkeeper vm start a --net user --net wire=lab,address=192.0.2.1/24,name=lab0
    """
    interfaces = tuple(nics.parse_net(text) for text in net or [])
    spec = VmSpec(
        name=name,
        image=image,
        memory=options.parse_memory(memory),
        cpus=cpus,
        accel=accel,
        transport=transport,
        ports=ports,
        boot_timeout=boot_timeout,
        cmdline=tuple(append or ()),
        bridge=bridge,
        switch=switch,
        second_root=second_root,
        iommu=iommu,
        nvdimm=nvdimm,
        max_memory=options.parse_max_memory(max_memory),
        max_cpus=max_cpus,
        private_memory=private_memory,
        shares_9p=tuple(options.parse_9p(text) for text in share_9p or []),
        cold=parse_cold(cold or []) + nics.cold_devices(interfaces),
        forwards=forward_specs.parse_all(publish, forward, reverse),
    )
    wait_for(_start(options.vm_spec(spec), interfaces))


@app.command("list")
def list_(*, json: options.JsonOption = False) -> None:
    """Shows the VMs that run.

    \b
    Examples:
      innkeeper vm list
      innkeeper vm list --json | jq -r '.[].name'
    """
    wait_for(_list(as_json=json))


@app.command()
def stop(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of VMs.")],
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time to power off; then it is ended.")
    ] = DEFAULT_GRACE,
) -> None:
    """Powers VMs off; one that does not do so in time is ended.

    Those that run are stopped even when others of the names are wrong; the exit
    code tells that.

    \b
    Examples:
      innkeeper vm stop web
      innkeeper vm stop web big --grace 2
    """
    wait_for(_stop(names, grace))


async def _start(spec: VmSpec, interfaces: Sequence[nics.Nic]) -> None:
    vm = await boot(spec, interfaces)
    found = await vm.describe()
    output.say(
        f"{vm.name}: runs ({found.accelerator}, {found.transport}), agent answered after"
        f" {found.first_answer_micros / 1e6:.1f} s"
    )
    for state in record.read(vm.directory):
        output.say(f"{vm.name}: {described(vm.name, state)}")


async def _list(*, as_json: bool) -> None:
    running = list_vms()
    found = await asyncio.gather(*(_describe(vm) for vm in running))
    vms = [
        (told, record.read(vm.directory))
        for vm, told in zip(running, found, strict=True)
        if told is not None
    ]
    if as_json:
        output.say_json([_record(*each) for each in vms])
    else:
        output.table(_COLUMNS, [_row(*each) for each in vms])


async def _describe(vm: Vm) -> host_pb2.VmDescription | None:
    """A daemon that does not answer is shown as that; one that just ended is not there."""
    try:
        async with asyncio.timeout(5):
            return await vm.describe()
    except (TimeoutError, ShimError, grpc.RpcError):
        if vm.name not in {other.name for other in list_vms()}:
            return None
        return host_pb2.VmDescription(name=vm.name, state="not answering", daemon_pid=vm.daemon_pid)


async def _stop(names: list[str], grace: float) -> None:
    vms, unknown = _find_all(names)
    with output.busy(f"stopping {', '.join(vm.name for vm in vms)}"):
        endings = await asyncio.gather(*(vm.end(grace) for vm in vms))
    for vm, ending in zip(vms, endings, strict=True):
        how = "powered off" if ending.clean else f"{ending.why}, so it was ended"
        output.say(f"{vm.name}: {how}")
    if unknown:
        raise unknown[0] if len(names) == 1 else _none_of(unknown)


def _find_all(names: list[str]) -> tuple[list[Vm], list[ShimError]]:
    """Each once, and an error for each that does not run: it keeps none of the others up."""
    found: list[Vm] = []
    unknown: list[ShimError] = []
    for name in dict.fromkeys(names):
        try:
            found.append(find_vm(name))
        except ShimError as error:
            unknown.append(error)
    return found, unknown


def _none_of(unknown: list[ShimError]) -> CliError:
    return CliError("; ".join(error.message for error in unknown), hint="see: innkeeper vm list")


def _row(vm: host_pb2.VmDescription, forwards: tuple[ForwardState, ...]) -> tuple[str, ...]:
    return (
        vm.name,
        vm.state,
        vm.accelerator or "-",
        vm.transport or "-",
        str(vm.cpus or "-"),
        output.size(vm.memory) if vm.memory else "-",
        str(vm.qemu_pid or "-"),
        _image_name(vm.image),
        " ".join(map(str, forwards)) or "-",
    )


def _image_name(directory: str) -> str:
    """Built images are hidden directories, named by flavour and by the hash of their inputs."""
    return Path(directory).name.lstrip(".") or "-"


def _record(vm: host_pb2.VmDescription, forwards: tuple[ForwardState, ...]) -> dict[str, object]:
    """Every field of the protocol, also those that are empty, and the forwards."""
    told = {field.name: getattr(vm, field.name) for field in vm.DESCRIPTOR.fields}
    return {**told, "forwards": [state.to_record() for state in forwards]}

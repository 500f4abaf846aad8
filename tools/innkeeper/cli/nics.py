"""A network interface of a VM: plugged in on the host, then given its name, its addresses
and its routes in the guest. Both or neither."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer
from google.protobuf import json_format

from innkeeper.cli import hostnet, netdns, nets, output
from innkeeper.cli.errors import CliError, explain
from innkeeper.netplan.requests import FAMILIES, MAIN_TABLE
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.spec import ColdDevice
from innkeeper.v1 import devices_pb2, devices_pb2_grpc, host_pb2, network_pb2, network_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from grpc import aio

    from innkeeper.shim.client import Vm

# QEMU's user mode network, as its documentation has it (-netdev user).
_USER_ADDRESS = "10.0.2.15/24"
_USER_GATEWAY = "10.0.2.2"
_USER_SERVER = "10.0.2.3"

# A second default route is the next choice, not another first one.
_NEXT_METRIC = 100

MODELS = {
    "virtio": host_pb2.NIC_MODEL_VIRTIO,
    "e1000e": host_pb2.NIC_MODEL_E1000E,
    "igb": host_pb2.NIC_MODEL_IGB,
}
BACKENDS = {
    "user": host_pb2.NIC_BACKEND_USER,
    "isolated": host_pb2.NIC_BACKEND_ISOLATED,
    "passt": host_pb2.NIC_BACKEND_PASST,
    "tap": host_pb2.NIC_BACKEND_TAP,
    "wire": host_pb2.NIC_BACKEND_WIRE,
}
NAMED = frozenset({"tap", "wire"})
"""Those that have a name of their own."""

_ENDINGS = ("user", "isolated", "passt", "tap=NAME", "wire=NAME")
_KEYS = frozenset({"name", "address", "gateway", "dns", "mac", "mtu", "model"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the guest makes of it."""

    name: str = ""
    """Empty: after its PCI path."""
    addresses: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    onlink: bool = False
    """The gateways are reachable although no address says so."""
    servers: tuple[str, ...] = ()
    mtu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """An interface as asked for."""

    backend: str
    backend_name: str = ""
    model: str = "virtio"
    mac: str = ""
    mtu: int = 0
    queue_pairs: int = 0
    configuration: Configuration | None = None
    """None: the guest's agent leaves it as the kernel made it."""

    @property
    def hardware(self) -> host_pb2.Hardware:
        """The MTU is told where the model can tell it; in the guest it is set all the same."""
        nic = host_pb2.Nic(
            model=MODELS[self.model],
            mac=self.mac,
            backend=BACKENDS[self.backend],
            mtu=self.mtu if self.model == "virtio" else 0,
            queue_pairs=self.queue_pairs,
        )
        if self.backend in NAMED:
            setattr(nic, self.backend, self.backend_name)
        return host_pb2.Hardware(nic=nic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What it became; without a configuration there is no more than the device."""

    device: devices_pb2.AttachedDevice
    interface: network_pb2.InterfaceState | None = None
    routes: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()


def complete(nic: Nic) -> Nic:
    """With what goes without saying on its network. Raises typer.BadParameter, CliError."""
    wanted = nic.configuration
    if wanted is None:
        return nic
    _check(wanted)
    if not wanted.addresses and nic.backend == "user":
        wanted = replace(
            wanted,
            addresses=(_USER_ADDRESS,),
            gateways=wanted.gateways or (_USER_GATEWAY,),
            servers=wanted.servers or (_USER_SERVER,),
        )
    elif not wanted.addresses and nic.backend == "passt":
        wanted = _as_the_host(wanted)
    return replace(nic, configuration=replace(wanted, mtu=nic.mtu))


def _as_the_host(wanted: Configuration) -> Configuration:
    way = hostnet.default_way()
    if way is None:
        raise CliError(
            "passt shows the host's own address, and the host has no default route",
            hint="give the guest an address with --address, and a gateway with --gateway",
        )
    gateways = wanted.gateways or (way.gateway,)
    return replace(wanted, addresses=(f"{way.address}/32",), gateways=gateways, onlink=True)


def _check(wanted: Configuration) -> None:
    """Before anything is plugged in."""
    for text in wanted.addresses:
        _parsed("address", text, "192.0.2.10/24", ipaddress.ip_interface)
        if "/" not in text:
            raise typer.BadParameter(f"address {text}: its prefix is missing, as in {text}/24")
    for text in (*wanted.gateways, *wanted.servers):
        _parsed("address", text, "192.0.2.1", ipaddress.ip_address)
    versions = [ipaddress.ip_address(text).version for text in wanted.gateways]
    if len(set(versions)) != len(versions):
        raise typer.BadParameter("gateway: one for each version of IP")


def _parsed(what: str, text: str, example: str, parse: Callable[[str], object]) -> None:
    try:
        parse(text)
    except ValueError:
        raise typer.BadParameter(f"{what} {text!r}: write it as in {example}") from None


async def attach(vm: Vm, nic: Nic, function: host_pb2.PlugFunction, request: Plugging) -> Attached:
    """Whatever fails, nothing stays plugged in, and nobody else has lost its name."""
    if nic.configuration is not None and nic.configuration.name:
        await _refuse_taken(vm, nic.configuration.name)
    async with contextlib.AsyncExitStack() as undo:
        function.hardware.CopyFrom(nic.hardware)
        plugged = await vm.plug(
            host_pb2.PlugRequest(
                functions=[function], port=request.port, timeout_seconds=request.timeout
            )
        )
        undo.push_async_callback(_unplug, vm, function.id)
        async with vm.channel() as channel:
            attached = await configure(channel, plugged.attached[0], nic.configuration)
        undo.pop_all()
    return attached


async def _refuse_taken(vm: Vm, name: str) -> None:
    """The guest would rename the other one, whose rules and scripts go by that name."""
    for each in await nets.interfaces(vm):
        if each.name == name and not each.container_id:
            whose = f"device {each.device_id}" if each.device_id else each.kind or each.mac
            raise CliError(
                f"{name}: an interface of VM {vm.name} has this name already ({whose})",
                hint="choose another one; `innkeeper net apply` gives several their names at once",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugging:
    """Where it is plugged, and how long all of it may take."""

    port: str = ""
    timeout: float = 0


async def _unplug(vm: Vm, device_id: str) -> None:
    try:
        await vm.unplug(device_id)
    except ShimError as error:
        if error.reason is not Reason.UNKNOWN_DEVICE:
            output.warn(f"{device_id}: is left there: {explain(error)}")


async def configure(
    channel: aio.Channel,
    device: devices_pb2.AttachedDevice,
    wanted: Configuration | None,
) -> Attached:
    """Name, addresses, default routes, name servers, in this order. What fails leaves what
    came before it; all but the name servers goes with the interface."""
    if wanted is None:
        return Attached(device=device)
    network = network_pb2_grpc.NetworkStub(channel)
    interface = await network.ApplyInterface(
        network_pb2.ApplyInterfaceRequest(
            address=devices_pb2.DeviceAddress(pci_path=device.pci_path),
            name=wanted.name,
            mtu=wanted.mtu,
            addresses=[network_pb2.InterfaceAddress(cidr=cidr) for cidr in wanted.addresses],
        )
    )
    routes = await _add_gateways(network, interface.name, wanted)
    if wanted.servers:
        await netdns.change(network, netdns.Change(servers=wanted.servers))
    return Attached(device=device, interface=interface, routes=routes, servers=wanted.servers)


async def _add_gateways(
    network: network_pb2_grpc.NetworkAsyncStub, name: str, wanted: Configuration
) -> tuple[str, ...]:
    """A set of routes is replaced as a whole: what is there is sent along."""
    if not wanted.gateways:
        return ()
    there = await network.ListRoutes(network_pb2.ListRoutesRequest(table=MAIN_TABLE))
    request = network_pb2.ApplyRoutesRequest()
    for gateway in wanted.gateways:
        family = FAMILIES[ipaddress.ip_address(gateway).version]
        routes = [route for each in there.sets if each.family == family for route in each.routes]
        route = default_route(routes, gateway, name)
        route.onlink = wanted.onlink
        request.sets.add(family=family, table=MAIN_TABLE, routes=[*routes, route])
    return tuple((await network.ApplyRoutes(request)).changed)


def default_route(
    there: Iterable[network_pb2.Route], gateway: str, device: str
) -> network_pb2.Route:
    """One that comes after the default routes that are there."""
    metrics = [route.metric for route in there if _is_default(route)]
    metric = max(metrics) + _NEXT_METRIC if metrics else 0
    return network_pb2.Route(destination="default", gateway=gateway, device=device, metric=metric)


def _is_default(route: network_pb2.Route) -> bool:
    return route.destination in ("", "default", "0.0.0.0/0", "::/0")


def as_dict(attached: Attached) -> dict[str, object]:
    interface = attached.interface
    return {
        "device": _plain(attached.device),
        "interface": _plain(interface) if interface is not None else None,
        "routes": list(attached.routes),
        "servers": list(attached.servers),
    }


def _plain(message: devices_pb2.AttachedDevice | network_pb2.InterfaceState) -> object:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def in_words(attached: Attached) -> Iterator[str]:
    """ "nic-1: eth0 (02:..), 192.0.2.10/24, MTU 1500, PCI path 10/00", then the rest."""
    device, interface = attached.device, attached.interface
    if interface is None:
        yield f"{device.device.id}: {device.nic.name} ({device.nic.mac}), not configured"
        return
    addresses = [address.cidr for address in interface.addresses if not address.of_kernel]
    parts = [f"{interface.name} ({interface.mac})", *addresses, f"MTU {interface.mtu}"]
    yield f"{device.device.id}: {', '.join([*parts, f'PCI path {device.pci_path}'])}"
    yield from (f"  {line}" for line in attached.routes)
    if attached.servers:
        yield f"  name servers {', '.join(attached.servers)}"


# Interfaces that are there from the start.


def parse_net(text: str) -> Nic:
    """`user`, `wire=lab,address=192.0.2.1/24,name=eth0`. Raises typer.BadParameter."""
    first, *words = text.split(",")
    backend, equals, backend_name = first.partition("=")
    has_name = bool(equals) and bool(backend_name)
    if backend not in BACKENDS or has_name != (backend in NAMED) or (equals and not has_name):
        raise typer.BadParameter(f"--net {text!r}: begin with one of {', '.join(_ENDINGS)}")
    given: dict[str, list[str]] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in _KEYS or not value:
            keys = ", ".join(f"{each}=" for each in sorted(_KEYS))
            raise typer.BadParameter(f"--net {text!r}: {word!r} is none of {keys}")
        given.setdefault(key, []).append(value)
    return complete(_nic(text, backend, backend_name, given))


def _nic(text: str, backend: str, backend_name: str, given: dict[str, list[str]]) -> Nic:
    def one(key: str, default: str = "") -> str:
        values = given.get(key, [default])
        if len(values) > 1:
            raise typer.BadParameter(f"--net {text!r}: {key}= is there more than once")
        return values[0]

    model, mtu = one("model", "virtio"), one("mtu", "0")
    if model not in MODELS:
        raise typer.BadParameter(f"--net {text!r}: model={model}: one of {', '.join(MODELS)}")
    if not mtu.isdecimal() or int(mtu) > 65521:
        raise typer.BadParameter(f"--net {text!r}: mtu={mtu}: write a number, at most 65521")
    configuration = Configuration(
        name=one("name"),
        addresses=tuple(given.get("address", ())),
        gateways=tuple(given.get("gateway", ())),
        servers=tuple(given.get("dns", ())),
    )
    return Nic(
        backend=backend,
        backend_name=backend_name,
        model=model,
        mac=one("mac"),
        mtu=int(mtu),
        configuration=configuration,
    )


def cold_id(index: int) -> str:
    """Id of an interface that is there from the start."""
    return f"net{index}"


def cold_devices(nics: Sequence[Nic]) -> tuple[ColdDevice, ...]:
    return tuple(
        ColdDevice(id=cold_id(index), hardware=json_format.MessageToJson(nic.hardware, indent=None))
        for index, nic in enumerate(nics)
    )


async def set_up(vm: Vm, nics: Sequence[Nic]) -> tuple[Attached, ...]:
    """Attaches those of `cold_devices` in the guest, and configures them."""
    if not nics:
        return ()
    paths = {each.id: each.pci_path for each in await vm.plugged()}
    wanted = [
        devices_pb2.Device(
            id=cold_id(index),
            address=devices_pb2.DeviceAddress(pci_path=paths[cold_id(index)]),
            nic=devices_pb2.NicDevice(),
        )
        for index in range(len(nics))
    ]
    async with vm.channel() as channel:
        stub = devices_pb2_grpc.DevicesStub(channel)
        answer = await stub.Attach(devices_pb2.AttachDevicesRequest(devices=wanted))
        return tuple(
            [
                await configure(channel, device, nic.configuration)
                for device, nic in zip(answer.attached, nics, strict=True)
            ]
        )

"""A guest in a network: its service, and what its kernel says of it by Debian 13's `ip`.

One observer stays in the guest's own network, so that a look costs a process there rather
than a container. It does not outlive its agent: `looking` makes another one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import network_pb2 as pb
from innkeeper.v1 import network_pb2_grpc
from tests.fakes.plugs import plug
from tests.vm.guest import Guest
from tests.vm.iproute import iproute
from tests.vm.observer import Observer, observing

IP = "/guest/run/innkeeper/storages/iproute/ip"
HARDWARE_NAMES = (
    "for d in /sys/class/net/*; do [ ! -e $d/device ] || echo $(cat $d/address) ${d##*/}; done"
)
"""A script: MAC address and name of each interface with hardware, as sysfs has them."""

PATIENCE = 60
"""Seconds; under emulation on a busy machine a driver may take some of them."""


@dataclass(slots=True)
class NetGuest:
    """Made by `net_guest`; usable within `looking`."""

    guest: Guest
    observer: Observer = field(init=False)

    @property
    def network(self) -> network_pb2_grpc.NetworkAsyncStub:
        return network_pb2_grpc.NetworkStub(self.guest.channel)

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """With an observer."""
        async with observing(self.guest) as self.observer:
            yield

    async def ip(self, *arguments: str) -> Any:
        """What `ip -j -d` says."""
        said = await self.observer.ask(f"{IP} -j -d {' '.join(arguments)}")
        return json.loads(said or "[]")

    async def do(self, *lines: str) -> None:
        """Commands for `ip`, by somebody who is not the agent."""
        each = (f"{IP} {line} || echo not done: {line}" for line in lines)
        said = await self.observer.ask("; ".join(each))
        assert said == "", said

    async def links(self) -> dict[str, dict[str, Any]]:
        """By name."""
        return {link["ifname"]: link for link in await self.ip("link")}

    async def names(self) -> dict[str, str]:
        """Of those with hardware: by MAC address."""
        said = await self.observer.ask(HARDWARE_NAMES)
        return dict(line.split() for line in said.splitlines())

    async def addresses(self, name: str) -> set[str]:
        """Those that somebody gave, with prefixes."""
        [link] = await self.ip("address", "show", "dev", name)
        told = [each for each in link["addr_info"] if each["scope"] == "global"]
        return {f"{each['local']}/{each['prefixlen']}" for each in told}

    async def apply(self, *wishes: pb.ApplyInterfaceRequest) -> list[pb.InterfaceState]:
        request = pb.ApplyInterfacesRequest(interfaces=wishes)
        answer = await self.network.ApplyInterfaces(request, timeout=PATIENCE)
        return list(answer.interfaces)

    async def path_of(self, port: str) -> str:
        """The PCI path of what is or will be in that port."""
        ports = (await self.guest.host.ListPorts(host.ListPortsRequest())).ports
        [path] = [each.pci_path for each in ports if each.name == port]
        return path

    async def plug(self, name: str, port: str, **nic: Any) -> devices.AttachedDevice:
        request = plug(name, port=port, timeout_seconds=PATIENCE, nic=host.Nic(**nic))
        [attached] = (await self.guest.host.Plug(request)).attached
        return attached

    async def unplug(self, *names: str) -> None:
        for name in names:
            request = host.UnplugRequest(id=name, timeout_seconds=PATIENCE)
            await self.guest.host.Unplug(request)

    async def pings(self, address: str, *options: str, size: int = 56, tries: int = 5) -> bool:
        """Whether there is an answer within some tries: the other side may have to be found."""
        family = "-6" if ":" in address else "-4"
        words = f"{family} -c1 -W2 -s {size} {' '.join(options)} {address} >/dev/null 2>&1"
        script = f"for n in $(seq {tries}); do ping {words} && echo yes && break; done"
        return await self.observer.ask(script) == "yes\n"


@asynccontextmanager
async def net_guest(guest: Guest, place: Path) -> AsyncIterator[NetGuest]:
    """The guest, with `ip` plugged in for the length of a block; the disk is made in `place`."""
    async with iproute(guest, place):
        yield NetGuest(guest=guest)


def at_path(path: str, **wish: Any) -> pb.ApplyInterfaceRequest:
    """What is asked of the interface at a PCI path; `addresses` are plain texts."""
    cidrs = wish.pop("addresses", ())
    return pb.ApplyInterfaceRequest(
        address=devices.DeviceAddress(pci_path=path), addresses=_addresses(cidrs), **wish
    )


def by_name(current_name: str, **wish: Any) -> pb.ApplyInterfaceRequest:
    """The same of an interface that has this name, or shall be made under it."""
    cidrs = wish.pop("addresses", ())
    return pb.ApplyInterfaceRequest(current_name=current_name, addresses=_addresses(cidrs), **wish)


def _addresses(cidrs: tuple[str, ...]) -> list[pb.InterfaceAddress]:
    return [pb.InterfaceAddress(cidr=each) for each in cidrs]

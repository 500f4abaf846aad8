"""The network: wanted states of an interface and of routes, against `ip` in the same guest.

All in one VM. The host's figure is that of a whole call, with the way there and back; what
`ip -batch` takes is told by the guest's own clock (to 10 ms), in a container that runs
already, with the start of the program. The first round of an interface is left out, in
which the kernel loads the driver. Beside 5,000 routes health checks are made, one after
the other: the longest one tells how long the agent had no time for others.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Final

from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.figures import Sample, milliseconds
from bench.guest import output_of
from bench.iproute import put_iproute
from innkeeper.shim.guest_disk import make_disk
from innkeeper.v1 import (
    containers_pb2,
    devices_pb2,
    host_pb2,
    network_pb2,
    network_pb2_grpc,
    sandbox_pb2,
    sandbox_pb2_grpc,
    storages_pb2,
    storages_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Mapping
    from pathlib import Path

    from grpc import aio

    from innkeeper.shim.client import Vm

COUNTS: Final = (1, 100, 5000)
"""Routes at once."""

STEPS: Final = {
    "added": "{count} routes added",
    "same": "the same {count} routes again, which changes nothing",
    "replaced": "{count} routes get another gateway",
    "emptied": "a table of {count} routes emptied",
}
_INTERFACE: Final = {
    "first": "a new NIC gets its name and two addresses and is up",
    "same": "the same again, which changes nothing",
    "changed": "one address of it is another one",
}
_RATIO: Final = "{what}, in times the time of `ip -batch`, by the medians"
_TICK: Final = 0.01
"""What /proc/uptime counts in; less than that is told as one."""

_PATIENCE: Final = 600.0
_DISK_SIZE: Final = 32 << 20
_MIB: Final = 1 << 20
_DISK = "bench-ip"
_NIC = "bench-nic"
_NAME = "bench0"
_TABLE = 100
_PLACE = "/bench"
_GATEWAYS: Final = {"added": "192.0.2.1", "same": "192.0.2.1", "replaced": "192.0.2.2"}


async def network_samples(vm: Vm, channel: aio.Channel, folder: Path, rounds: int) -> list[Sample]:
    """Interfaces and routes, `rounds` times each; the agent's memory before and after."""
    before = await _agent_memory(channel)
    interface = _Interface(vm, network_pb2_grpc.NetworkStub(channel))
    samples = [each for number in range(rounds + 1) for each in await interface.round(number)]
    address = await interface.plug()
    await interface.apply(interface.wish(address, "192.0.2.10/24"))
    loaded = await _agent_memory(channel)
    by_ip = await _times_of_ip(vm, channel, folder, rounds)
    routes = _Routes(channel)
    taken = [await routes.round(count) for count in COUNTS for _ in range(rounds)]
    full = await _agent_memory(channel)
    return [
        *samples,
        *route_samples([each for several in taken for each in several], by_ip),
        milliseconds("health_beside_routes_max_ms", max(routes.health), _HEALTH),
        *_memory_samples(before, loaded, full),
    ]


_HEALTH: Final = f"the longest Health.Check while {max(COUNTS)} routes are changed"


class _Interface:
    """One NIC after the other."""

    def __init__(self, vm: Vm, stub: network_pb2_grpc.NetworkAsyncStub) -> None:
        self._vm = vm
        self._stub = stub

    async def round(self, number: int) -> Iterator[Sample]:
        """Samples of all but round 0."""
        address = await self.plug()
        wishes = {
            "first": self.wish(address, "192.0.2.10/24"),
            "same": self.wish(address, "192.0.2.10/24"),
            "changed": self.wish(address, "192.0.2.11/24"),
        }
        taken = {step: await _timed(self.apply(wish)) for step, wish in wishes.items()}
        await self._vm.unplug(_NIC)
        return (
            milliseconds(f"apply_interface_{step}_ms", seconds, f"ApplyInterface: {words}")
            for (step, seconds), words in zip(taken.items(), _INTERFACE.values(), strict=True)
            if number
        )

    async def plug(self) -> devices_pb2.DeviceAddress:
        function = host_pb2.PlugFunction(id=_NIC, hardware=host_pb2.Hardware(nic=host_pb2.Nic()))
        answer = await self._vm.plug(host_pb2.PlugRequest(functions=[function]))
        return devices_pb2.DeviceAddress(pci_path=answer.attached[0].pci_path)

    async def apply(self, wish: network_pb2.ApplyInterfaceRequest) -> None:
        await self._stub.ApplyInterface(wish, timeout=_PATIENCE)

    @staticmethod
    def wish(address: devices_pb2.DeviceAddress, cidr: str) -> network_pb2.ApplyInterfaceRequest:
        addresses = [network_pb2.InterfaceAddress(cidr=each) for each in (cidr, "2001:db8::10/64")]
        return network_pb2.ApplyInterfaceRequest(address=address, name=_NAME, addresses=addresses)


Taken = tuple[str, int, float]
"""Step, routes, seconds."""


class _Routes:
    """Sets of routes in a table of their own."""

    def __init__(self, channel: aio.Channel) -> None:
        self._stub = network_pb2_grpc.NetworkStub(channel)
        self._checks = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        self.health: list[float] = [0.0]

    async def round(self, count: int) -> list[Taken]:
        return [(step, count, await self._apply(step, count)) for step in STEPS]

    async def _apply(self, step: str, count: int) -> float:
        gateway = _GATEWAYS.get(step, "")
        routes = [
            network_pb2.Route(destination=each, gateway=gateway, device=_NAME)
            for each in destinations(count if gateway else 0)
        ]
        each = network_pb2.RouteSet(
            family=network_pb2.ADDRESS_FAMILY_V4, table=_TABLE, routes=routes
        )
        call = self._stub.ApplyRoutes(
            network_pb2.ApplyRoutesRequest(sets=[each]), timeout=_PATIENCE
        )
        if count < max(COUNTS):
            return await _timed(call)
        async with asyncio.TaskGroup() as group:
            checking = group.create_task(self._check())
            taken = await _timed(call)
            checking.cancel()
        return taken

    async def _check(self) -> None:
        while True:
            check = self._checks.Check(health_pb2.HealthCheckRequest(), timeout=_PATIENCE)
            self.health.append(await _timed(check))


def destinations(count: int) -> Iterator[str]:
    """Networks of 256 addresses below 10.0.0.0/8."""
    return (f"10.{number >> 8}.{number & 0xFF}.0/24" for number in range(count))


async def _times_of_ip(vm: Vm, channel: aio.Channel, folder: Path, rounds: int) -> list[Taken]:
    """The same steps, by `ip` in the guest."""
    tree = folder / "ip"
    put_iproute(tree)
    for count in COUNTS:
        for step in STEPS:
            (tree / f"{step}-{count}").write_text(batch(step, count))
    disk = make_disk(tree, folder / "ip.img", size=_DISK_SIZE)
    await vm.plug_disk(_DISK, disk.file)
    block = storages_pb2.BlockSource(device_id=_DISK, fs_type="ext4")
    storage = storages_pb2.Storage(id=_DISK, block=block)
    stub = storages_pb2_grpc.StoragesStub(channel)
    await stub.Attach(storages_pb2.AttachStorageRequest(storage=storage))
    mount = containers_pb2.StorageMount(storage_id=_DISK, destination=_PLACE)
    said = await output_of(channel, script(rounds), "CAP_NET_ADMIN", storages=(mount,))
    return parse_times(said)


def batch(step: str, count: int) -> str:
    """Lines for `ip -batch`."""
    gateway = _GATEWAYS.get(step)
    if gateway is None:
        return f"route flush table {_TABLE}\n"
    word = "add" if step == "added" else "replace"
    return "".join(
        f"route {word} {each} via {gateway} dev {_NAME} table {_TABLE}\n"
        for each in destinations(count)
    )


def script(rounds: int) -> str:
    """Prints a line for each step: its name, the routes, seconds before and after.

    By /proc/uptime: the shell reads it itself, while to start a program to ask for the time
    takes as long as `ip` with one route.
    """
    counts = " ".join(map(str, COUNTS))
    return f"""
for count in {counts}; do for round in $(seq {rounds}); do for step in {" ".join(STEPS)}; do
  read before rest </proc/uptime
  {_PLACE}/ip -batch {_PLACE}/$step-$count >/dev/null || exit 1
  read after rest </proc/uptime
  echo $step $count $before $after
done; done; done"""


def parse_times(said: str) -> list[Taken]:
    """What the script printed. Raises ValueError for nothing, which a failure ends in."""
    found = [line.split() for line in said.splitlines()]
    if not found:
        raise ValueError("ip in the guest did none of the steps")
    return [
        (step, int(count), max(float(after) - float(before), _TICK))
        for step, count, before, after in found
    ]


def route_samples(ours: Iterable[Taken], by_ip: Iterable[Taken]) -> Iterator[Sample]:
    """Each figure of ours, each of `ip`'s, and how the medians are to each other."""
    mine, others = _by_step(ours), _by_step(by_ip)
    for (step, count), taken in mine.items():
        what = STEPS[step].format(count=count)
        for seconds in taken:
            yield milliseconds(f"apply_routes_{count}_{step}_ms", seconds, f"ApplyRoutes: {what}")
        for seconds in others[step, count]:
            yield milliseconds(f"ip_routes_{count}_{step}_ms", seconds, f"ip -batch: {what}")
        yield Sample(
            name=f"apply_routes_{count}_{step}_to_ip",
            value=statistics.median(taken) / statistics.median(others[step, count]),
            unit="x",
            what=_RATIO.format(what=what),
        )


def _by_step(taken: Iterable[Taken]) -> Mapping[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    for step, count, seconds in taken:
        found.setdefault((step, count), []).append(seconds)
    return found


async def _timed(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


async def _agent_memory(channel: aio.Channel) -> int:
    stub = sandbox_pb2_grpc.SandboxStub(channel)
    answer = await stub.Describe(sandbox_pb2.DescribeSandboxRequest())
    return next(each.resident for each in answer.memory if each.name == "agent")


def _memory_samples(before: int, loaded: int, full: int) -> Iterator[Sample]:
    values = (
        ("without", before, "before anything of the network is used"),
        ("with", loaded, "with the network's parts loaded and an interface applied"),
        ("after", full, f"after {max(COUNTS)} routes came and went"),
    )
    for word, size, when in values:
        what = f"resident set size of the agent {when}"
        yield Sample(name=f"agent_rss_{word}_network_mib", value=size / _MIB, unit="MiB", what=what)

"""`python -m bench`: boots VMs one after the other and writes down what they did."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import platform
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.boot import boot_samples, memory_samples
from bench.calls import call_samples, health_checks
from bench.containers import latency_samples as container_samples
from bench.containers import memory_samples as crowd_samples
from bench.copies import copy_samples, transports
from bench.figures import Figure, Sample, gather
from bench.latency import PORTS, latency_samples
from bench.network import network_samples
from bench.plugs import plug_rounds
from bench.rawvm import RawVm
from bench.storages import storage_samples
from bench.throughput import port_rates, stream_rates, throughput_samples
from innkeeper.cli import options, output
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import VmSpec, start_vm
from innkeeper.shim.images import find_image
from innkeeper.v1 import host_pb2, sandbox_pb2, sandbox_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from grpc import aio

    from innkeeper.shim.client import Vm

_COLUMNS = ("FIGURE", "MEDIAN", "SPREAD", "MIN", "MAX", "SAMPLES", "UNIT")
_DISK_SIZE = 64 << 20
_CROWD_MEMORY = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure, of what."""

    image: str
    accel: str
    transport: str
    runs: int
    calls: int
    plugs: int
    latencies: int
    storms: int
    storages: int
    copies: int
    networks: int
    containers: int
    crowd: int
    streams: int


def main(  # noqa: PLR0913 - typer makes each parameter an option
    runs: Annotated[int, typer.Option(metavar="N", help="Boots.", min=1)] = 5,
    calls: Annotated[int, typer.Option(metavar="N", help="Health checks in each.", min=1)] = 1000,
    plugs: Annotated[int, typer.Option(metavar="N", help="Plugs in each.", min=1)] = 20,
    latencies: Annotated[
        int, typer.Option(metavar="N", help="Plugs of each class, for the agent's part.", min=0)
    ] = 100,
    storms: Annotated[
        int, typer.Option(metavar="N", help="Times that many are plugged at once.", min=1)
    ] = 3,
    storages: Annotated[
        int, typer.Option(metavar="N", help="Attachments of each source of storages.", min=0)
    ] = 20,
    copies: Annotated[
        int, typer.Option(metavar="N", help="Small files of a copied tree.", min=0)
    ] = 10_000,
    networks: Annotated[
        int, typer.Option(metavar="N", help="Changes of the network, of each sort.", min=0)
    ] = 3,
    containers: Annotated[
        int, typer.Option(metavar="N", help="Containers, one by one, against crun's own.", min=0)
    ] = 20,
    crowd: Annotated[
        int, typer.Option(metavar="N", help="Containers at once, for the agent's memory.", min=0)
    ] = 200,
    streams: Annotated[
        int, typer.Option(metavar="N", help="Transfers by a process's streams, each way.", min=0)
    ] = 3,
    image: options.ImageOption = "cloud",
    accel: options.AccelOption = "auto",
    transport: options.TransportOption = "serial",
    json_file: Annotated[
        Path, typer.Option("--json", metavar="FILE", help="Where the figures go.")
    ] = Path("build/bench.json"),
) -> None:
    """Measures boots, calls, plugs, latency and memory; prints a table and writes JSON.

    Nothing is asserted: figures depend on the machine, and on what else it does.
    SPREAD is the distance of the quartiles.

    \b
    Examples:
      python -m bench
      python -m bench --runs 1 --calls 10000 --transport vhost-user-vsock
      python -m bench --runs 20 --plugs 1 --latencies 0 --json build/boots.json
    """
    plan = Plan(
        image=image,
        accel=accel,
        transport=transport,
        runs=runs,
        calls=calls,
        plugs=plugs,
        latencies=latencies,
        storms=storms,
        storages=storages,
        copies=copies,
        networks=networks,
        containers=containers,
        crowd=crowd,
        streams=streams,
    )
    figures, vm = wait_for(_measure(plan))
    output.table(_COLUMNS, [figure.to_row() for figure in figures])
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(_record(figures, vm), indent=2) + "\n")
    output.note(f"written to {json_file}")


async def _measure(plan: Plan) -> tuple[tuple[Figure, ...], host_pb2.VmDescription]:
    samples = list(_image_samples(plan.image))
    vm = host_pb2.VmDescription()
    with tempfile.TemporaryDirectory(prefix="innkeeper-bench-") as folder:
        disk = _empty_disk(Path(folder))
        for number in range(1, plan.runs + 1):
            output.note(f"run {number} of {plan.runs}")
            vm, taken = await _run(plan, disk)
            samples += taken
        if plan.latencies:
            samples += await _latencies(plan, Path(folder))
        if plan.storages:
            samples += await _storages(plan, Path(folder))
        if plan.copies:
            samples += await _copies(plan)
        if plan.networks:
            samples += await _networks(plan, Path(folder))
        if plan.containers or plan.crowd:
            samples += await _containers(plan)
        if plan.streams:
            samples += await _streams(plan, Path(folder))
    return gather(samples), vm


def _empty_disk(folder: Path) -> Path:
    disk = folder / "disk.img"
    with disk.open("wb") as file:
        file.truncate(_DISK_SIZE)
    return disk


def _image_samples(name: str) -> list[Sample]:
    image = find_image(name)
    what = f"root file system of the image, Linux {image.kernel_version}"
    return [Sample(name="image_size_mb", value=image.size / 1e6, unit="MB", what=what)]


async def _run(plan: Plan, disk: Path) -> tuple[host_pb2.VmDescription, list[Sample]]:
    """One boot and all that is measured in it."""
    async with _booted(plan, VmSpec(name=_name())) as (vm, channel):
        found = await vm.describe()
        sandbox = sandbox_pb2_grpc.SandboxStub(channel)
        request = sandbox_pb2.DescribeSandboxRequest()
        samples = list(boot_samples(found, await sandbox.Describe(request)))
        samples += call_samples(await health_checks(channel, plan.calls))
        samples += await plug_rounds(vm, channel, disk, plan.plugs)
        samples += memory_samples(await sandbox.Describe(request))
    return found, samples


async def _latencies(plan: Plan, folder: Path) -> list[Sample]:
    """In a VM of its own, which has a port for each device of a storm."""
    output.note(f"latency: {plan.latencies} plugs of each class, {plan.storms} storms of each size")
    async with _booted(plan, VmSpec(name=_name(), ports=PORTS)) as (vm, channel):
        samples = await latency_samples(
            vm, channel, folder, rounds=plan.latencies, storms=plan.storms
        )
    if not samples:
        output.warn("no latency: this guest's kernel can't be traced")
    return samples


async def _storages(plan: Plan, folder: Path) -> list[Sample]:
    output.note(f"storages: {plan.storages} attachments of each source")
    async with _booted(plan, VmSpec(name=_name())) as (vm, channel):
        return await storage_samples(vm, channel, folder, plan.storages)


async def _copies(plan: Plan) -> list[Sample]:
    """Over every transport that there is: what they can carry is the question here."""
    samples: list[Sample] = []
    for transport in transports():
        output.note(f"copies: {plan.copies} small files and a big one over {transport}")
        over = dataclasses.replace(plan, transport=transport)
        async with _booted(over, VmSpec(name=_name(), memory=1 << 30)) as (_, channel):
            samples += await copy_samples(channel, transport, plan.copies)
    return samples


async def _networks(plan: Plan, folder: Path) -> list[Sample]:
    output.note(f"network: {plan.networks} changes of each sort, up to 5,000 routes")
    async with _booted(plan, VmSpec(name=_name())) as (vm, channel):
        return await network_samples(vm, channel, folder, plan.networks)


async def _containers(plan: Plan) -> list[Sample]:
    output.note(f"containers: {plan.containers} one by one, {plan.crowd} at once")
    samples: list[Sample] = []
    async with _booted(plan, VmSpec(name=_name(), memory=_CROWD_MEMORY)) as (_, channel):
        if plan.containers:
            samples += await container_samples(channel, plan.containers)
        if plan.crowd:
            samples += await crowd_samples(channel, plan.crowd)
    return samples


async def _streams(plan: Plan, folder: Path) -> list[Sample]:
    """Over every transport that there is, one VM after the other."""
    samples: list[Sample] = []
    for transport in transports():
        output.note(f"streams: {plan.streams} transfers each way over {transport}")
        over = dataclasses.replace(plan, transport=transport)
        async with _booted(over, VmSpec(name=_name())) as (_, channel):
            ours = await stream_rates(channel, plan.streams)
        raw = RawVm(image=plan.image, accel=plan.accel, transport=transport)
        place = folder / transport
        place.mkdir()
        async with raw.port(place) as port:
            by_itself = await port_rates(port, plan.streams)
        samples += throughput_samples(transport, ours, by_itself)
    return samples


def _name() -> str:
    return f"bench-{secrets.token_hex(4)}"


@contextlib.asynccontextmanager
async def _booted(plan: Plan, spec: VmSpec) -> AsyncIterator[tuple[Vm, aio.Channel]]:
    how = dataclasses.replace(
        spec, image=plan.image, accel=plan.accel, transport=plan.transport, tied=True
    )
    vm = await start_vm(how)
    try:
        async with vm.channel() as channel:
            yield vm, channel
    finally:
        await vm.stop()


def _record(figures: tuple[Figure, ...], vm: host_pb2.VmDescription) -> dict[str, object]:
    return {
        "format": 1,
        "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "accelerator": vm.accelerator,
        "transport": vm.transport,
        "host_kernel": platform.release(),
        "figures": {figure.name: figure.to_json() for figure in figures},
    }


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    app()

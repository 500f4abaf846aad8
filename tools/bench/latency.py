"""From the kernel's event of a device to the agent's answer, and how it grows with many.

Both ends are the guest's own clock: what the kernel broadcasts and when (`uevents.py`),
and the stamp of the agent's event DEVICE_ATTACHED, which it takes when it answers. So
neither QEMU nor the way between host and guest is in it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.figures import Sample, milliseconds, percentile
from bench.uevents import read_trace, start_trace
from innkeeper.v1 import host_pb2, sandbox_pb2, sandbox_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from grpc import aio

    from bench.uevents import Told
    from innkeeper.shim.client import Vm

AT_ONCE = (1, 8, 32)
PORTS = max(AT_ONCE)
"""That the VM must have."""

_SHARES = (("p50", 0.5), ("p99", 0.99))
_READY = {
    "block": ("add", "block"),
    "nic": ("add", "net"),
    # It has no device of its own in sysfs: it works once its driver is bound.
    "rng": ("bind", "virtio"),
}
_OURS = "the kernel's event of the {kind} to the agent's answer, {share:.0%} of {count}"
_KERNEL = "the kernel's event of the PCI function to that of the {kind}, half of {count}"
_RATIO = "the agent's part of a {kind} in times the kernel's, by the medians"
_ALL = "the first function's event to the last answer, {count} disks plugged in at once"
_EACH = "each disk's own event to its answer, {count} at once, {share:.0%}"
_PATIENCE = 120.0
_DISK_SIZE = 1 << 20
_GROWTH = "the time for {count} at once, by disk, in times that of one alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """One device that has come; times in seconds by the guest's clock."""

    function: float
    ready: float
    answer: float


async def latency_samples(
    vm: Vm, channel: aio.Channel, folder: Path, *, rounds: int, storms: int
) -> list[Sample]:
    """Plugs each class in and out `rounds` times, and many disks at once `storms` times.

    Empty for a guest whose kernel can't be traced.
    """
    if not await start_trace(channel):
        return []
    plugs = _Plugs(vm, channel, folder)
    alone = {kind: await plugs.one_by_one(kind, rounds) for kind in _READY}
    many = {count: [await plugs.at_once(count) for _ in range(storms)] for count in AT_ONCE}
    trace = await read_trace(channel)
    samples = list[Sample]()
    for kind, answers in alone.items():
        samples += class_samples(kind, [coming(kind, answer, trace) for answer in answers])
    return [
        *samples,
        *storm_samples(
            {
                count: [[coming("block", answer, trace) for answer in storm] for storm in storms_]
                for count, storms_ in many.items()
            }
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the agent's: when, and for which function (its devpath)."""

    at: float
    path: str


class _Plugs:
    """Plugs in and out; every device has an id of its own."""

    def __init__(self, vm: Vm, channel: aio.Channel, folder: Path) -> None:
        self._vm = vm
        self._watch = sandbox_pb2_grpc.SandboxStub(channel).Watch
        self._folder = folder
        self._numbers = itertools.count(1)
        self._seen = 0

    async def one_by_one(self, kind: str, count: int) -> list[Answer]:
        """The first is left out: it loads the driver of its class."""
        answers = []
        for _ in range(count + 1):
            answers += await self._come_and_go(kind, 1)
        return answers[1:]

    async def at_once(self, count: int) -> list[Answer]:
        return await self._come_and_go("block", count)

    async def _come_and_go(self, kind: str, count: int) -> list[Answer]:
        names = [f"{kind}-{next(self._numbers)}" for _ in range(count)]
        async with asyncio.TaskGroup() as group:
            plugs = [group.create_task(self._vm.plug(self._request(kind, name))) for name in names]
        paths = {
            name: task.result().attached[0].sysfs_path.removeprefix("/sys")
            for name, task in zip(names, plugs, strict=True)
        }
        at = await self._answers(set(names))
        for name in names:
            await self._vm.unplug(name)
        return [Answer(at=at[name], path=paths[name]) for name in names]

    async def _answers(self, names: set[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        async for event in self._watch(sandbox_pb2.WatchRequest(after_sequence=self._seen)):
            self._seen = event.sequence
            if event.kind == sandbox_pb2.EVENT_KIND_DEVICE_ATTACHED and event.subject in names:
                found[event.subject] = event.at_unix_micros / 1e6
            if found.keys() == names:
                break
        return found

    def _request(self, kind: str, name: str) -> host_pb2.PlugRequest:
        function = host_pb2.PlugFunction(id=name, hardware=self._hardware(kind, name))
        return host_pb2.PlugRequest(functions=[function], timeout_seconds=_PATIENCE)

    def _hardware(self, kind: str, name: str) -> host_pb2.Hardware:
        match kind:
            case "nic":
                return host_pb2.Hardware(nic=host_pb2.Nic())
            case "rng":
                return host_pb2.Hardware(rng=host_pb2.Rng())
            case _:
                file = self._folder / f"{name}.img"
                file.touch()
                os.truncate(file, _DISK_SIZE)
                content = host_pb2.DiskFile(file=str(file))
                return host_pb2.Hardware(disk=host_pb2.Disk(content=content))


def coming(kind: str, answer: Answer, trace: Sequence[Told]) -> Coming:
    """The last events before the answer: the function's, and that of what is waited for."""
    action, subsystem = _READY[kind]
    function = ready = 0.0
    for told in trace:
        if told.at > answer.at:
            break
        if (told.action, told.path) == ("add", answer.path):
            function, ready = told.at, 0.0
        elif told.action == action and _is_part(told.path, answer.path, subsystem):
            ready = told.at
    return Coming(function=function, ready=ready, answer=answer.at)


def _is_part(path: str, function: str, subsystem: str) -> bool:
    """`FUNCTION/virtio3/block/vdb` for block, `FUNCTION/virtio3` for virtio; nothing below."""
    below = path.removeprefix(f"{function}/").split("/")
    if path == function or path.startswith(f"{function}/") is False:
        return False
    if subsystem == "virtio":
        return len(below) == 1
    return len(below) == 3 and below[1] == subsystem


def class_samples(kind: str, comings: Sequence[Coming]) -> Iterator[Sample]:
    """Median and p99 of our part, the kernel's, and how they are to each other."""
    whole = [each for each in comings if each.function and each.ready]
    if not whole:
        return
    ours = [each.answer - each.ready for each in whole]
    kernels = [each.ready - each.function for each in whole]
    for name, share in _SHARES:
        what = _OURS.format(kind=kind, share=share, count=len(whole))
        yield milliseconds(f"answer_{kind}_{name}_ms", percentile(ours, share), what)
    kernel = statistics.median(kernels)
    what = _KERNEL.format(kind=kind, count=len(whole))
    yield milliseconds(f"kernel_{kind}_p50_ms", kernel, what)
    yield _times(f"answer_{kind}_to_kernel", statistics.median(ours) / kernel, _RATIO, kind=kind)


def storm_samples(storms: Mapping[int, Sequence[Sequence[Coming]]]) -> Iterator[Sample]:
    """For each number at once: the whole, each one's wait, and the growth against one alone."""
    alone = 0.0
    for count, runs in storms.items():
        whole = [
            max(each.answer for each in run) - min(each.function for each in run)
            for run in runs
            if all(each.function and each.ready for each in run)
        ]
        for seconds in whole:
            yield milliseconds(f"at_once_{count}_ms", seconds, _ALL.format(count=count))
        if not whole:
            continue
        waits = [each.answer - each.ready for run in runs for each in run if each.ready]
        for name, share in _SHARES:
            what = _EACH.format(count=count, share=share)
            yield milliseconds(f"at_once_{count}_answer_{name}_ms", percentile(waits, share), what)
        alone = alone or statistics.median(whole) / count
        growth = statistics.median(whole) / count / alone
        yield _times(f"at_once_{count}_growth", growth, _GROWTH, count=count)


def _times(name: str, value: float, what: str, **words: object) -> Sample:
    return Sample(name=name, value=value, unit="x", what=what.format(**words))

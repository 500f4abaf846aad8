"""Latency of hot-plug, split into the kernel's part and ours.

The whole is the daemon's: device_add to the guest's answer. The kernel's part
is read from its own log afterwards: from the first line about the new PCI
function to the line of the disk's driver, whose stamps are the kernel's own
clock. So "ours" is everything else: QMP, the interrupt and ACPI's handler
before the kernel's first word, the agent's wait, its answer, the way back.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from bench.figures import Sample, milliseconds
from bench.guest import output_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from grpc import aio

    from innkeeper.shim.client import Vm

_LINE = re.compile(r"^(?:<\d+>)?\[\s*(?P<at>\d+\.\d+)\] (?P<text>.*)$", re.MULTILINE)
_NEW_FUNCTION = re.compile(r"pci (?P<bdf>[0-9a-f:.]+): \[[0-9a-f]{4}:[0-9a-f]{4}\]")
_NEW_DISK = re.compile(r"virtio_blk \w+: \[\w+\] \d+ ")

_TOTAL = "device_add to the guest's answer that the disk is usable"
_KERNEL = "the guest kernel's first line on the PCI function to its line on the disk"
_OURS = "the whole without the kernel's part: QMP, ACPI, the agent's wait, the way back"
_UNPLUG = "the daemon's whole transaction: guest asked, device_del, both sides done"


async def plug_rounds(vm: Vm, channel: aio.Channel, disk: Path, count: int) -> list[Sample]:
    """Plugs one disk in and out `count` times; samples in order of time."""
    totals, unplugs = [], []
    for number in range(count):
        device = f"bench{number}"
        totals.append((await vm.plug_disk(device, disk)).usable_micros / 1e6)
        began = time.perf_counter()
        await vm.unplug(device)
        unplugs.append(time.perf_counter() - began)
    return list(split(totals, unplugs, kernel_parts(await kernel_log(channel))))


def split(totals: list[float], unplugs: list[float], kernel: list[float]) -> Iterator[Sample]:
    """The split is left out when the kernel's log does not tell all of the rounds."""
    told = kernel[-len(totals) :] if totals else []
    for number, total in enumerate(totals):
        yield milliseconds("plug_to_usable_ms", total, _TOTAL)
        if len(told) == len(totals):
            yield milliseconds("plug_kernel_ms", told[number], _KERNEL)
            yield milliseconds("plug_ours_ms", total - told[number], _OURS)
    for unplug in unplugs:
        yield milliseconds("unplug_ms", unplug, _UNPLUG)


def kernel_parts(log: str) -> list[float]:
    """Seconds from each new disk's PCI function to the disk, in order of time."""
    parts = []
    function_at: float | None = None
    for line in _LINE.finditer(log):
        if _NEW_FUNCTION.match(line["text"]):
            function_at = float(line["at"])
        elif _NEW_DISK.match(line["text"]) and function_at is not None:
            parts.append(float(line["at"]) - function_at)
            function_at = None
    return parts


async def kernel_log(channel: aio.Channel) -> str:
    """What `dmesg` prints in a container that may; empty when it may not after all."""
    return await output_of(channel, "dmesg", "CAP_SYSLOG", "CAP_SYS_ADMIN")

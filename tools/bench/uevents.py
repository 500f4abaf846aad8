"""When the kernel told of its devices: the guest kernel's own trace of what it broadcasts.

A probe on `netlink_broadcast` notes the first words of each message, and the time, as
the kernel sends it: nothing that waits to be woken stands in between. The clock is TAI,
which is the guest's time of day as long as nobody told the kernel of leap seconds. Facts:
Documentation/trace/kprobetrace.rst, ftrace.rst (trace_clock).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.guest import output_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpc import aio

_PROBE = "p:bench/told netlink_broadcast text=+0(skb->data):string"
_START = f"""
echo 8192 > /trace/buffer_size_kb
echo tai > /trace/trace_clock
echo '{_PROBE}' > /trace/kprobe_events
echo 1 > /trace/events/bench/told/enable && echo on
"""
_MAY = ("CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_PERFMON", "CAP_BPF")
_LINE = re.compile(r'\s(?P<at>\d+\.\d+): told: .* text="(?P<action>\w+)@(?P<path>/devices/\S+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One event of the kernel's; `at` in seconds since 1970 by the guest's clock."""

    at: float
    action: str
    path: str
    """The devpath, as in uevents: below /sys."""


async def start_trace(channel: aio.Channel) -> bool:
    """False when this kernel can't."""
    return (await output_of(channel, _START, *_MAY)).split() == ["on"]


async def read_trace(channel: aio.Channel) -> tuple[Told, ...]:
    """All since the start, in order of time."""
    return tuple(parse(await output_of(channel, "cat /trace/trace", *_MAY)))


def parse(text: str) -> Iterator[Told]:
    for line in _LINE.finditer(text):
        yield Told(at=float(line["at"]), action=line["action"], path=line["path"])

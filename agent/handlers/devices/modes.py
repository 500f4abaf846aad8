"""A device's mode, which may be switched while it is attached.

It is attached in the mode that its request says. A switch takes back what the class
that has it changed, changes the driver where that is asked for, and has the class of
the new mode take it; so each mode is relative to the function as it was found, and the
way back is the same from each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.core.deadlines import Deadline
from agent.core.errors import Reason
from agent.core.kinds import (
    DriverName,
    Expectation,
    GpuExpectation,
    MigProfile,
    Mode,
    VfioExpectation,
    VfioMode,
)
from agent.handlers.devices import binding
from agent.handlers.devices.base import refused
from agent.handlers.devices.job import GIVE_BACK_WITHIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.handlers.devices.job import Hands, Job
    from agent.handlers.devices.table import Entry


def expectation_in(kind: Expectation, mode: Mode | None) -> Expectation:
    """What the device must be in that mode: in VFIO's it is no longer of its own class."""
    match kind, mode:
        case VfioExpectation(), VfioMode():
            return replace(kind, mode=mode)
        case VfioExpectation(), DriverName(name):
            bound = VfioMode.VFIO if binding.is_vfio(name) else VfioMode.GUEST_KERNEL
            return replace(kind, mode=bound)
        case _, VfioMode.VFIO:
            return VfioExpectation()
        case _:
            return kind


def is_in(entry: Entry, mode: Mode) -> bool:
    """Whether the device is in that mode, by a switch or as it was asked for."""
    if entry.mode is not None:
        return entry.mode == mode
    match entry.device.request.kind:
        case VfioExpectation(mode=asked):
            return asked == mode
        case _:
            return mode is VfioMode.GUEST_KERNEL


def refuse_mode(entry: Entry, mode: Mode) -> None:
    """Raises MODE_REFUSED for what this device can't be switched to, whatever its driver says."""
    if not entry.is_function:
        raise refused(entry.device, "only a PCI function has modes", Reason.MODE_REFUSED)
    is_gpu = isinstance(entry.device.request.kind, GpuExpectation) and entry.served_by == "gpu"
    if isinstance(mode, MigProfile) and not is_gpu:
        raise refused(entry.device, "only a GPU has MIG profiles", Reason.MODE_REFUSED)


async def switch_driver(job: Job[Any], mode: Mode | None) -> dict[str, str]:
    """Bind the driver that the mode names, if it names one; what `switch_back` has to know."""
    if not isinstance(mode, DriverName):
        return {}
    function = (await job.place()).function
    if function is None:
        return {}
    job.claim(function.directory)
    found = await binding.before(job.hands, function, mode.name, job.deadline)
    job.note(binding.to_kept((found,)))
    former = await binding.switch(
        job.hands, function, mode.name, job.deadline, job.undo, refusal=Reason.MODE_REFUSED
    )
    return binding.to_kept((former,))


async def switch_back(hands: Hands, kept: Mapping[str, str]) -> None:
    """Drivers and overrides as they were found; fine when that is done already."""
    for former in binding.from_kept(kept):
        await binding.give_back(hands, former, Deadline.after(GIVE_BACK_WITHIN))

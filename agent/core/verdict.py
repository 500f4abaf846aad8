"""What a probe says of the thing that a request waits for (DESIGN D7).

A probe is a pure function of what sysfs, proc and /dev hold now. The hotplug
board decides when to run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from agent.core.errors import Reason

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """It is there and usable: `result` says what it is."""

    result: T


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRead:
    """A pseudo file whose text costs the driver a question to its hardware.

    `instance` tells this device from an earlier one of the same name.
    """

    path: Path
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """Not usable yet. `evidence` says how far things are, for the error at the deadline.

    `near` are the device paths (below /sys) where news is expected: events on, below
    or above one of them wake the waiter; without any, every event does. `needs` are
    reads that the board has to make before the probe can say more. `driverless` are
    devices that wait for a driver: their modules get loaded. `reason` is what the wait
    ends with if this is still the answer at its deadline.
    """

    evidence: str
    near: tuple[str, ...] = ()
    needs: tuple[SlowRead, ...] = ()
    driverless: tuple[Path, ...] = ()
    reason: Reason = Reason.DEVICE_NOT_READY


@dataclass(frozen=True, slots=True)
class Failed:
    """It will not become usable, however long one waits."""

    why: str


Verdict: TypeAlias = Ready[T] | NotYet | Failed

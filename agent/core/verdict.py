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

    `instance` tells this device from an earlier one of the same name. With `poke` the
    answer is not read but waited for: that text is written, and refused by the kernel
    once it has had the lock that is waited for.
    """

    path: Path
    instance: str
    poke: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A write that asks the kernel to look: `path` below /sys, `text` what is written."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """Not usable yet. `evidence` says how far things are, for the error at the deadline.

    `near` are the device paths (below /sys) where news is expected: events on, below
    or above one of them wake the waiter; without any, every event does. `needs` are
    reads that the board has to make before the probe can say more. `orders` are writes
    that may bring the device, each made once a wait. `driverless` are devices that wait
    for a driver: their modules get loaded. `names` are the kernel's names of what is
    waited for: its log is searched for them. `facts` are single values for programs.
    `reason` is what the wait ends with if this is still the answer at its deadline, `hint`
    what to do then.
    """

    evidence: str
    near: tuple[str, ...] = ()
    needs: tuple[SlowRead, ...] = ()
    orders: tuple[Order, ...] = ()
    driverless: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    reason: Reason = Reason.DEVICE_NOT_READY
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """It will not become usable, however long one waits."""

    why: str
    reason: Reason = Reason.DEVICE_FAILED
    names: tuple[str, ...] = ()


Verdict: TypeAlias = Ready[T] | NotYet | Failed

"""What PID 1 is given: paths, boot steps, services, bounds and the last act.

The guest's is in `guest.py`. A test bed makes its own, for PID 1 of a fresh PID
namespace; nothing in the other modules knows which one it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.pid1.console import Voice
    from agent.pid1.leaving import Leaving


class PowerAction(StrEnum):
    """How the machine ends."""

    OFF = "off"
    REBOOT = "reboot"


class Role(StrEnum):
    """Decides when a service is stopped: these in order, containers before the relay."""

    EXTRA = "extra"
    AGENT = "agent"
    RELAY = "relay"


class ServiceSpec(NamedTuple):
    """A child that PID 1 starts, and starts again unless `restart` is false.

    `cgroup` is the group the child moves itself to (see `launch`); PID 1 only
    asks it whether the OOM killer was there. `status` is a file that says why
    the child does not serve; the child removes it when it does.
    """

    name: str
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    restart: bool = True
    role: Role = Role.EXTRA
    cgroup: str | None = None
    status: str | None = None


class Bounds(NamedTuple):
    """Seconds that a step of the shutdown may take before the next one begins.

    Their sum stays below the time that the host waits by default before it ends
    the machine. `kill` is for all that outlives its SIGTERM, together, and
    `rest` for who belongs to nobody; `sync`, `unmount` and `served` are for all
    file systems together.
    """

    extra: float = 2.0
    agent: float = 5.0
    relay: float = 2.0
    kill: float = 2.0
    rest: float = 1.0
    sync: float = 8.0
    unmount: float = 3.0
    served: float = 2.0


class Layout(NamedTuple):
    """One PID 1.

    `steps` are the boot. `services` is asked after them, with a voice for what
    is wrong. At the end the commands `sync`, `unmount` and `detach` are run, each
    with a mount point of `leaving` behind it. `end` switches off or restarts;
    `cgroup` is None where there is no cgroup v2.
    """

    run: str
    proc: str
    cgroup: str | None
    steps: tuple[Step, ...]
    services: Callable[[Voice], tuple[ServiceSpec, ...]]
    sync: tuple[str, ...]
    unmount: tuple[str, ...]
    detach: tuple[str, ...]
    leaving: Callable[[], Leaving]
    end: Callable[[PowerAction], None]
    bounds: Bounds = Bounds()
    journal_limit: int = 4096
    store_limit: int = 16384

    @property
    def socket(self) -> str:
        return f"{self.run}/init.sock"

    @property
    def journal(self) -> str:
        return f"{self.run}/exits.jsonl"


class Step(NamedTuple):
    """A step of the boot; when a required one raises, the machine goes down in order.

    The time of its end is reported under its name.
    """

    name: str
    action: Callable[[Voice], None]
    required: bool = True

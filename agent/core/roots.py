"""Where the kernel's file systems and our own run directory are.

Whoever touches one of them is given a `Roots`; tests give a directory of their
own. No other file of the agent (outside `linux/` and `init.py`) spells these
paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The directories that the agent reads and writes."""

    sys: Path = field(default=Path("/sys"))
    proc: Path = field(default=Path("/proc"))
    dev: Path = field(default=Path("/dev"))
    run: Path = field(default=Path("/run/innkeeper"))
    cgroup: Path = field(default=Path("/sys/fs/cgroup"))
    # Local storages: their own tmpfs, so that they can't fill that of the state.
    local: Path = field(default=Path("/var/lib/innkeeper/local"))

    @property
    def state(self) -> Path:
        """One file per object that must survive the agent (DESIGN D13)."""
        return self.run / "state"

    @property
    def spools(self) -> Path:
        """The tmpfs of process streams; its own, so that it can be full alone."""
        return self.run / "spools"

    @property
    def logs(self) -> Path:
        """The tmpfs of processes' output logs; its own as well: when it is full the oldest goes."""
        return self.run / "logs"

    @property
    def storages(self) -> Path:
        """Default place of mount points."""
        return self.run / "storages"

    @property
    def bundles(self) -> Path:
        """OCI bundles, one directory per container."""
        return self.run / "bundles"

    @property
    def huge_pages(self) -> Path:
        """Books of who has huge pages, one file per page size."""
        return self.run / "hugepages"

    @property
    def init_socket(self) -> Path:
        """PID 1's socket: descriptor store, exit journal, power."""
        return self.run / "init.sock"

    @property
    def agent_socket(self) -> Path:
        """Where the agent serves gRPC; the relay connects to it."""
        return self.run / "agent.sock"

    @property
    def agent_status(self) -> Path:
        """PID 1's words on why the agent does not serve; the relay passes them on."""
        return self.run / "agent.status"

    @property
    def journal(self) -> Path:
        """PID 1's exit journal, one JSON object per line."""
        return self.run / "exits.jsonl"

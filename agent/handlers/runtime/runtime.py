"""What the agent needs of an OCI runtime, and nothing of any particular one.

A runtime makes namespaces, cgroups, seccomp and capabilities from a bundle. It
is not asked for exits (PID 1's journal has them) nor to deliver signals (a pidfd
does, without a program to start and without confusion when a pid is used again).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.core.deadlines import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Stdio:
    """Descriptors that a process starts with; None is /dev/null.

    With a console, the runtime makes a terminal and sends its master side to
    the unix socket at that path.
    """

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    console: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCall:
    """Make a container from a bundle; its first process waits for `start`."""

    id: str
    bundle: Path
    pid_file: Path
    stdio: Stdio


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCall:
    """Start one more process in a running container; `process_file` holds OCI's process object.

    `oom_score` is its score for the out-of-memory killer (proc_pid_oom_score_adj(5)).
    """

    id: str
    process_file: Path
    oom_score: int = 0
    pid_file: Path
    stdio: Stdio


class RuntimeState(StrEnum):
    """States of the OCI runtime specification (runtime.md, section State), and one of crun's."""

    CREATING = "creating"
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Runtime(Protocol):
    """Every method raises AgentError: RUNTIME_REFUSED with what the runtime
    said, OPERATION_TIMED_OUT at the deadline."""

    async def create(self, call: CreateCall, deadline: Deadline) -> int:
        """Returns the pid of the container's first process."""
        ...

    async def start(self, container_id: str, deadline: Deadline) -> None: ...

    def is_held(self, container_id: str) -> bool:
        """Whether its first process, dead or alive, was not told yet to run its program."""
        ...

    async def exec(self, call: ExecCall, deadline: Deadline) -> int:
        """Returns the pid of the new process, which may have ended already."""
        ...

    async def update(self, container_id: str, resources: Path, deadline: Deadline) -> None:
        """Set limits and device rules from a file with OCI's linux.resources.

        A list of rules replaces all that were there before.
        """
        ...

    async def state(self, container_id: str, deadline: Deadline) -> RuntimeState | None:
        """None for a container that the runtime doesn't know."""
        ...

    def recognizes(self, arguments: Sequence[str]) -> bool:
        """Whether a process with these arguments is a call of this runtime for us."""
        ...

    async def delete(self, container_id: str, deadline: Deadline) -> None:
        """Remove it in whatever state, also half made; an unknown one is fine."""
        ...

"""The tree of control groups: /init (we and the relay), /agent (protected), /pods (containers).

cgroup v2 allows controllers below a group only while no process is in it, so
PID 1 moves to a leaf before anything else.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from agent.linux import podmemory, pseudo

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTEMPTS = 8
# A busy guest must not page out those who could help it: what the kernel keeps
# for the group in any case (min) and as long as others have anything to give (low).
_PROTECTION = {
    "init": {"memory.min": 24 << 20},
    "agent": {"memory.min": 64 << 20, "memory.low": 128 << 20},
}


def prepare(root: str) -> list[str]:
    """Make the tree below `root` and move this process to /init; what went wrong, as texts.

    Raises OSError when the groups cannot be made or entered.
    """
    for name in ("init", "agent", "pods"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    pseudo.write(f"{root}/init/cgroup.procs", "0")
    return [
        *enable_all(root),
        *enable_all(f"{root}/pods"),
        *_protect(root),
    ]


def enable_all(group: str, *, write: Callable[[str, str], None] = pseudo.write) -> list[str]:
    """Enable for the children of `group` all controllers it has; what was refused, as texts."""
    available = pseudo.read_text(f"{group}/cgroup.controllers").split()
    enabled = pseudo.read_text(f"{group}/cgroup.subtree_control").split()
    missing = [name for name in available if name not in enabled]
    control = f"{group}/cgroup.subtree_control"
    if not missing or _try_enable(control, missing, write) is None:
        return []
    # A write is done whole or not at all: one by one shows which it was.
    failures = [(name, _try_enable(control, [name], write)) for name in missing]
    return [f"controller {name} of {group}: {error}" for name, error in failures if error]


def kill_all(group: str) -> None:
    """SIGKILL to every process in `group` and below, also to those forking now.

    Raises OSError; ENOENT where the kernel has no cgroup.kill (before 5.14).
    """
    pseudo.write(f"{group}/cgroup.kill", "1")


def populated(group: str) -> bool:
    """Whether a live process is in `group` or below; zombies don't count."""
    events = pseudo.read_optional(f"{group}/cgroup.events") or ""
    return "populated 1" in events.split("\n")


def oom_kills(group: str) -> int:
    """How many processes of `group` the OOM killer has taken so far."""
    for line in (pseudo.read_optional(f"{group}/memory.events") or "").split("\n"):
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0


def _try_enable(
    control: str, names: list[str], write: Callable[[str, str], None]
) -> OSError | None:
    """EBUSY passes: the kernel gives it while a process is on its way out of the group."""
    failure: OSError | None = None
    for _ in range(_ATTEMPTS):
        try:
            write(control, " ".join(f"+{name}" for name in names))
        except OSError as error:
            failure = error
            if error.errno != errno.EBUSY:
                break
            os.sched_yield()
        else:
            return None
    return failure


def _protect(root: str) -> list[str]:
    warnings: list[str] = []
    for_pods = podmemory.bound(podmemory.total_memory())
    for name, values in {**_PROTECTION, "pods": {"memory.max": for_pods}}.items():
        for file, size in values.items():
            path = f"{root}/{name}/{file}"
            if not os.path.exists(path):
                continue
            try:
                pseudo.write(path, str(size))
            except OSError as error:
                warnings.append(str(error))
    return warnings

"""What `/usr/lib/innkeeper/run` does: join a control group, then become a module of ours.

PID 1 starts children with posix_spawn, which cannot choose a control group.
The child moves itself, before it imports anything: so nothing it allocates or
starts is ever counted elsewhere.
"""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple

from agent.linux import pseudo

_CGROUP_ROOT = "/sys/fs/cgroup"
_USAGE = "usage: run [--cgroup PATH] MODULE [ARGUMENT...]"


class Launch(NamedTuple):
    """A module to run, its arguments, and the group to join first."""

    module: str
    arguments: tuple[str, ...] = ()
    cgroup: str | None = None


def parse(arguments: list[str]) -> Launch:
    """Raises ValueError with the usage."""
    cgroup = None
    if arguments[:1] == ["--cgroup"]:
        cgroup, arguments = "".join(arguments[1:2]), arguments[2:]
        if not cgroup.startswith("/"):
            raise ValueError(_USAGE)
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(_USAGE)
    return Launch(arguments[0], tuple(arguments[1:]), cgroup)


def main(arguments: list[str] | None = None, *, cgroup_root: str = _CGROUP_ROOT) -> int:
    """Run `main()` of the module, or of its `__main__` when it is a package; its exit status."""
    try:
        launch = parse(sys.argv[1:] if arguments is None else arguments)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if launch.cgroup is not None:
        _join(cgroup_root + launch.cgroup)
    sys.argv = [launch.module, *launch.arguments]
    module = importlib.import_module(launch.module)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{launch.module}.__main__")
    return int(module.main() or 0)


def _join(group: str) -> None:
    """Unprotected is better than not running: a failure is only said."""
    try:
        pseudo.write(f"{group}/cgroup.procs", "0")
    except OSError as error:
        sys.stderr.write(f"innkeeper: warning: {error}\n")

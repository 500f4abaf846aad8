"""Pausing a container: the kernel's freezer of its cgroup (cgroup-v2.rst, `cgroup.freeze`).

Whoever is frozen runs nothing, but can be killed. Groups below are frozen with it; a
container may have frozen some of them itself, and those stay so when it is resumed.
What `cgroup.freeze` says is the truth, also for an agent that comes later.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agent.core.errors import kernel_refused, timed_out
from agent.handlers.runtime import grouptree
from agent.handlers.runtime.groupevents import GONE, until_told
from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.core.deadlines import Deadline

_FILE = "cgroup.freeze"


def is_frozen(group: Path) -> bool:
    """Whether it is to be frozen; one that is gone is not."""
    return (pseudo.read_optional(group / _FILE) or "").strip() == "1"


async def freeze(group: Path, deadline: Deadline) -> None:
    """Return when the kernel says that all in it stand still.

    Raises OPERATION_TIMED_OUT, with everybody running again: somebody waits in the kernel
    for a device or a file system that does not answer.
    """
    _write(group, "1")
    stopped = False
    try:
        async with deadline.limit():
            await until_told(group, "frozen 1")
        stopped = True
    except TimeoutError:
        raise timed_out(
            f"not all processes of the cgroup {group.name} stopped in time",
            hint="one that waits for a device or a file system stops when it has answered",
            cgroup=group.name,
        ) from None
    finally:
        if not stopped:
            _write(group, "0")


async def thaw(group: Path, deadline: Deadline) -> None:
    """Return when the kernel says that they run again. Raises OPERATION_TIMED_OUT."""
    _write(group, "0")
    try:
        async with deadline.limit():
            await until_told(group, "frozen 0")
    except TimeoutError:
        raise timed_out(f"the cgroup {group.name} is still frozen", cgroup=group.name) from None


def thaw_all(group: Path) -> None:
    """The same of it and of all groups below, without waiting. Raises KERNEL_REFUSED."""
    with _told(group, "0"), contextlib.closing(grouptree.walk(group)) as groups:
        for below in groups:
            with _told(group, "0"):
                grouptree.write(below, _FILE, "0")


def _write(group: Path, word: str) -> None:
    with _told(group, word):
        pseudo.write(group / _FILE, word)


@contextlib.contextmanager
def _told(group: Path, word: str) -> Iterator[None]:
    """Turns what the kernel refuses into an error; a group that is gone is fine."""
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            doing = "freeze" if word == "1" else "thaw"
            raise kernel_refused(error, doing=f"{doing} the cgroup {group.name}") from error

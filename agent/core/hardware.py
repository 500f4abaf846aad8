"""CPUs and blocks of memory as sysfs has them now: a pure survey, and how one is switched.

Facts: Documentation/core-api/cpu_hotplug.rst (`possible`, `present`, `online` are lists;
a CPU that can't go offline, CPU 0 of an x86, has no `online` file) and
Documentation/admin-guide/mm/memory-hotplug.rst (`block_size_bytes` is hexadecimal,
`state` is online, offline or going-offline; a block's number is its address divided by
the size of a block).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from agent.core.cpus import parse_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.core.roots import Roots
    from agent.core.tree import SysfsTree

_SYSTEM: Final = "devices/system"
NEAR: Final = ("/devices/system/cpu", "/devices/system/memory")
"""Where the kernel's events of CPUs and memory come from, below /sys."""

_ONLINE, _OFFLINE = "online", "offline"


class Kind(StrEnum):
    """The name of a unit is its kind and its number, in sysfs and in our texts."""

    CPU = "cpu"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One CPU or one block of memory."""

    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What there is of one kind, by number."""

    present: frozenset[int] = frozenset()
    online: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    """Offline, and can be brought online now."""
    removable: frozenset[int] = frozenset()
    """Online, and the kernel offers to take it offline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the guest has now. `block_bytes` is 0 where memory can't be hot-plugged.

    `possible` CPUs are those that this kernel has room for until the next boot.
    """

    possible: frozenset[int]
    block_bytes: int
    stocks: Mapping[Kind, Stock]

    @property
    def cpus(self) -> Stock:
        return self.stocks[Kind.CPU]

    @property
    def memory(self) -> Stock:
        return self.stocks[Kind.MEMORY]

    @property
    def memory_online(self) -> int:
        """Bytes in blocks that are online."""
        return len(self.memory.online) * self.block_bytes


def survey(tree: SysfsTree) -> Hardware:
    """What is there now; what sysfs doesn't have is empty."""
    base = tree.roots.sys / _SYSTEM
    return Hardware(
        possible=_cpus(tree, base / "cpu/possible"),
        block_bytes=_hexadecimal(tree.text(base / "memory/block_size_bytes")),
        stocks={Kind.CPU: _processors(tree, base), Kind.MEMORY: _blocks(tree, base)},
    )


def switch(roots: Roots, unit: Unit, *, online: bool, movable: bool) -> tuple[Path, str]:
    """The file that brings a unit online or takes it offline, and the word for it."""
    directory = roots.sys / _SYSTEM / unit.kind / str(unit)
    if unit.kind is Kind.CPU:
        return directory / "online", "1" if online else "0"
    if not online:
        return directory / "state", _OFFLINE
    return directory / "state", "online_movable" if movable else _ONLINE


def is_online(tree: SysfsTree, unit: Unit) -> bool:
    """Whether this one is online now; one that is gone is not."""
    if unit.kind is Kind.CPU:
        return unit.number in online_cpus(tree)
    directory = tree.roots.sys / _SYSTEM / unit.kind / str(unit)
    return tree.text(directory / "state") == _ONLINE


def siblings(tree: SysfsTree, cpu: int) -> frozenset[int]:
    """The CPUs that share a core with this one, itself among them."""
    listed = tree.roots.sys / _SYSTEM / f"cpu/cpu{cpu}/topology/thread_siblings_list"
    return _cpus(tree, listed) | {cpu}


def online_cpus(tree: SysfsTree) -> frozenset[int]:
    """The CPUs that are online now."""
    return _cpus(tree, tree.roots.sys / _SYSTEM / "cpu/online")


def _processors(tree: SysfsTree, base: Path) -> Stock:
    present, online = _cpus(tree, base / "cpu/present"), _cpus(tree, base / "cpu/online")
    # A CPU is present a moment before it has its directory.
    switched = frozenset(
        number
        for number in _numbers(tree, base / "cpu", Kind.CPU)
        if (base / f"cpu/cpu{number}/online").exists()
    )
    return Stock(
        present=present,
        online=online,
        waiting=(switched & present) - online,
        # CPU 0 stays, also where the kernel would let it go: interrupts and timers are there.
        removable=(switched & online) - {0},
    )


def _blocks(tree: SysfsTree, base: Path) -> Stock:
    states = {
        number: tree.text(base / f"memory/memory{number}/state")
        for number in _numbers(tree, base / "memory", Kind.MEMORY)
    }
    online = frozenset(number for number, state in states.items() if state == _ONLINE)
    return Stock(
        present=frozenset(number for number, state in states.items() if state is not None),
        online=online,
        waiting=frozenset(number for number, state in states.items() if state == _OFFLINE),
        removable=online,
    )


def _numbers(tree: SysfsTree, directory: Path, kind: Kind) -> list[int]:
    """Of directories such as cpu12; `cpufreq` and `cpuidle` are none of them."""
    form = re.compile(rf"{kind}([0-9]+)", re.ASCII)
    return [int(match[1]) for name in tree.names(directory) if (match := form.fullmatch(name))]


def _cpus(tree: SysfsTree, path: Path) -> frozenset[int]:
    return parse_cpus(tree.text(path) or "")


def _hexadecimal(text: str | None) -> int:
    return int(text, 16) if text else 0

"""Which block devices are made of which: partitions, and device-mapper, md, bcache, loop.

Facts: a partition is a directory with a `partition` file in its disk's; whoever claims
a disk as a part of a bigger device is linked in its `holders` directory
(block/holder.c); a loop device names its file in `loop/backing_file`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from agent.linux.pseudo import read_optional

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST = 256
"""Devices on top of one another that are looked at."""


class Stack(NamedTuple):
    """Names in /sys/class/block: the devices with their partitions, and all on top of them."""

    base: tuple[str, ...]
    above: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.base, *self.above)


def stack(sys: str, names: Iterable[str]) -> Stack:
    """What is made of the named devices and their partitions."""
    base = list(dict.fromkeys(name for each in names for name in _with_partitions(sys, each)))
    found = list(base)
    loops = _loops(sys)
    # It grows while it is walked: what is on top may have something on top.
    for name in found:
        above = (name for top in _on_top(sys, name, loops) for name in _with_partitions(sys, top))
        found += [top for top in dict.fromkeys(above) if top not in found][: _MOST - len(found)]
    return Stack(tuple(base), tuple(found[len(base) :]))


def numbers(sys: str, name: str) -> tuple[int, int] | None:
    """The major and minor number of a block device."""
    major, _, minor = _text(f"{sys}/class/block/{name}/dev").partition(":")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _with_partitions(sys: str, name: str) -> Iterator[str]:
    yield name
    directory = f"{sys}/class/block/{name}"
    for child in _names(directory):
        if os.path.exists(f"{directory}/{child}/partition"):  # noqa: PTH110 - text in, text out
            yield child


def _on_top(sys: str, name: str, loops: dict[str, str]) -> Iterator[str]:
    yield from _names(f"{sys}/class/block/{name}/holders")
    yield from (loop for loop, file in loops.items() if file == f"/dev/{name}")


def _loops(sys: str) -> dict[str, str]:
    """The files of the loop devices in use. Such a one does not claim its disk."""
    names = (name for name in _names(f"{sys}/class/block") if name.startswith("loop"))
    files = {name: _text(f"{sys}/class/block/{name}/loop/backing_file") for name in names}
    return {name: file for name, file in files.items() if file}


def _text(path: str) -> str:
    try:
        return (read_optional(path) or "").removesuffix("\n")
    except OSError:
        return ""


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - text in, text out
    except OSError:
        return []

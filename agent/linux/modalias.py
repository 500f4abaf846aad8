"""Devices that wait for a driver, and modprobe's view of them.

A bus lists its devices in /sys/bus/BUS/devices. One that can have a driver has an
alias in `modalias`, and the link `driver` while it is bound; depmod's index leads
from the alias to the module (modprobe(8), modules.alias of depmod(8)).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from agent.linux.pseudo import read_optional

if TYPE_CHECKING:
    from collections.abc import Iterator

# kmod's words for an alias without a module; an alias has a bus before its first colon,
# which the name of a module cannot have.
_UNKNOWN = re.compile(r"Module \w+:.* not found in directory ", re.ASCII)


def on_buses(sys: str | os.PathLike[str]) -> Iterator[str]:
    """The paths of all devices that buses have now, each below its bus."""
    for bus in _entries(f"{os.fspath(sys)}/bus"):
        yield from _entries(f"{bus}/devices")


def wanted(device: str | os.PathLike[str]) -> str | None:
    """The alias of a device that has no driver; None for any other, or one that is gone."""
    directory = os.fspath(device)
    # access() and not an attempt to read: most devices have none, and exceptions cost.
    if os.access(f"{directory}/driver", os.F_OK, follow_symlinks=False):
        return None
    if not os.access(f"{directory}/modalias", os.F_OK):
        return None
    return (read_optional(f"{directory}/modalias") or "").strip() or None


def is_unknown(complaint: str) -> bool:
    """Whether this text of modprobe says that no module has the alias: no failure as such."""
    return _UNKNOWN.search(complaint) is not None


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries]
    except FileNotFoundError:
        return []

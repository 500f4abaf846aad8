"""Who uses a device, in words; `handlers/devices/holders.py` finds out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.model import DeviceNode


class HolderKind(StrEnum):
    """How somebody uses a device; devices.proto says what the fields of each are."""

    STORAGE = "storage"
    CONTAINER = "container"
    MOUNT = "mount"
    DESCRIPTOR = "descriptor"
    SWAP = "swap"
    STACKED = "stacked"
    NETWORK_NAMESPACE = "network-namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One who uses a device. `pid` is 0 where no process is meant.

    Names, paths and commands come from the workload: they are cut and cleaned, and
    are for people only.
    """

    kind: HolderKind
    name: str = ""
    path: str = ""
    pid: int = 0
    command: str = ""

    def __str__(self) -> str:
        who = f"process {self.pid} ({self.command})" if self.pid else ""
        words = (self.kind.value, self.name, self.path, who)
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """What of a device can be used.

    `nodes` are its nodes in /dev; `blocks` the names of its disks in /sys/class/block
    (partitions and what is on top of them are found); `directory` is its own in sysfs,
    absolute and without links, below which its network interfaces are.
    """

    directory: Path
    nodes: tuple[DeviceNode, ...] = ()
    blocks: tuple[str, ...] = ()

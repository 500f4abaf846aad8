"""What a node in /dev is: its type and its numbers, from stat(2) alone.

Nothing is opened: opening a block device may wait for its hardware.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple


class NodeNumbers(NamedTuple):
    """`type` is "b" or "c"; a dynamic minor may be far above 255."""

    type: str
    major: int
    minor: int


def node_numbers(path: str | os.PathLike[str]) -> NodeNumbers | None:
    """The numbers of a device node, or None when there is no such node.

    A symbolic link is not a node: the kernel makes none for the names it announces.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return numbers_of(status)


def numbers_of(status: os.stat_result) -> NodeNumbers | None:
    """The numbers that a stat result holds; None for anything but a device."""
    kinds = {stat.S_IFBLK: "b", stat.S_IFCHR: "c"}
    kind = kinds.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        return None
    return NodeNumbers(kind, os.major(status.st_rdev), os.minor(status.st_rdev))

"""Waits for a directory of the host to be there by its tag, and tells which tags are."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import Reason, kernel_refused
from agent.core.hotplug import Wish
from agent.core.verdict import NotYet, Ready

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.hotplug import HotplugBoard
    from agent.core.tree import SysfsTree
    from agent.core.verdict import Verdict

_DEVICES = "bus/virtio/devices"


class FsTypes(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def know_fs_type(self, fs_type: str, deadline: Deadline) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TagKind:
    """Devices of a kind: `number` is virtio's (Virtual I/O Device 1.2, section 5).

    `files` are where their tags can be read, none where this kernel does not show them.
    """

    name: str
    number: int
    files: Callable[[SysfsTree], tuple[Path, ...] | None]


async def require_fs_type(files: FsTypes, fs_type: str, hint: str, deadline: Deadline) -> None:
    """Refuse at once what no tag can help: MOUNT_REFUSED for a kernel without the file system."""
    try:
        await files.know_fs_type(fs_type, deadline)
    except OSError as error:
        raise kernel_refused(
            error,
            doing=f"this guest's kernel can't mount {fs_type}",
            reason=Reason.MOUNT_REFUSED,
            hint=hint if error.errno == errno.ENODEV else None,
        ) from error


async def wait_for_tag(board: HotplugBoard, kind: TagKind, tag: str, deadline: Deadline) -> bool:
    """True once the tag is there; False where the kernel shows no tags: the mount will say.

    Raises DEVICE_NOT_READY at the deadline, with the tags that are there.
    """
    wish = Wish(what=f"the {kind.name} tag {tag!r}", probe=lambda tree: _probe(tree, kind, tag))
    return await board.wait(wish, deadline)


def _probe(tree: SysfsTree, kind: TagKind, tag: str) -> Verdict[bool]:
    files = kind.files(tree)
    if files is None:
        return Ready(result=False)
    # 9pnet_virtio ends its text with a NUL, and blanks around a text are not kept.
    there = [text.rstrip("\0") for file in files if (text := tree.text(file)) is not None]
    if tag.strip() in there:
        return Ready(result=True)
    driverless = _driverless(tree, kind)
    told = f"tags that are there: {', '.join(map(repr, there)) or 'none'}"
    if driverless:
        told += f"; {kind.name} devices without a driver: {len(driverless)}"
    return NotYet(
        evidence=told,
        driverless=driverless,
        facts=(("tags", ", ".join(there)),),
        hint="is the device plugged, and its tag the one of the request?",
    )


def _driverless(tree: SysfsTree, kind: TagKind) -> tuple[Path, ...]:
    bus = tree.roots.sys / _DEVICES
    devices = (tree.real(bus / name) for name in tree.names(bus))
    return tuple(
        device
        for device in devices
        if device is not None
        and tree.text(device / "device") == f"{kind.number:#06x}"
        and tree.wanted_driver(device) is not None
    )

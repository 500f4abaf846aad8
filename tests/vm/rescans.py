"""Who writes to /sys/bus/pci/rescan: inotify(7) tells of writes by processes in sysfs too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import STDOUT, Attachment
from tests.vm.guest import PROBE, Guest
from tests.vm.inline import python

# IN_MODIFY; a line for each.
_WATCHER = """
import ctypes, os
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0)
assert libc.inotify_add_watch(fd, b"/sys/bus/pci/rescan", 2) >= 0
print("watching", flush=True)
while os.read(fd, 16):
    print("written", flush=True)
"""


class Rescans:
    """The writes since the watch began."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    async def until(self, count: int) -> None:
        """Returns when there were so many; fails when there are more."""
        lines = b"watching\n" + b"written\n" * count
        await self._attachment.until(lambda: len(self._attachment.data[STDOUT]) >= len(lines))
        assert self._attachment.data[STDOUT] == lines


@asynccontextmanager
async def watching_rescans(guest: Guest) -> AsyncIterator[Rescans]:
    """From the beginning of the block on."""
    name = await guest.start(f"exec {python(_WATCHER)}", **PROBE)
    process = types.ProcessRef(container_id=name)
    attachment = await Attachment(guest.processes, timeout=None, process=process).open()
    try:
        rescans = Rescans(attachment)
        await rescans.until(0)
        yield rescans
    finally:
        attachment.cancel()
        await guest.remove(name)

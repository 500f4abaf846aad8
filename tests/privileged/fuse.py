"""A file system of the test's own (<linux/fuse.h>): an empty directory, whose server can hang.

`Manners.DEAF` reads no more requests, as a server that is stopped: who waits can be killed.
`Manners.MUTE` reads and never answers: who waits is in state D until the server is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import struct
import threading
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from agent.linux import mounting
from agent.linux.mounting import MountFlag, UnmountFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = Path("/dev/fuse")

_REQUEST = struct.Struct("=IIQQIIII")
_ANSWER = struct.Struct("=IiQ")
_INIT = struct.Struct("=IIIIHHIIHHI28x")
_ATTRIBUTES = struct.Struct("=QII" + "6Q10I")
_STATFS = struct.Struct("=5Q4I24x")
_OPENED = struct.Struct("=QII")
_VERSION = (7, 31)
_BLOCK, _BLOCKS = 4096, 1000
_REQUEST_SIZE = 1 << 17

SIZE = _BLOCK * _BLOCKS


class Manners(StrEnum):
    GOOD = "good"
    DEAF = "deaf"
    MUTE = "mute"


class _Call(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    STATFS = 17
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    READDIRPLUS = 44


_UNANSWERED = (_Call.FORGET, _Call.INTERRUPT, _Call.BATCH_FORGET)


class FuseServer:
    """Answers in a thread until it is closed, which ends all waits for it."""

    def __init__(self) -> None:
        self.manners = Manners.GOOD
        self.swallowed: list[int] = []
        # A request may be withdrawn between select(2) and read(2).
        self._fd = os.open(NODE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def mount(self, target: Path, fs_type: str, source: str) -> None:
        options = f"fd={self._fd},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0"
        mounting.mount(source, str(target), fs_type, MountFlag(0), options)
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake)
        os.close(self._fd)

    def _serve(self) -> None:
        while True:
            # A deaf server still sees that it is to end.
            wanted = [self._wake] if self.manners is Manners.DEAF else [self._wake, self._fd]
            ready, _, _ = select.select(wanted, [], [], 0.05)
            if self._wake in ready:
                return
            # Asked again: it may have turned deaf while it waited.
            if self.manners is Manners.DEAF or self._fd not in ready:
                continue
            if not self._serve_one():
                return

    def _serve_one(self) -> bool:
        try:
            request = os.read(self._fd, _REQUEST_SIZE)
        except OSError as error:
            # ENOENT: it was interrupted before it could be read. ENODEV: unmounted.
            return error.errno in {errno.ENOENT, errno.EINTR, errno.EAGAIN}
        _, call, unique, *_ = _REQUEST.unpack_from(request)
        if self.manners is Manners.MUTE:
            self.swallowed.append(call)
        elif call not in _UNANSWERED:
            answer = _answer(call)
            data = answer if isinstance(answer, bytes) else b""
            number = answer if isinstance(answer, int) else 0
            head = _ANSWER.pack(_ANSWER.size + len(data), -number, unique)
            with contextlib.suppress(OSError):
                os.write(self._fd, head + data)
        return True


def _answer(call: int) -> bytes | int:
    """The data, or an errno."""
    match call:
        case _Call.INIT:
            return _INIT.pack(*_VERSION, 1 << 16, 0, 12, 9, 1 << 16, 1, 0, 0, 0)
        case _Call.GETATTR:
            return _ATTRIBUTES.pack(
                *(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFDIR | 0o755, 2, 0, 0, 0, _BLOCK, 0)
            )
        case _Call.STATFS:
            return _STATFS.pack(_BLOCKS, _BLOCKS, _BLOCKS, 10, 9, _BLOCK, 255, _BLOCK, 0)
        case _Call.OPENDIR:
            return _OPENED.pack(0, 0, 0)
        case _Call.READDIR | _Call.READDIRPLUS | _Call.DESTROY:
            return b""
        case _Call.LOOKUP:
            return errno.ENOENT
        case _:
            return errno.ENOSYS


@contextlib.contextmanager
def mounted(target: Path, fs_type: str = "fuse", source: str = "hung") -> Iterator[FuseServer]:
    """A file system on `target`; it is gone afterwards, whatever hangs in it.

    "fuse" asks nothing of its server at the unmount. "fuseblk", on a block device, waits for
    an answer then, as virtiofs does.
    """
    server = FuseServer()
    try:
        server.mount(target, fs_type, source)
        yield server
    finally:
        # First the server: who waits for it is let go with an error.
        server.close()
        with contextlib.suppress(OSError):
            mounting.unmount(str(target), UnmountFlag.DETACH)

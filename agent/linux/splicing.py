"""Moving bytes between pipes, terminals and files without holding them ourselves.

splice(2) moves and advances in one call: a process killed between two calls has
either moved a byte and advanced past it, or neither. What works where (tried on
Linux 6.12): pipe to tmpfs file (not opened with O_APPEND), tmpfs file to pipe,
terminal to pipe and pipe to terminal, but not terminal to file.

Descriptors that may make us wait have to be in non-blocking mode themselves:
SPLICE_F_NONBLOCK only covers the pipe's side.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import termios
from typing import NoReturn

from agent.linux.libc import check, failure, libc

_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02

PAGE = os.sysconf("SC_PAGE_SIZE")


def splice(source: int, target: int, count: int) -> int:
    """Move up to `count` bytes; a file's position is the descriptor's own.

    Returns the number moved, 0 at the end of the source. Raises
    BlockingIOError when the source is empty or the target full, OSError else.
    """
    try:
        return os.splice(source, target, count, flags=os.SPLICE_F_NONBLOCK)
    except OSError as error:
        _again(error, source, target)


def splice_to_file(pipe: int, file: int, offset: int, count: int) -> int:
    """Like `splice`, to an absolute offset of a file; its position stays as it is."""
    try:
        return os.splice(pipe, file, count, offset_dst=offset, flags=os.SPLICE_F_NONBLOCK)
    except OSError as error:
        _again(error, pipe, file)


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Give back the memory of a part of a file; its size stays (fallocate(2)).

    Whole pages are freed, parts of pages are zeroed.
    """
    flags = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    numbers = (ctypes.c_int64(offset), ctypes.c_int64(length))
    check(libc.fallocate(fd, flags, *numbers), "fallocate(PUNCH_HOLE)", f"fd {fd}")


def data_start(fd: int) -> int:
    """The first offset that is not in a hole, or the file's size (lseek(2), SEEK_DATA).

    It moves the descriptor's position.
    """
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return os.fstat(fd).st_size


def waiting_bytes(fd: int) -> int:
    """How much lies in a pipe, unread (FIONREAD)."""
    answer = fcntl.ioctl(fd, termios.FIONREAD, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


def set_pipe_size(fd: int, size: int) -> int:
    """Make a pipe hold at least `size` bytes; returns what it holds now (F_SETPIPE_SZ)."""
    return fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)


def _again(error: OSError, source: int, target: int) -> NoReturn:
    number = error.errno or errno.EIO
    raise failure(number, "splice", f"fd {source} to fd {target}") from error

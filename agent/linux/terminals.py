"""Pseudo terminals, seen from the master side."""

from __future__ import annotations

import fcntl
import struct
import termios

from agent.linux.libc import failure


def set_window_size(fd: int, rows: int, columns: int) -> None:
    """Set the size in characters; the foreground processes get SIGWINCH when it changes.

    Raises OSError that names the call (ioctl_tty(2), TIOCSWINSZ).
    """
    try:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    except OSError as error:
        raise failure(error.errno or 0, "ioctl(TIOCSWINSZ)", f"fd {fd}") from error


def window_size(fd: int) -> tuple[int, int]:
    """Rows and columns (TIOCGWINSZ)."""
    answer = fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8))
    rows, columns, _, _ = struct.unpack("HHHH", answer)
    return rows, columns


def end_of_file_character(fd: int) -> bytes:
    """What ends a line-wise read at once: VEOF of termios(3), usually control-D.

    Empty when the terminal has none or reads characters singly: there is no
    end of input then.
    """
    settings = termios.tcgetattr(fd)
    local_modes, characters = settings[3], settings[6]
    if not local_modes & termios.ICANON:
        return b""
    character = bytes(characters[termios.VEOF])
    return character if character != b"\0" else b""

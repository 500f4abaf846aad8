"""Somebody who swaps two names for each other all the time, as a container could."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_AT_FDCWD = -100
_EXCHANGE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """While the block runs; each swap is one step (RENAME_EXCHANGE of renameat2(2))."""
    stop = threading.Event()
    names = os.fsencode(one), os.fsencode(other)

    def swap() -> None:
        while not stop.is_set():
            _LIBC.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

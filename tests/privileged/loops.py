"""Loop devices without losetup, which the guest does not have (ioctls of <linux/loop.h>)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL = Path("/dev/loop-control")
_LOOP_SET_FD = 0x4C00
_LOOP_CLR_FD = 0x4C01
_LOOP_CTL_GET_FREE = 0x4C82


@contextlib.contextmanager
def attached(image: Path) -> Iterator[str]:
    """A block device that shows the file; its path. Raises OSError."""
    with image.open("r+b") as file:
        device = _attach(file.fileno())
    try:
        yield device
    finally:
        with open(device, "rb") as loop:
            fcntl.ioctl(loop, _LOOP_CLR_FD)


def _attach(file: int) -> str:
    with CONTROL.open("rb") as control:
        while True:
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            loop = os.open(device, os.O_RDWR)
            try:
                fcntl.ioctl(loop, _LOOP_SET_FD, file)
            except OSError as error:
                # Somebody else took it in between.
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device
            finally:
                os.close(loop)

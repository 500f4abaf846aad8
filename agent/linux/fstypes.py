"""Which file systems the kernel can mount."""

from __future__ import annotations

import errno
import os

from agent.linux.libc import failure
from agent.linux.mountapi import Kernel


def know_fs_type(*, fs_type: str) -> None:
    """See to it that the kernel has the file system, loading its module: ENODEV when it can't.

    A kernel without fsopen(2) is not asked: its mount(2) will say.
    """
    try:
        os.close(Kernel().fsopen(fs_type))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise failure(error.errno or errno.EIO, "fsopen", fs_type) from error

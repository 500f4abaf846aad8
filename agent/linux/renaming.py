"""rename(2) that replaces nothing."""

from __future__ import annotations

import ctypes
import errno
import os

from agent.linux.libc import check, libc

_NOREPLACE = 1
_NOT_POSSIBLE = {errno.EINVAL, errno.ENOSYS}


def rename_new(old: str, new: str, folder: int) -> None:
    """Rename within a directory; FileExistsError when `new` is there already.

    Where the file system has no RENAME_NOREPLACE (renameat2(2): NFS, 9p), a hard link
    does the same in two steps.
    """
    result = libc.renameat2(folder, os.fsencode(old), folder, os.fsencode(new), _NOREPLACE)
    if result < 0 and ctypes.get_errno() in _NOT_POSSIBLE:
        os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(old, dir_fd=folder)
        return
    check(result, "renameat2", new)

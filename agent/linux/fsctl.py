"""ioctls of mounted file systems: trim, freeze, thaw, grow.

Structures and numbers are those of <linux/fs.h>, fs/ext4/ext4.h, fs/xfs/libxfs/xfs_fs.h
and <linux/btrfs.h>, for 64-bit machines with the encoding of asm-generic/ioctl.h.

All of them open the mount point, write or wait for a disk: call them where they can be
given up. `mount_id` is mountinfo's: a file system that was mounted over the one that is
meant must not get its ioctl (ESTALE). Errors are OSError with the path as their object.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from typing import TYPE_CHECKING, TypedDict

from agent.linux.libc import failure
from agent.linux.pseudo import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WRITE, _READ = 1, 2

_TRIM_RANGE = struct.Struct("=QQQ")  # start, len, minlen
_EXT4_BLOCKS = struct.Struct("=Q")
_XFS_GEOMETRY = struct.Struct("=8I4Q16s7I4x")  # struct xfs_fsop_geom_v1
_XFS_GROWTH = struct.Struct("=QI4x")  # newblocks, imaxpct
_BTRFS_ARGUMENTS = struct.Struct("=q4088s")  # fd, name
_BTRFS_DEVICE = struct.Struct("=Q16xQQ4056x")  # devid, bytes_used, total_bytes


def _number(direction: int, kind: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | kind << 8 | number


FIFREEZE = _number(_READ | _WRITE, ord("X"), 119, 4)
FITHAW = _number(_READ | _WRITE, ord("X"), 120, 4)
FITRIM = _number(_READ | _WRITE, ord("X"), 121, _TRIM_RANGE.size)
EXT4_IOC_RESIZE_FS = _number(_WRITE, ord("f"), 16, _EXT4_BLOCKS.size)
XFS_IOC_FSGEOMETRY_V1 = _number(_READ, ord("X"), 100, _XFS_GEOMETRY.size)
XFS_IOC_FSGROWFSDATA = _number(_WRITE, ord("X"), 110, _XFS_GROWTH.size)
BTRFS_IOC_DEV_INFO = _number(_READ | _WRITE, 0x94, 30, _BTRFS_DEVICE.size)
BTRFS_IOC_RESIZE = _number(_WRITE, 0x94, 3, _BTRFS_ARGUMENTS.size)

_EVERYTHING = (1 << 64) - 1


class Grown(TypedDict):
    """Bytes of the file system, as statfs(2) counts them."""

    before: int
    size: int


def trim(*, path: str, mount_id: int) -> int:
    """Give all unused blocks back to the device; returns the bytes that were.

    EOPNOTSUPP: the device takes none. ENOTTY: this file system can't.
    """
    with _opened(path, mount_id) as fd:
        buffer = bytearray(_TRIM_RANGE.pack(0, _EVERYTHING, 0))
        _ioctl(fd, "FITRIM", FITRIM, buffer, path)
    # The kernel writes back what it did as the range's length.
    return int(_TRIM_RANGE.unpack(buffer)[1])


def freeze(*, path: str, mount_id: int) -> None:
    """Write everything out, then let writers wait.

    EBUSY: it is frozen already. EOPNOTSUPP: this file system can't.
    """
    with _opened(path, mount_id) as fd:
        _ioctl(fd, "FIFREEZE", FIFREEZE, bytearray(4), path)


def thaw(*, path: str, mount_id: int) -> None:
    """Let writers go on. EINVAL: it is not frozen."""
    with _opened(path, mount_id) as fd:
        _ioctl(fd, "FITHAW", FITHAW, bytearray(4), path)


def grow(*, path: str, mount_id: int, fs_type: str, device_size: int) -> Grown:
    """Make a mounted file system as big as its device, which has `device_size` bytes.

    One that is as big already stays as it is. EOPNOTSUPP for a type that can't grow here.
    """
    step = _GROWTH.get(fs_type)
    if step is None:
        raise failure(errno.EOPNOTSUPP, "grow", path)
    with _opened(path, mount_id) as fd:
        before = _size(fd)
        step(fd, path, device_size)
        return {"before": before, "size": _size(fd)}


def _grow_ext4(fd: int, path: str, device_size: int) -> None:
    blocks = device_size // os.fstatvfs(fd).f_bsize
    wanted = bytearray(_EXT4_BLOCKS.pack(blocks))
    _ioctl(fd, "EXT4_IOC_RESIZE_FS", EXT4_IOC_RESIZE_FS, wanted, path)


def _grow_xfs(fd: int, path: str, device_size: int) -> None:
    buffer = bytearray(_XFS_GEOMETRY.size)
    _ioctl(fd, "XFS_IOC_FSGEOMETRY", XFS_IOC_FSGEOMETRY_V1, buffer, path)
    block_size, *_, inode_percent, data_blocks = _XFS_GEOMETRY.unpack(buffer)[:9]
    blocks = device_size // block_size
    # Less is a request to shrink, which newer kernels try.
    if blocks > data_blocks:
        wanted = bytearray(_XFS_GROWTH.pack(blocks, inode_percent))
        _ioctl(fd, "XFS_IOC_FSGROWFSDATA", XFS_IOC_FSGROWFSDATA, wanted, path)


def _grow_btrfs(fd: int, path: str, device_size: int) -> None:
    """Of several devices the first one: the kernel takes "max" for "1:max".

    It refuses a size below 256 MiB (btrfs_ioctl_resize), also one that is there already.
    """
    buffer = bytearray(_BTRFS_DEVICE.pack(1, 0, 0))
    _ioctl(fd, "BTRFS_IOC_DEV_INFO", BTRFS_IOC_DEV_INFO, buffer, path)
    _, _, size = _BTRFS_DEVICE.unpack(buffer)
    if device_size - size < os.fstatvfs(fd).f_bsize:
        return
    wanted = bytearray(_BTRFS_ARGUMENTS.pack(0, b"max"))
    _ioctl(fd, "BTRFS_IOC_RESIZE", BTRFS_IOC_RESIZE, wanted, path)


_GROWTH: dict[str, Callable[[int, str, int], None]] = {
    "ext4": _grow_ext4,
    "xfs": _grow_xfs,
    "btrfs": _grow_btrfs,
}
GROWING = frozenset(_GROWTH)
"""Types of file systems that `grow` can grow."""


@contextlib.contextmanager
def _opened(path: str, mount_id: int) -> Iterator[int]:
    """The root of the mount; a descriptor of it works for every ioctl of its file system."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if _mount_of(fd) != mount_id:
            raise failure(errno.ESTALE, "open", path)
        yield fd
    finally:
        os.close(fd)


def _mount_of(fd: int) -> int:
    """The id of the mount that a descriptor is in (proc_pid_fdinfo(5))."""
    lines = read_text(f"/proc/self/fdinfo/{fd}").splitlines()
    return int(next(line for line in lines if line.startswith("mnt_id:")).partition(":")[2])


def _size(fd: int) -> int:
    found = os.fstatvfs(fd)
    return found.f_blocks * found.f_frsize


def _ioctl(fd: int, name: str, number: int, argument: bytearray, path: str) -> None:
    """The argument gets what the kernel writes back (and bytes may not be longer than 1 KiB)."""
    try:
        fcntl.ioctl(fd, number, argument)
    except OSError as error:
        raise failure(error.errno or errno.EIO, name, path) from error

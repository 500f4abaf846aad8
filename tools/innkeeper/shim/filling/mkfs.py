"""File systems made from a tar, without mounting anything and without root.

mke2fs takes a tar since e2fsprogs 1.47.1, where libarchive is; mkfs.erofs since
erofs-utils 1.7. Debian 13 has both: the image builder's build root brings them to any
host that has built an image, and else the host's own are taken where they are new enough.
"""

from __future__ import annotations

import math
import re
import shutil
import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from innkeeper.image.checkout import find_checkout
from innkeeper.image.environment import fixed_environment
from innkeeper.image.model import ImageError
from innkeeper.image.toolbox import Toolbox
from innkeeper.shim import commands
from innkeeper.shim.guest_disk import DiskError, make_disk
from innkeeper.shim.sizes import in_words

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.shim.filling.writing import Written

_BLOCK = 4096
_INODE = 256
_LEAST = 1 << 20
_ROOM = 64 << 20
_TRIES = 8
_GROWTH = 1.15
_DEADLINE = 1800.0
_MKE2FS = "usr/sbin/mke2fs"
_MKFS_EROFS = "usr/bin/mkfs.erofs"
_ARCHIVE = "usr/lib/x86_64-linux-gnu/libarchive.so.13"
_NEW_MKE2FS = (1, 47, 1)
_NEW_EROFS = (1, 7, 0)
_HINT = "innkeeper image build brings them, and so does Debian 13"


class FsType(StrEnum):
    """What a disk can be made as."""

    EXT4 = "ext4"
    EROFS = "erofs"


class Program(Protocol):
    """Runs one program; raises CommandError."""

    def __call__(self, *arguments: str | Path) -> commands.CommandResult: ...


def make(
    tar: Path, target: Path, written: Written, *, fs_type: FsType, size: int, writable: bool
) -> None:
    """Fills `target`, a new file. `size` in bytes; 0 is as little as will do. Raises DiskError,
    CommandError."""
    if fs_type is FsType.EROFS:
        _make_erofs(tar, target, written)
    else:
        _make_ext4(tar, target, written, size=size, writable=writable)


def _make_ext4(tar: Path, target: Path, written: Written, *, size: int, writable: bool) -> None:
    try:
        program = mke2fs(written.newest)
    except DiskError:
        _unpack_and_fill(tar, target, written, size=size, writable=writable)
        return
    features = () if writable else ("-O", "^has_journal,^resize_inode,^orphan_file")
    blocks = size // _BLOCK or _blocks_for(written, writable=writable)
    for _ in range(_TRIES):
        target.unlink(missing_ok=True)
        try:
            program(
                *("-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-I", str(_INODE), "-m", "0"),
                *(*features, "-N", str(_inodes_for(written, blocks, writable=writable))),
                *("-U", _uuid(written.digest), "-E", _extended(written.digest)),
                *("-d", tar, target, str(blocks)),
            )
        except commands.CommandError as error:
            if not _is_full(error):
                raise
            if size:
                raise _too_small(size, written, writable=writable) from error
            blocks = math.ceil(blocks * _GROWTH)
        else:
            return
    raise DiskError(f"{target}: {blocks} blocks are still too few")


def _unpack_and_fill(
    tar: Path, target: Path, written: Written, *, size: int, writable: bool
) -> None:
    """With any mke2fs: by way of a directory. An ordinary user makes no device nodes so."""
    try:
        made = make_disk(tar, target, size=size or None, free=_ROOM if writable else 0)
    except commands.CommandError as error:
        if size and _is_full(error):
            raise _too_small(size, written, writable=writable) from error
        raise
    if made.left_out:
        raise DiskError(f"{made.left_out} device nodes: only root can make them here; {_HINT}")


def _too_small(size: int, written: Written, *, writable: bool) -> DiskError:
    likely = math.ceil(_blocks_for(written, writable=writable) * _BLOCK / _LEAST)
    return DiskError(
        f"a disk of {in_words(size)} is too small for it: without a size it gets {likely} MiB"
    )


def _is_full(error: commands.CommandError) -> bool:
    texts = ("allocate", "No space left", "too small", "too big for a", "journal")
    return any(text in error.stderr_tail for text in texts)


def _extended(digest: str) -> str:
    return f"hash_seed={_uuid(digest)},root_owner=0:0,nodiscard,lazy_itable_init=0"


def _blocks_for(written: Written, *, writable: bool) -> int:
    tables = math.ceil(_inodes_for(written, 0, writable=writable) * _INODE / _BLOCK)
    used = written.blocks + tables + 64
    room = _ROOM // _BLOCK if writable else 0
    return max(_LEAST // _BLOCK, math.ceil(used * 1.02) + room)


def _inodes_for(written: Written, blocks: int, *, writable: bool) -> int:
    """Eleven are reserved. One for each 16 KiB, as mke2fs has it, where files may come."""
    least = written.inodes + 16
    return max(least, written.inodes * 2, blocks // 4) if writable else least


def _make_erofs(tar: Path, target: Path, written: Written) -> None:
    """It knows no holes; the image's own file gets them back."""
    program = mkfs_erofs(written.newest)
    program("--quiet", "--tar=f", "-U", _uuid(written.digest), target, tar)
    commands.run(["fallocate", "--dig-holes", target], deadline=_DEADLINE, check=False)


def _uuid(digest: str) -> str:
    """The same content is the same file system, byte for byte."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, digest))


def mke2fs(newest: int) -> Program:
    """Raises DiskError where there is none that takes a tar."""
    if toolbox := _toolbox(_MKE2FS, _ARCHIVE):
        return _of_toolbox(toolbox, _MKE2FS, newest)
    program = _own("mke2fs", "-V", _NEW_MKE2FS)
    if program is None:
        raise DiskError(f"no mke2fs here that fills a file system from a tar (1.47.1); {_HINT}")
    return _of_host(program, newest)


def mkfs_erofs(newest: int) -> Program:
    """Raises DiskError where there is none that takes a tar."""
    if toolbox := _toolbox(_MKFS_EROFS):
        return _of_toolbox(toolbox, _MKFS_EROFS, newest)
    program = _own("mkfs.erofs", "--version", _NEW_EROFS)
    if program is None:
        raise DiskError(f"no mkfs.erofs here that takes a tar (1.7); {_HINT}")
    return _of_host(program, newest)


def _toolbox(*needed: str) -> Toolbox | None:
    """The newest build root that has what is needed."""
    try:
        roots = (find_checkout().cache / "base").glob("*/toolbox")
    except ImageError:
        return None
    having = [root for root in roots if all((root / path).exists() for path in needed)]
    newest = max(having, key=lambda root: root.stat().st_mtime, default=None)
    return Toolbox(root=newest) if newest is not None else None


def _own(name: str, version: str, least: tuple[int, int, int]) -> str | None:
    path = shutil.which(name, path=fixed_environment()["PATH"])
    if path is None:
        return None
    done = commands.run([path, version], deadline=_DEADLINE, check=False)
    found = re.search(rb"(\d+)\.(\d+)(?:\.(\d+))?", done.stdout + done.stderr)
    if found is None or tuple(int(part or 0) for part in found.groups()) < least:
        return None
    return path


def _of_toolbox(toolbox: Toolbox, program: str, newest: int) -> Program:
    config = {"MKE2FS_CONFIG": str(toolbox.root / "etc/mke2fs.conf")}

    def run(*arguments: str | Path) -> commands.CommandResult:
        return toolbox.run(program, *arguments, env=config | _clock(newest))

    return run


def _of_host(program: str, newest: int) -> Program:
    def run(*arguments: str | Path) -> commands.CommandResult:
        env = fixed_environment(**_clock(newest))
        return commands.run([program, *arguments], deadline=_DEADLINE, env=env)

    return run


def _clock(newest: int) -> dict[str, str]:
    """Both programs take it for now, and no file for younger."""
    return {"SOURCE_DATE_EPOCH": str(newest)}

"""Disks for the guest, made of files of the host: an ext4 image from a directory or a tar.

`mke2fs -d` fills the file system without mounting it, so no privilege is
needed. What an ordinary user can't do is give files to others or read those of
mode 0: a tar unpacked by one keeps its owners and modes anyway, because they
are written into the finished file system afterwards (`debugfs`); its device
nodes are left out, and the caller is told how many.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_IFDIR, S_IFREG, S_ISDIR, S_ISREG

from innkeeper.shim import commands

_BLOCK = 4096
_INODE = 256
_SMALLEST = 16 << 20
# What mke2fs keeps for itself besides inodes: journal, group descriptors, resize inode.
_OVERHEAD = 1.08
# Where each has its magic number: ext4's super block is at 1024, include/linux/magic.h
# and fs/ext4/ext4.h; XFS and SquashFS begin with theirs; docs/interop/qcow2.rst.
_IMAGES = {
    "an ext4 file system": (1024 + 0x38, b"\x53\xef"),
    "an XFS file system": (0, b"XFSB"),
    "a SquashFS file system": (0, b"hsqs"),
    "a qcow2 image": (0, b"QFI\xfb"),
}
_LONGEST_HEAD = 2048
_PACKAGE_HINT = "mke2fs and debugfs come with the package e2fsprogs, tar with the package tar"


class DiskError(Exception):
    """The source can't be made into a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFile:
    """A raw image with one ext4 file system, without a partition table."""

    file: Path
    size: int
    left_out: int = 0
    """Members of the tar that could not be made (device nodes, for an ordinary user)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSize:
    """What a tree needs in a file system: bytes in whole blocks, and inodes."""

    content: int
    inodes: int

    def with_room(self, free: int) -> int:
        """Bytes of an image that holds the tree and leaves `free` bytes."""
        needed = self.content + self.inodes * _INODE + free
        return _whole_blocks(max(_SMALLEST, int(needed * _OVERHEAD) + (4 << 20)))


def make_disk(
    source: Path, target: Path, *, size: int | None = None, free: int = 64 << 20, label: str = ""
) -> DiskFile:
    """Makes `target`, a sparse file, from a directory or a tar (compressed or not).

    `size` is the image's in bytes; without it the image has room for the tree
    and `free` bytes more. Raises DiskError and commands.CommandError; `target`
    is not left behind then.
    """
    check_source(source)
    if source.is_dir():
        return _from_tree(source, target, size, free, label)
    return _from_tar(source, target, size, free, label)


def check_source(source: Path) -> None:
    """Raises DiskError for what `make_disk` could not use, after a look at its beginning."""
    if source.is_dir():
        return
    if not source.exists():
        raise _unusable(source, "does not exist")
    if kind := _image_kind(source):
        hint = f"use it as it is, as a disk: --disk {source}:/MOUNT"
        raise _unusable(source, f"is {kind}, neither a directory nor a tar file; {hint}")
    if not (source.is_file() and tarfile.is_tarfile(source)):
        raise _unusable(source, "is neither a directory nor a tar file")
    with tarfile.open(source) as tar:
        # To tarfile and to tar, a file that begins with zeros is an archive too.
        if tar.next() is None:
            raise _unusable(source, "is a tar file without members")


def _unusable(source: Path, why: str) -> DiskError:
    return DiskError(f"cannot make a disk from {source}: it {why}")


def _image_kind(source: Path) -> str:
    """What is no tree but holds one; empty for anything else."""
    if not source.is_file():
        return ""
    with source.open("rb") as file:
        head = file.read(_LONGEST_HEAD)
    return next(
        (kind for kind, (at, magic) in _IMAGES.items() if head[at : at + len(magic)] == magic), ""
    )


def measure(root: Path) -> TreeSize:
    """Adds up a tree; a file of many names counts once, and symbolic links are not followed."""
    seen: set[tuple[int, int]] = set()
    content = 0
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        if S_ISREG(status.st_mode):
            # Holes are kept as holes, so what counts is what is allocated.
            content += _whole_blocks(min(status.st_size, status.st_blocks * 512))
        elif S_ISDIR(status.st_mode):
            content += max(_BLOCK, _whole_blocks(status.st_size))
    return TreeSize(content=content, inodes=len(seen))


def _from_tree(root: Path, target: Path, size: int | None, free: int, label: str) -> DiskFile:
    tree = measure(root)
    wanted = _whole_blocks(size) if size is not None else tree.with_room(free)
    argv = [_tool("mke2fs"), "-q", "-F", "-t", "ext4", "-m", "0", "-b", str(_BLOCK)]
    argv += ["-N", str(max(1024, tree.inodes * 2)), "-L", label, "-d", str(root)]
    # The image is a new, sparse file: there is nothing to discard or to zero.
    argv += ["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"]
    argv += [str(target), str(wanted // _BLOCK)]
    target.unlink(missing_ok=True)
    try:
        commands.run(argv, deadline=600, hint=_PACKAGE_HINT)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return DiskFile(file=target, size=wanted)


def _from_tar(archive: Path, target: Path, size: int | None, free: int, label: str) -> DiskFile:
    as_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpack-") as folder:
        root = Path(folder, "root")
        root.mkdir(mode=0o755)
        left_out = _unpack(archive, root, as_root=as_root)
        if not as_root:
            _make_readable(root)
        disk = _from_tree(root, target, size, free, label)
        if not as_root:
            _write_attributes(archive, target)
    return DiskFile(file=disk.file, size=disk.size, left_out=left_out)


def _unpack(archive: Path, root: Path, *, as_root: bool) -> int:
    """Unpacks with owners and modes as they are; says how many members were left out."""
    argv = ["tar", "--extract", f"--file={archive}", f"--directory={root}"]
    argv += ["--preserve-permissions", "--numeric-owner", "--delay-directory-restore"]
    excluded: list[str] = []
    if as_root:
        argv += ["--same-owner", "--xattrs", "--xattrs-include=*"]
    else:
        with tarfile.open(archive) as members:
            excluded = [member.name for member in members if member.isdev()]
        argv += ["--no-same-owner", "--anchored", "--no-wildcards", "--exclude-from=-"]
    listed = "".join(f"{name}\n" for name in excluded).encode()
    commands.run(argv, deadline=600, input=listed, hint=_PACKAGE_HINT)
    return len(excluded)


def _make_readable(root: Path) -> None:
    """Top down, so that a directory can be entered when its turn comes."""
    for folder, names, files in os.walk(root):
        for path in (Path(folder, name) for name in names + files):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o700)


def _write_attributes(archive: Path, image: Path) -> None:
    """Writes the tar's owners and modes into the image, which has the user's own."""
    with tarfile.open(archive) as tar:
        members = [member for member in tar if not member.isdev()]
    requests = [
        f'set_inode_field "/{path}" {field} {value}\n'
        for path, attributes in _attributes(members).items()
        for field, value in attributes.items()
    ]
    argv = [_tool("debugfs"), "-w", "-f", "-", str(image)]
    done = commands.run(argv, deadline=600, input="".join(requests).encode(), hint=_PACKAGE_HINT)
    # debugfs goes on after a request that failed, and ends with status 0.
    _, *problems = done.stderr.decode(errors="replace").splitlines()
    if problems:
        raise DiskError(f"cannot write owners and modes of {archive}: {problems[0]}")


def _attributes(members: list[tarfile.TarInfo]) -> dict[str, dict[str, str]]:
    """Fields of each path's inode, as debugfs names and spells them. Directories
    that the tar only implies are root's."""
    fields: dict[str, dict[str, str]] = {}
    for member in members:
        path = _quotable(member.name)
        for parent in PurePosixPath(path).parents:
            fields.setdefault(str(parent), {"uid": "0", "gid": "0"})
        fields[path] = {"uid": str(member.uid), "gid": str(member.gid)}
        if member.isfile() or member.isdir():
            kind = S_IFDIR if member.isdir() else S_IFREG
            fields[path]["mode"] = f"0{kind | member.mode:o}"
    return fields


def _quotable(name: str) -> str:
    if '"' in name or "\n" in name:
        raise DiskError(
            f"cannot keep owner and mode of {name!r}: its name holds a quote or a line's end."
            " Unpack the tar as root and give the directory"
        )
    return str(PurePosixPath(name.lstrip("/")))


def _tool(name: str) -> str:
    """Debian keeps file system tools where an ordinary user's PATH doesn't look."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or name


def _whole_blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK

"""Trees of directories and tars of the host."""

from __future__ import annotations

import copy
import os
import stat
import tarfile
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from innkeeper.shim.filling.trees import Node, Tree, attributes, with_attribute
from innkeeper.shim.guest_disk import DiskError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

# Of a directory's attributes those that mean the same in the guest.
_XATTRS = ("user.", "security.capability")

_KINDS = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


def tree_of_directory(root: Path) -> Tree:
    """Owners, modes and all as they are; sockets are left out, as no file system keeps one.
    Raises OSError for what can't be read."""
    tree = Tree()
    seen: dict[tuple[int, int], Node] = {}
    for path in (root, *_below(root)):
        status = path.lstat()
        node = seen.get((status.st_dev, status.st_ino)) or _node(path, status)
        if node is None:
            continue
        if status.st_nlink > 1 and not node.is_directory:
            seen[status.st_dev, status.st_ino] = node
        name = path.relative_to(root).as_posix()
        tree.nodes["" if name == "." else name] = node
    return tree


def _below(root: Path) -> Iterator[Path]:
    """Raises what a directory says that can't be listed, instead of passing over it."""
    for folder, names, files in os.walk(root, onerror=_raise):
        for name in (*names, *files):
            yield Path(folder, name)


def _raise(error: OSError) -> None:
    raise error


def _node(path: Path, status: os.stat_result) -> Node | None:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        return None
    info = tarfile.TarInfo()
    info.type, info.mode, info.mtime = kind, stat.S_IMODE(status.st_mode), int(status.st_mtime)
    info.uid, info.gid = status.st_uid, status.st_gid
    info.devmajor, info.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
    if info.issym():
        info.linkname = str(path.readlink())
    for name in os.listxattr(path, follow_symlinks=False):
        if name.startswith(_XATTRS):
            with_attribute(info, name, os.getxattr(path, name, follow_symlinks=False))
    if not info.isreg():
        return Node(info=info)
    info.size = status.st_size
    return Node(info=info, content=partial(_open_file, path))


def _open_file(path: Path) -> IO[bytes]:
    return path.open("rb")


def add_tar(tree: Tree, archive: tarfile.TarFile) -> None:
    """Lays an archive over a tree; it stays open for as long as the tree is of use.
    Raises DiskError for a member that leads out or is of no kind that a file system has."""
    for member in archive:
        add_member(tree, archive, member)


def add_member(tree: Tree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    if member.islnk():
        tree.link(member.name, member.linkname)
        return
    if not (member.isreg() or member.isdir() or member.issym() or member.isdev()):
        raise DiskError(f"{member.name!r}: a member of an unknown kind, {member.type!r}")
    info = copy.copy(member)
    info.pax_headers = attributes(member.pax_headers)
    if member.isreg():
        # A sparse member among them; from here on it is read as what it stands for.
        info.type = tarfile.REGTYPE
        tree.put(member.name, Node(info=info, content=partial(_open, archive, member)))
    else:
        tree.put(member.name, Node(info=info))


def _open(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise DiskError(f"{member.name!r}: holds nothing")
    return content


def open_tar(path: Path, stack: ExitStack) -> tarfile.TarFile:
    """Compressed or not; raises DiskError for what is no tar."""
    try:
        return stack.enter_context(tarfile.open(path))
    except tarfile.TarError as error:
        raise DiskError(f"{path}: {error}") from error

"""Writes a tree as a cpio archive of the kind that the kernel unpacks ("newc").

The format is in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst:
a header of thirteen 8-digit hex numbers behind the magic 070701, the name with
its NUL, the content; each padded to four bytes.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from innkeeper.image.model import EPOCH, ImageError
from innkeeper.image.tree import Kind, Node

if TYPE_CHECKING:
    from innkeeper.image.tree import Tree

_TYPES = {Kind.DIRECTORY: stat.S_IFDIR, Kind.FILE: stat.S_IFREG, Kind.SYMLINK: stat.S_IFLNK}
_CONSOLE = (5, 1)


def write_cpio(tree: Tree) -> bytes:
    """Raises `ImageError` for a hard link, which an initrd has no use for."""
    # Without /dev/console in the archive init has no stdin, stdout and stderr: the kernel
    # opens it before anything could mount a devtmpfs.
    parts = [_header("dev", stat.S_IFDIR | 0o755, inode=1)]
    parts.append(_header("dev/console", stat.S_IFCHR | 0o600, inode=2, device=_CONSOLE))
    nodes = [(path, node) for path, node in sorted(tree.nodes.items()) if path != "dev"]
    for inode, (path, node) in enumerate(nodes, start=3):
        parts.append(_record(path, node, inode))
    parts.append(_header("TRAILER!!!", 0, inode=0))
    return b"".join(parts)


def _record(path: str, node: Node, inode: int) -> bytes:
    if node.kind not in _TYPES:
        raise ImageError(f"/{path}: a {node.kind} in an initrd")
    content = node.target.encode() if node.kind is Kind.SYMLINK else node.content
    header = _header(path, _TYPES[node.kind] | node.mode, inode=inode, size=len(content))
    return header + _padded(content)


def _header(
    path: str, mode: int, *, inode: int, size: int = 0, device: tuple[int, int] = (0, 0)
) -> bytes:
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    mtime = EPOCH if inode else 0
    numbers = (inode, mode, 0, 0, links, mtime, size, 0, 0, *device, len(name), 0)
    return _padded(b"070701" + b"".join(b"%08X" % number for number in numbers) + name)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)

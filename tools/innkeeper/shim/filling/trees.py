"""A file system as a value, with owners, times and attributes, laid together from layers.

What comes from outside is not trusted: a name may not lead out of the tree, whatever
links lie on its way. Links in the middle of a name are followed inside the tree, as a
program that unpacks layers one over the other would have followed them.
"""

from __future__ import annotations

import posixpath
import tarfile
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING

from innkeeper.shim.guest_disk import DiskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_MOST_LINKS = 40
_XATTR = "SCHILY.xattr."
# What tarfile may not take from elsewhere: it writes these itself where they are needed.
_KEPT_HEADERS = (_XATTR, "hdrcharset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One inode; hard links are one node under several paths."""

    info: tarfile.TarInfo
    """Of it only kind, mode, owner, time, size, target and attributes count."""
    content: Callable[[], IO[bytes]] | None = None
    """Opens what a file holds, `info.size` bytes."""

    @property
    def is_directory(self) -> bool:
        return self.info.isdir()


def directory(*, mode: int = 0o755) -> Node:
    """One that nobody said anything of: root's."""
    info = tarfile.TarInfo()
    info.type, info.mode = tarfile.DIRTYPE, mode
    return Node(info=info)


@dataclass(slots=True)
class Tree:
    """Nodes by path, without slashes at either end; the root is ""."""

    nodes: dict[str, Node] = field(default_factory=lambda: {"": directory()})

    def put(self, name: str, node: Node) -> None:
        """Takes the place of what is there; a directory keeps what is in one.
        Raises DiskError for a name that leads out, or through a file."""
        path = self.real(name)
        old = self.nodes.get(path)
        if not path and not node.is_directory:
            raise DiskError(f"{name!r}: takes the place of the root")
        if old is not None and not (old.is_directory and node.is_directory):
            self.remove(path)
        self._make_parents(name, path)
        self.nodes[path] = node

    def link(self, name: str, target: str) -> None:
        """A hard link. Raises DiskError where there is no file to link to."""
        node = self.nodes.get(self.real(target))
        if node is None or node.is_directory:
            raise DiskError(f"{name!r}: a hard link to {target!r}, which is no file here")
        self.put(name, node)

    def remove(self, path: str) -> None:
        """With all that is below it; fine when it is not there."""
        self.nodes.pop(path, None)
        self.clear(path)

    def clear(self, path: str) -> None:
        """All that is below it."""
        below = f"{path}/" if path else ""
        for other in [each for each in self.nodes if each and each.startswith(below)]:
            del self.nodes[other]

    def real(self, name: str) -> str:
        """The path of a name, links on the way to its last part followed, never out of the
        tree. Raises DiskError."""
        *parents, last = clean(name).split("/")
        return "/".join(part for part in (self._follow(parents), last) if part)

    def _follow(self, parts: list[str]) -> str:
        left, done, links = list(reversed(parts)), "", 0
        while left:
            part = left.pop()
            if part == "..":
                done = posixpath.dirname(done)
                continue
            here = "/".join(each for each in (done, part) if each)
            node = self.nodes.get(here)
            if node is None or not node.info.issym():
                done = here
                continue
            links += 1
            if links > _MOST_LINKS:
                raise DiskError(f"{'/'.join(parts)!r}: too many symbolic links")
            target = node.info.linkname
            done = "" if target.startswith("/") else done
            left += [each for each in reversed(target.split("/")) if each not in ("", ".")]
        return done

    def _make_parents(self, name: str, path: str) -> None:
        parent = posixpath.dirname(path)
        while parent and parent not in self.nodes:
            self.nodes[parent] = directory()
            parent = posixpath.dirname(parent)
        if path and not self.nodes[posixpath.dirname(path)].is_directory:
            raise DiskError(f"{name!r}: {posixpath.dirname(path)!r} is no directory")

    def members(self) -> Iterator[tuple[tarfile.TarInfo, Node]]:
        """As a tar has them, in an order that depends on nothing else: by path, and a file
        of several names is one under the first of them."""
        seen: dict[int, str] = {}
        for path, node in sorted(self.nodes.items()):
            info = _plain(node.info, path)
            if not node.is_directory and id(node) in seen:
                info.type, info.linkname, info.size = tarfile.LNKTYPE, seen[id(node)], 0
                yield info, replace(node, content=None)
                continue
            seen.setdefault(id(node), info.name)
            yield info, node


def clean(name: str) -> str:
    """A name as a path of ours. Raises DiskError for one that leads out of its tree."""
    if "\0" in name:
        raise DiskError(f"{name!r}: holds a zero byte")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise DiskError(f"{name!r}: leads out of its directory")
    return "/".join(parts)


def attributes(headers: Mapping[str, str]) -> dict[str, str]:
    """Of a member's extended headers what is no more than an attribute."""
    return {key: value for key, value in headers.items() if key.startswith(_KEPT_HEADERS)}


def with_attribute(info: tarfile.TarInfo, name: str, value: bytes) -> None:
    text = value.decode(errors="surrogateescape")
    info.pax_headers = {**info.pax_headers, _XATTR + name: text}


def _plain(info: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(f"./{path}")
    # A link has no mode of its own to Linux, and tars have all kinds of them.
    mode = 0o777 if info.issym() else info.mode & 0o7777
    made.type, made.mode, made.mtime = info.type, mode, int(info.mtime)
    made.uid, made.gid = info.uid, info.gid
    made.linkname = info.linkname if info.issym() else ""
    made.devmajor, made.devminor = info.devmajor, info.devminor
    made.size = info.size if info.isreg() else 0
    made.pax_headers = attributes(info.pax_headers)
    return made

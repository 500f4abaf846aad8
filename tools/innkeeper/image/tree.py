"""A file system as a value: paths and what is there, without owner and time.

Every file of a guest belongs to root and has the same time stamp, so a tree
that is equal is the same image, whoever built it, when, and under which umask.
"""

from __future__ import annotations

import io
import posixpath
import stat
import tarfile
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from innkeeper.image.model import EPOCH, ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_LINKS = 40


class Kind(StrEnum):
    DIRECTORY = "directory"
    FILE = "file"
    SYMLINK = "symlink"
    HARD_LINK = "hard link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """`target` is a symbolic link's text or a hard link's path from the root."""

    kind: Kind
    mode: int = 0o755
    content: bytes = b""
    target: str = ""
    component: str = ""
    """Which part of the image it counts as, for the table of sizes."""


@dataclass(slots=True)
class Tree:
    """Nodes by path from the root, without a leading slash; the root itself is not in it."""

    nodes: dict[str, Node] = field(default_factory=dict)

    def add_directory(self, path: str, *, mode: int = 0o755, component: str = "") -> None:
        self._parents(path, component)
        self.nodes[path] = Node(kind=Kind.DIRECTORY, mode=mode, component=component)

    def add_file(
        self, path: str, content: bytes, *, executable: bool = False, component: str
    ) -> None:
        mode = 0o755 if executable else 0o644
        self._put(path, Node(kind=Kind.FILE, mode=mode, content=content, component=component))

    def add_symlink(self, path: str, target: str, *, component: str) -> None:
        self._put(path, Node(kind=Kind.SYMLINK, mode=0o777, target=target, component=component))

    def add_hard_link(self, path: str, target: str, *, component: str) -> None:
        self._put(path, Node(kind=Kind.HARD_LINK, target=target, component=component))

    def add_tree(self, other: Tree) -> None:
        """Lays `other` over this one; its directories keep what is in ours."""
        for path, node in sorted(other.nodes.items()):
            if node.kind is not Kind.DIRECTORY:
                self._put(path, node)
            elif self._kind(self.real(path)) is not Kind.DIRECTORY:
                self.add_directory(path, mode=node.mode, component=node.component)

    def add_host_directory(self, source: Path, at: str = "", *, component: str) -> None:
        """Copies a directory of the host; of its modes only `executable` counts."""
        for found in sorted(source.rglob("*")):
            path = str(PurePosixPath(at) / found.relative_to(source).as_posix())
            if found.is_symlink():
                self.add_symlink(path, str(found.readlink()), component=component)
            elif found.is_dir():
                if self._kind(self.real(path)) is not Kind.DIRECTORY:
                    self.add_directory(path, component=component)
            elif found.is_file():
                executable = bool(found.stat().st_mode & stat.S_IXUSR)
                content = found.read_bytes()
                self.add_file(path, content, executable=executable, component=component)
            else:
                raise ImageError(f"{found}: neither file, directory nor link; cannot be copied")

    def prune(self, patterns: Iterable[str]) -> None:
        """Drops what matches a pattern, with what is below it."""
        wanted = list(patterns)
        doomed = {path for path in self.nodes if any(fnmatchcase(path, p) for p in wanted)}
        self.nodes = {
            path: node
            for path, node in self.nodes.items()
            if path not in doomed and not doomed.intersection(_above(path))
        }

    def keep(self, patterns: Iterable[str]) -> None:
        """Drops what matches no pattern, save the directories above what does."""
        wanted = list(patterns)
        kept = {path for path in self.nodes if any(fnmatchcase(path, p) for p in wanted)}
        kept.update(above for path in list(kept) for above in _above(path))
        self.nodes = {path: node for path, node in self.nodes.items() if path in kept}

    def below(self, *directories: str) -> Iterator[tuple[str, Node]]:
        for path, node in sorted(self.nodes.items()):
            if any(path.startswith(f"{directory}/") for directory in directories):
                yield path, node

    def real(self, path: str, *, links: int = _MOST_LINKS) -> str:
        """`path` without symbolic links on the way or at its end.

        Raises `ImageError` after `links` of them, as the kernel does with ELOOP.
        """
        done = ""
        for part in PurePosixPath(path).parts:
            done = f"{done}/{part}".lstrip("/")
            node = self.nodes.get(done)
            if node is not None and node.kind is Kind.SYMLINK:
                if not links:
                    raise ImageError(f"/{path}: too many symbolic links")
                target = posixpath.join("/", posixpath.dirname(done), node.target)
                done = self.real(posixpath.normpath(target).lstrip("/"), links=links - 1)
        return done

    def sizes(self) -> dict[str, int]:
        """Bytes of file content by component, largest first."""
        sizes: dict[str, int] = {}
        for node in self.nodes.values():
            if node.kind is Kind.FILE:
                sizes[node.component] = sizes.get(node.component, 0) + len(node.content)
        return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))

    def write_tar(self, file: IO[bytes]) -> None:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(_member("./", Node(kind=Kind.DIRECTORY)))
            # A hard link can only follow what it links to.
            order = sorted(
                self.nodes.items(), key=lambda item: (item[1].kind is Kind.HARD_LINK, item[0])
            )
            for path, node in order:
                archive.addfile(_member(f"./{path}", node), io.BytesIO(node.content))

    def _put(self, path: str, node: Node) -> None:
        directory, _, name = path.rpartition("/")
        path = f"{self.real(directory)}/{name}".lstrip("/")
        if self._kind(path) is Kind.DIRECTORY:
            raise ImageError(f"/{path}: a {node.kind} cannot take the place of a directory")
        self._parents(path, node.component)
        self.nodes[path] = node

    def _parents(self, path: str, component: str) -> None:
        for parent in _above(path):
            if parent not in self.nodes:
                self.nodes[parent] = Node(kind=Kind.DIRECTORY, component=component)

    def _kind(self, path: str) -> Kind | None:
        node = self.nodes.get(path)
        return node.kind if node else None


def read_tar(file: IO[bytes]) -> Tree:
    """Device nodes are left out: the guest has a devtmpfs."""
    tree = Tree()
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            path = member.name.removeprefix("./").strip("/")
            node = _node(archive, member)
            if path and path != "." and node is not None:
                tree.nodes[path] = node
    return tree


def _node(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Node | None:
    mode = member.mode & 0o7777
    if member.isdir():
        return Node(kind=Kind.DIRECTORY, mode=mode)
    if member.issym():
        return Node(kind=Kind.SYMLINK, mode=0o777, target=member.linkname)
    if member.islnk():
        target = member.linkname.removeprefix("./").strip("/")
        return Node(kind=Kind.HARD_LINK, mode=mode, target=target)
    content = archive.extractfile(member)
    if content is None:
        return None
    return Node(kind=Kind.FILE, mode=mode, content=content.read())


def _member(name: str, node: Node) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mtime = EPOCH
    member.mode = node.mode
    match node.kind:
        case Kind.DIRECTORY:
            member.type = tarfile.DIRTYPE
        case Kind.SYMLINK:
            member.type, member.linkname = tarfile.SYMTYPE, node.target
        case Kind.HARD_LINK:
            member.type, member.linkname = tarfile.LNKTYPE, f"./{node.target}"
        case Kind.FILE:
            member.size = len(node.content)
    return member


def _above(path: str) -> list[str]:
    return [str(parent) for parent in PurePosixPath(path).parents if str(parent) not in {".", "/"}]

"""A disk from a directory, a tar or an OCI layout: made once, and kept."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.shim.filling import mkfs, oci
from innkeeper.shim.filling.mkfs import FsType
from innkeeper.shim.filling.sources import add_tar, open_tar, tree_of_directory
from innkeeper.shim.filling.trees import Tree
from innkeeper.shim.filling.writing import write_tar
from innkeeper.shim.guest_disk import DiskError, check_source

if TYPE_CHECKING:
    from innkeeper.shim.filling.cache import DiskCache

# What is made otherwise from now on has another number.
_RECIPE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A disk as it is asked for."""

    source: Path
    image: str = ""
    """Of an OCI layout with several: its name."""
    fs_type: FsType = FsType.EXT4
    size: int = 0
    """Bytes, a whole number of 4096; 0: as little as will do, with room where it is writable."""
    writable: bool = False
    """With a journal, and room for more."""

    def key(self, content: str) -> str:
        words = f"{_RECIPE} {self.fs_type} {self.size} {self.writable} {content}"
        return hashlib.sha256(words.encode()).hexdigest()


def plan(text: str, *, fs_type: FsType, size: int = 0, writable: bool = False) -> Plan:
    """`text`: a path, or LAYOUT:NAME. Raises DiskError for what no disk can be made of."""
    path, image = Path(text).absolute(), ""
    if not path.exists() and ":" in text:
        layout, _, image = text.rpartition(":")
        path = Path(layout).absolute()
    if image and not oci.is_layout(path):
        raise DiskError(f"{text}: there is neither such a file nor such an OCI layout")
    check_source(path)
    if fs_type is FsType.EROFS and size:
        raise DiskError("an erofs is as large as what is in it: leave the size out")
    if size % 4096:
        raise DiskError(f"size {size}: not possible, a whole number of 4096")
    return Plan(source=path, image=image, fs_type=fs_type, size=size, writable=writable)


def make(plan: Plan, cache: DiskCache) -> Path:
    """The disk, in the cache: for reading, or to be copied. Raises DiskError, CommandError."""
    layout = oci.Layout(plan.source, plan.image) if oci.is_layout(plan.source) else None
    known = _known_content(plan.source, layout)
    if known and (found := cache.get(plan.key(known))):
        return found
    try:
        with cache.scratch() as scratch, ExitStack() as stack:
            tree = _tree(plan.source, layout, scratch, stack)
            return _make(plan, tree, scratch, known, cache)
    except OSError as error:
        raise DiskError(f"{error.filename or plan.source}: {error.strerror or error}") from error


def _known_content(source: Path, layout: oci.Layout | None) -> str:
    """What says all of it without taking it apart; empty for a directory."""
    if layout is not None:
        return f"oci:{layout.digest}"
    if source.is_dir():
        return ""
    with source.open("rb") as file:
        return f"tar:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _tree(source: Path, layout: oci.Layout | None, scratch: Path, stack: ExitStack) -> Tree:
    if layout is not None:
        return layout.tree(scratch, stack)
    if source.is_dir():
        return tree_of_directory(source)
    tree = Tree()
    add_tar(tree, open_tar(source, stack))
    return tree


def _make(plan: Plan, tree: Tree, scratch: Path, known: str, cache: DiskCache) -> Path:
    tar, target = scratch / "tree.tar", scratch / "disk"
    written = write_tar(tree, tar)
    key = plan.key(known or f"tree:{written.digest}")
    if not known and (found := cache.get(key)):
        return found
    mkfs.make(tar, target, written, fs_type=plan.fs_type, size=plan.size, writable=plan.writable)
    return cache.keep(key, target)

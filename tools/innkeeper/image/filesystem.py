"""The root file system: a tree as an ext4 image, as small as it gets, the same each time."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

from innkeeper.image.model import ImageError
from innkeeper.image.tree import Kind, Tree
from innkeeper.shim.commands import CommandError

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.image.toolbox import Toolbox

LABEL = "innkeeper-root"
UUID = str(uuid.uuid5(uuid.NAMESPACE_URL, "urn:innkeeper:root"))

_BLOCK = 4096
_INODE = 256
_GROUP = 8 * _BLOCK
_TRIES = 6
_GROWTH = 1.02


def make_ext4(tree: Tree, target: Path, toolbox: Toolbox) -> None:
    """Writes `target`. The kernel mounts it read-only, so it has no journal and no room."""
    tar = target.with_suffix(".tar")
    with tar.open("wb") as file:
        tree.write_tar(file)
    try:
        blocks = blocks_for(tree)
        for _ in range(_TRIES):
            try:
                _mke2fs(tar, target, toolbox, inodes=inodes_for(tree), blocks=blocks)
            except CommandError as error:
                if "allocate" not in error.stderr_tail:
                    raise
                blocks = math.ceil(blocks * _GROWTH)
            else:
                return
        raise ImageError(f"{target}: {blocks} blocks are still too few")
    finally:
        tar.unlink()


def inodes_for(tree: Tree) -> int:
    """Eleven are reserved; mke2fs rounds up to whole blocks of inodes itself."""
    return 16 + sum(node.kind is not Kind.HARD_LINK for node in tree.nodes.values())


def blocks_for(tree: Tree) -> int:
    """A little more than content and directories take, with the tables that go along."""
    content = sum(math.ceil(len(node.content) / _BLOCK) for node in tree.nodes.values())
    # A long link has a block of its own; so has each directory, and each file that needs
    # more than the four extents of its inode.
    others = sum(
        node.kind is Kind.DIRECTORY or len(node.target) > 59 for node in tree.nodes.values()
    )
    tables = math.ceil(inodes_for(tree) * _INODE / _BLOCK)
    used = content + others + tables + 32
    groups = math.ceil(used / _GROUP)
    return math.ceil(used + groups * 8 + used / 512)


def _mke2fs(tar: Path, target: Path, toolbox: Toolbox, *, inodes: int, blocks: int) -> None:
    target.unlink(missing_ok=True)
    toolbox.mke2fs(
        *("-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-I", str(_INODE), "-m", "0"),
        *("-O", "^has_journal,^resize_inode,^orphan_file", "-N", str(inodes)),
        *("-L", LABEL, "-U", UUID, "-E", f"hash_seed={UUID},root_owner=0:0,lazy_itable_init=0"),
        *("-d", tar, target, str(blocks)),
    )

"""How large a file system is made."""

from __future__ import annotations

import pytest

from innkeeper.image.filesystem import blocks_for, inodes_for
from innkeeper.image.tree import Tree

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_each_path_takes_an_inode_but_a_hard_link() -> None:
    tree = Tree()
    tree.add_file("a/b", b"", component="c")
    tree.add_hard_link("a/c", "a/b", component="c")
    assert inodes_for(tree) - inodes_for(Tree()) == 2


def test_content_takes_whole_blocks_and_a_long_link_one() -> None:
    """ext4: a link's text of up to 59 bytes lies in the inode."""
    empty, tree = Tree(), Tree()
    for number in range(100):
        tree.add_file(f"{number}", b"x" * 4097, component="c")
        empty.add_file(f"{number}", b"", component="c")
    assert 200 <= blocks_for(tree) - blocks_for(empty) <= 202
    short, long = Tree(), Tree()
    short.add_symlink("a", "x" * 59, component="c")
    long.add_symlink("a", "x" * 60, component="c")
    assert blocks_for(long) - blocks_for(short) == 1


def test_an_image_has_little_room_to_spare() -> None:
    tree = Tree()
    tree.add_file("a", b"x" * 90_000_000, component="c")
    assert blocks_for(tree) * 4096 < 90_000_000 * 1.01

"""Trees of directories and tars: names, links, owners, and what is refused."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from innkeeper.shim.filling.sources import add_tar, tree_of_directory
from innkeeper.shim.filling.trees import Tree
from innkeeper.shim.filling.writing import write_tar
from innkeeper.shim.guest_disk import DiskError
from tests.fakes.oci_layout import hard_link, member, symlink, tar_of

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def laid(*archives: bytes) -> Tree:
    tree = Tree()
    for archive in archives:
        add_tar(tree, tarfile.open(fileobj=io.BytesIO(archive)))  # noqa: SIM115 - the tree reads it
    return tree


def content(tree: Tree, path: str) -> bytes:
    opened = tree.nodes[path].content
    assert opened is not None
    with opened() as file:
        return file.read()


@pytest.mark.parametrize("name", ["../x", "a/../../x", "a/..", "..", "/../x", "x/\0y"])
def test_a_name_that_leads_out_is_refused(name: str) -> None:
    with pytest.raises(DiskError):
        Tree().put(name, laid(tar_of(member("f", b""))).nodes["f"])


def test_a_slash_or_a_dot_in_front_is_the_root() -> None:
    tree = laid(tar_of(member("./", mode=0o700, uid=7), member("/a", b"1"), member("./b/c", b"2")))
    assert sorted(tree.nodes) == ["", "a", "b", "b/c"]
    assert (tree.nodes[""].info.mode, tree.nodes[""].info.uid) == (0o700, 7)


def test_links_on_the_way_are_followed_inside_the_tree() -> None:
    """As Debian's images have it: a layer says bin/x, and bin is a link to usr/bin."""
    tree = laid(
        tar_of(member("usr/bin/"), symlink("bin", "usr/bin"), symlink("abs", "/usr")),
        tar_of(member("bin/x", b"1"), member("abs/y", b"2"), symlink("up", "../../../etc")),
        tar_of(member("up/passwd", b"ours")),
    )
    assert content(tree, "usr/bin/x") == b"1"
    assert content(tree, "usr/y") == b"2"
    assert content(tree, "etc/passwd") == b"ours"
    assert tree.nodes["bin"].info.issym()


def test_links_in_a_ring_are_refused() -> None:
    with pytest.raises(DiskError, match="too many symbolic links"):
        laid(tar_of(symlink("a", "b"), symlink("b", "a"), member("a/x", b"")))


def test_a_link_at_the_end_is_replaced_and_not_followed() -> None:
    tree = laid(tar_of(member("etc/real", b"old"), symlink("x", "etc/real"), member("x", b"new")))
    assert (content(tree, "x"), content(tree, "etc/real")) == (b"new", b"old")


def test_a_hard_link_is_one_inode_until_one_of_its_names_is_replaced(tmp_path: Path) -> None:
    first = tar_of(member("a", b"one", uid=5), hard_link("b", "a"), hard_link("d/c", "./b"))
    tree = laid(first)
    assert tree.nodes["a"] is tree.nodes["b"] is tree.nodes["d/c"]
    assert write_tar(tree, tmp_path / "t.tar").inodes == 3
    tree = laid(first, tar_of(member("a", b"two")))
    assert (content(tree, "a"), content(tree, "b")) == (b"two", b"one")


@pytest.mark.parametrize("target", ["nothing", "../../etc/shadow", "d"])
def test_a_hard_link_to_what_is_no_file_here_is_refused(target: str) -> None:
    with pytest.raises(DiskError):
        laid(tar_of(member("d"), hard_link("x", target)))


def test_nothing_lies_below_a_file() -> None:
    with pytest.raises(DiskError, match="no directory"):
        laid(tar_of(member("a", b""), member("a/b", b"")))


def test_a_directory_keeps_what_is_in_it_and_anything_else_does_not() -> None:
    below = tar_of(member("d/", mode=0o755), member("d/f", b"1"), member("d2/f", b"2"))
    tree = laid(below, tar_of(member("d/", mode=0o700), symlink("d2", "d")))
    assert tree.nodes["d"].info.mode == 0o700
    assert content(tree, "d/f") == b"1"
    assert "d2/f" not in tree.nodes


def test_a_directory_of_the_host_with_all_it_has(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True, mode=0o750)
    (root / "a").write_bytes(b"x" * 9000)
    (root / "a").chmod(0o4711)
    os.link(root / "a", root / "d/b")
    (root / "l").symlink_to("/etc/a")
    os.mkfifo(root / "fifo")
    os.utime(root / "a", (1_000_000_000, 1_000_000_000))
    tree = tree_of_directory(root)
    assert sorted(tree.nodes) == ["", "a", "d", "d/b", "fifo", "l"]
    assert tree.nodes["a"] is tree.nodes["d/b"]
    info = tree.nodes["a"].info
    assert (info.mode, info.uid, info.mtime) == (0o4711, os.getuid(), 1_000_000_000)
    assert tree.nodes["l"].info.linkname == "/etc/a"


def test_the_tar_has_owners_times_attributes_and_holes(tmp_path: Path) -> None:
    """PAX headers, as tar(1) and libarchive read them; a hole takes no room on the disk."""
    root = tmp_path / "root"
    root.mkdir()
    with (root / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"middle")
    os.setxattr(root / "sparse", "user.note", b"\xff\0raw")
    target = tmp_path / "tree.tar"
    written = write_tar(tree_of_directory(root), target)
    assert target.stat().st_blocks * 512 < 4 << 20
    assert written.blocks >= (64 << 20) // 4096
    with tarfile.open(target) as archive:
        found = archive.getmember("./sparse")
        assert found.size == 64 << 20
        note = found.pax_headers["SCHILY.xattr.user.note"]
        assert note.encode(errors="surrogateescape") == b"\xff\0raw"
        opened = archive.extractfile(found)
        assert opened is not None
        opened.seek(32 << 20)
        assert opened.read(6) == b"middle"


def test_the_same_tree_is_the_same_tar_and_another_owner_is_not(tmp_path: Path) -> None:
    one = tar_of(member("a", b"1"), member("b", b"2"))
    turned = tar_of(member("b", b"2"), member("a", b"1"))
    other = tar_of(member("a", b"1", uid=1), member("b", b"2"))
    digests = [write_tar(laid(each), tmp_path / "t.tar").digest for each in (one, turned, other)]
    assert digests[0] == digests[1] != digests[2]

"""A file system as a value."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from innkeeper.image.model import EPOCH, ImageError
from innkeeper.image.tree import Kind, Node, Tree, read_tar

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def tar_of(tree: Tree) -> bytes:
    file = io.BytesIO()
    tree.write_tar(file)
    return file.getvalue()


def sample() -> Tree:
    tree = Tree()
    tree.add_symlink("lib", "usr/lib", component="a")
    tree.add_file("usr/lib/x/y", b"text", component="a")
    tree.add_file("usr/bin/tool", b"#!", executable=True, component="b")
    tree.add_hard_link("a-link", "usr/bin/tool", component="b")
    tree.add_directory("tmp", mode=0o1777)
    return tree


def test_a_tar_reads_back_as_the_same_tree() -> None:
    tree = sample()
    again = read_tar(io.BytesIO(tar_of(tree)))
    assert {
        path: (node.kind, node.mode, node.content, node.target)
        for path, node in again.nodes.items()
    } == {
        path: (node.kind, node.mode, node.content, node.target) for path, node in tree.nodes.items()
    }


def test_a_tar_has_root_as_owner_one_time_and_links_after_what_they_link_to() -> None:
    with tarfile.open(fileobj=io.BytesIO(tar_of(sample()))) as archive:
        members = archive.getmembers()
    assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, EPOCH)}
    names = [member.name for member in members]
    assert names.index("./usr/bin/tool") < names.index("./a-link")


def test_a_path_through_a_link_lands_where_the_link_points() -> None:
    tree = sample()
    tree.add_file("lib/x/z", b"", component="c")
    assert "usr/lib/x/z" in tree.nodes
    assert tree.nodes["lib"].kind is Kind.SYMLINK


def test_links_are_followed_over_several_steps_and_a_loop_ends() -> None:
    tree = sample()
    tree.add_symlink("usr/lib/up", "../../lib/x", component="c")
    assert tree.real("lib/up/y") == "usr/lib/x/y"
    tree.add_symlink("one", "two", component="c")
    tree.add_symlink("two", "one", component="c")
    with pytest.raises(ImageError, match="too many symbolic links"):
        tree.real("one/file")


def test_a_directory_is_never_replaced_by_a_file() -> None:
    tree = sample()
    with pytest.raises(ImageError, match="/usr/lib/x: a file cannot take the place"):
        tree.add_file("usr/lib/x", b"", component="c")


def test_an_overlay_replaces_files_and_keeps_directories() -> None:
    tree, overlay = sample(), Tree()
    overlay.add_file("lib/x/y", b"new", component="overlay")
    overlay.add_directory("tmp", mode=0o755)
    tree.add_tree(overlay)
    assert tree.nodes["usr/lib/x/y"] == Node(
        kind=Kind.FILE, mode=0o644, content=b"new", component="overlay"
    )
    assert tree.nodes["tmp"].mode == 0o1777
    assert tree.nodes["lib"].kind is Kind.SYMLINK


def test_pruning_takes_what_is_below_along() -> None:
    tree = sample()
    tree.add_file("usr/share/doc/crun/copyright", b"", component="a")
    tree.prune(["usr/share/doc*", "usr/lib/*/y"])
    assert "usr/share" in tree.nodes
    assert not [path for path in tree.nodes if "doc" in path]
    assert "usr/lib/x/y" not in tree.nodes


def test_of_a_tree_what_is_asked_for_is_kept_with_the_directories_above_it() -> None:
    tree = Tree()
    for path in ("usr/sbin/blkid", "usr/bin/su", "usr/share/doc/x", "usr/sbin/blkdiscard"):
        tree.add_file(path, b"", component="util-linux")
    tree.keep(["usr/sbin/blkid", "usr/share/*"])
    files = {path for path, node in tree.nodes.items() if node.kind is Kind.FILE}
    assert files == {"usr/sbin/blkid", "usr/share/doc/x"}
    assert {"usr", "usr/sbin", "usr/share/doc"} < set(tree.nodes)
    assert "usr/bin" not in tree.nodes


def test_of_a_hosts_directory_only_content_and_executability_count(tmp_path: Path) -> None:
    """A clone made under umask 077 gives the same image as one under 022."""
    trees = []
    for umask in (0o022, 0o077):
        before = os.umask(umask)
        source = tmp_path / f"{umask:o}"
        (source / "etc").mkdir(parents=True)
        (source / "etc/hosts").write_text("127.0.0.1")
        (source / "etc/link").symlink_to("/run/x")
        (source / "run").write_text("#!")
        (source / "run").chmod(0o700)
        os.umask(before)
        trees.append(Tree())
        trees[-1].add_host_directory(source, component="c")
    assert trees[0] == trees[1]
    assert trees[0].nodes["run"].mode == 0o755
    assert trees[0].nodes["etc/hosts"].mode == 0o644
    assert trees[0].nodes["etc/link"].target == "/run/x"


def test_a_socket_in_an_overlay_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageError, match="neither file, directory nor link"):
        Tree().add_host_directory(tmp_path, component="c")


def test_sizes_count_a_hard_link_once() -> None:
    assert sample().sizes() == {"a": 4, "b": 2}

"""Trees go with all that is in them, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.linux import treeremoval
from agent.linux.treeremoval import remove_tree

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def remove(base: Path, path: str = "tree") -> list[str]:
    return remove_tree(location={"root": str(base), "path": path, "links": False})


def test_files_directories_and_links_go(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/file").write_text("x")
    (tree / "a/b/link").symlink_to(outside)
    (tree / "link").symlink_to("/etc")
    os.mkfifo(tree / "a/pipe")
    assert remove(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (outside / "kept").read_text() == "x"


def test_a_tree_that_is_not_there_is_removed_already(tmp_path: Path) -> None:
    assert remove(tmp_path) == []
    assert remove(tmp_path, "no/such") == []


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target/kept").touch()
    (tmp_path / "tree").symlink_to("target")
    with pytest.raises(OSError, match=r"openat2|Too many|Not a directory"):
        remove(tmp_path)
    assert (tmp_path / "target/kept").exists()


def test_deeper_than_a_path_may_be_long(tmp_path: Path) -> None:
    """PATH_MAX is 4096 bytes: a container can make such a tree by relative steps."""
    fd = os.open(tmp_path, os.O_RDONLY)
    for number in range(1500):
        name = "tree" if not number else f"deep{number}"
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    assert remove(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_what_stays_is_told_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "b").mkdir()
    for name in ("a/stuck", "a/other", "b/third"):
        (tree / name).touch()
    unlink = os.unlink

    def refusing(name: str, *, dir_fd: int | None = None) -> None:
        if name == "stuck":
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    assert remove(tmp_path) == ["tree/a/stuck: Operation not permitted"]
    monkeypatch.undo()
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*")) == ["a", "a/stuck"]


def test_many_that_stay_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(20):
        (tmp_path / f"tree/{number}").touch()

    def refusing(name: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(1, "Operation not permitted", name)

    monkeypatch.setattr(os, "unlink", refusing)
    told = remove(tmp_path)
    assert len(told) == treeremoval.TOLD + 1
    assert told[-1] == "12 more"


def test_names_that_are_no_text_are_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is any bytes but NUL and "/"; an answer of the protocol is UTF-8."""
    tree = os.fsencode(tmp_path / "tree")
    os.makedirs(tree + b"/" + b"d" * 250 + b"/\xff\n" + b"e" * 200)
    deep = tree + b"/" + b"d" * 250 + b"/\xff\n" + b"e" * 200
    (tmp_path / os.fsdecode(deep) / "f").touch()

    def refusing(name: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(1, "Operation not permitted", name)

    monkeypatch.setattr(os, "unlink", refusing)
    (told,) = remove(tmp_path)
    assert told.isprintable()
    assert told.startswith(f"tree/{'d' * 250}/\\xff\\n{'e' * 200}/f: ")
    told.encode()


def test_a_deep_name_is_told_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath("tree", *["x" * 100] * 30)
    deep.mkdir(parents=True)
    (deep / "f").touch()

    def refusing(name: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(1, "Operation not permitted", name)

    monkeypatch.setattr(os, "unlink", refusing)
    (told,) = remove(tmp_path)
    assert len(told) <= treeremoval.LONGEST + len(": Operation not permitted")

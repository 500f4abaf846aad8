"""Parts of an image in the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from innkeeper.image.layers import (
    cached,
    exclusive,
    keep_newest,
    key_of,
    key_of_sources,
    key_of_tree,
    load_tree,
    remove_half_made,
    save_tree,
)
from innkeeper.image.progress import Silent
from innkeeper.image.tree import Tree

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_keys_tell_inputs_apart_whatever_their_order() -> None:
    assert key_of(a=1, b=["x"]) == key_of(b=["x"], a=1)
    assert key_of(a=["x", "y"]) != key_of(a=["xy"])


@pytest.mark.parametrize(
    "other",
    [
        {"path": "b"},
        {"content": b"y"},
        {"executable": True},
    ],
)
def test_a_tree_has_another_key_when_anything_in_it_differs(other: dict[str, object]) -> None:
    def tree(*, path: str = "a", content: bytes = b"x", executable: bool = False) -> Tree:
        made = Tree()
        made.add_file(path, content, executable=executable, component="c")
        return made

    assert key_of_tree(tree()) == key_of_tree(tree())
    assert key_of_tree(tree()) != key_of_tree(tree(**other))  # type: ignore[arg-type]


def test_a_changed_builder_has_another_key(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    before = key_of_sources(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert key_of_sources(tmp_path) == before
    (tmp_path / "a.py").write_text("y")
    assert key_of_sources(tmp_path) != before


def test_a_layer_is_made_once(tmp_path: Path) -> None:
    calls = []

    def make(place: Path) -> None:
        calls.append(place)
        (place / "file").write_text("x")

    for _ in range(2):
        assert (cached(tmp_path / "k" / "layer", make) / "file").read_text() == "x"
    assert len(calls) == 1


def test_an_interrupted_layer_leaves_nothing(tmp_path: Path) -> None:
    def fail(place: Path) -> None:
        (place / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "layer", fail)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".half-made-x").mkdir()
    (tmp_path / "whole").mkdir()
    remove_half_made(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_only_the_last_used_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "link").symlink_to("old")
    keep_newest(tmp_path, "*", 2)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "middle", "link"}


def test_a_tree_keeps_its_components_in_the_cache(tmp_path: Path) -> None:
    tree = Tree()
    tree.add_file("usr/x", b"x", component="crun")
    save_tree(tree, tmp_path, "base")
    assert load_tree(tmp_path, "base") == tree


def test_a_lock_is_free_again_after_its_build(tmp_path: Path) -> None:
    for _ in range(2):
        with exclusive(tmp_path / "cache", Silent()):
            assert (tmp_path / "cache").is_dir()

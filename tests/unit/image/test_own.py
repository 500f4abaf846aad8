"""Our own part of an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.image.checkout import Checkout
from innkeeper.image.model import BuildOptions, Flavour, ImageError
from innkeeper.image.own import read_own
from innkeeper.image.recipe import Recipe

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def recipe(root: Path) -> Recipe:
    return Recipe.read(root / "guest-image", Flavour.CLOUD)


def test_agent_protocol_and_programs_are_where_pid_1_expects_them(root: Path) -> None:
    own = read_own(Checkout(root=root), recipe(root), BuildOptions())
    code = own.trees[0].nodes
    assert "usr/lib/innkeeper/agent/init.py" in code
    assert "usr/lib/innkeeper/innkeeper/v1/__init__.py" in code
    for name in ("init", "run"):
        program = code[f"usr/lib/innkeeper/{name}"]
        assert program.mode == 0o755
        assert program.content.startswith(b"#!/usr/bin/python3 -IS\n")
    assert code["tmp"].mode == 0o1777
    assert code["etc/resolv.conf"].target == "../run/innkeeper/network/resolv.conf"
    assert not [path for path in code if path.endswith((".pyc", ".proto", ".pyi"))]
    assert own.initrd.nodes["init"].mode == 0o755


def test_firmware_keeps_its_path_below_a_directory_of_that_name(root: Path, tmp_path: Path) -> None:
    inside = tmp_path / "lib/firmware/vendor/a.bin"
    inside.parent.mkdir(parents=True)
    inside.write_text("a")
    loose = tmp_path / "b.bin"
    loose.write_text("b")
    options = BuildOptions(firmware=(inside, loose))
    firmware = read_own(Checkout(root=root), recipe(root), options).trees[1].nodes
    assert firmware["usr/lib/firmware/vendor/a.bin"].content == b"a"
    assert firmware["usr/lib/firmware/b.bin"].content == b"b"


def test_overlays_come_last_and_in_order(root: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc/x").write_text(name)
    options = BuildOptions(overlays=(tmp_path / "one", tmp_path / "two"))
    trees = read_own(Checkout(root=root), recipe(root), options).trees
    assert [tree.nodes["etc/x"].content for tree in trees[2:]] == [b"one", b"two"]


@pytest.mark.parametrize("option", ["firmware", "overlays"])
def test_what_is_not_there_is_named(root: Path, tmp_path: Path, option: str) -> None:
    missing = tmp_path / "missing"
    options = BuildOptions(**{option: (missing,)})  # type: ignore[arg-type]
    with pytest.raises(ImageError, match=f"{missing}: no such"):
        read_own(Checkout(root=root), recipe(root), options)

"""Reading of guest-image/."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.image.model import Flavour, ImageError
from innkeeper.image.recipe import Recipe, parse_lines

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_a_line_has_words_and_a_reason() -> None:
    (line,) = parse_lines("\n# about\n crun   # OCI runtime\n", source="packages")
    assert line.words == ("crun",)
    assert line.reason == "OCI runtime"
    assert line.flavours == {Flavour.CLOUD, Flavour.GENERIC}


def test_a_flavour_can_have_a_line_of_its_own() -> None:
    (line,) = parse_lines("generic: igb  # functions", source="modules")
    assert line.words == ("igb",)
    assert line.flavours == {Flavour.GENERIC}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("crun", "packages:1: crun has no reason"),
        ("a # b\ncrun #  ", "packages:2: crun has no reason"),
        ("clud: crun # x", "packages:1: no flavour 'clud'; known: cloud, generic"),
    ],
)
def test_an_error_names_file_and_line(text: str, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        parse_lines(text, source="packages")


def test_signs_tell_what_a_package_is_for(tmp_path: Path) -> None:
    (tmp_path / "initrd").mkdir()
    (tmp_path / "packages").write_text(
        "crun # r\n-dpkg # not\n+libarchive13t64 # tool\nutil-linux usr/sbin/blkid # one\n"
        "util-linux */libx.so */liby.so # more of it\n"
    )
    (tmp_path / "modules").write_text("generic: igb # r\nveth # r\n")
    (tmp_path / "initrd/modules").write_text("virtio_blk # r\n")
    (tmp_path / "prune").write_text("usr/share/doc* # r\n")
    (tmp_path / "directories").write_text("/tmp 1777 # r\n")
    recipe = Recipe.read(tmp_path, Flavour.CLOUD)
    assert recipe.packages == ("crun", "util-linux")
    assert recipe.only == {"util-linux": ("usr/sbin/blkid", "*/libx.so", "*/liby.so")}
    assert recipe.left_out == {"dpkg"}
    assert recipe.tools == ("libarchive13t64",)
    assert recipe.modules == ("veth",)
    assert [(item.path, item.mode) for item in recipe.directories] == [("tmp", 0o1777)]


def test_a_package_that_a_user_asks_for_is_whole(tmp_path: Path) -> None:
    names = ("initrd/modules", "modules", "prune", "directories", "packages")
    (tmp_path / "initrd").mkdir()
    for name in names:
        (tmp_path / name).write_text("")
    (tmp_path / "packages").write_text("a b # r\n-c # r\n+d # r\n+e # r\n")
    recipe = Recipe.read(tmp_path, Flavour.CLOUD).also(("a", "c", "d", "f"))
    assert recipe.packages == ("a", "c", "d", "f")
    assert recipe.only == {}
    assert recipe.left_out == set()
    assert recipe.tools == ("e",)


def test_the_recipe_of_this_checkout_is_sound(root: Path) -> None:
    for flavour in Flavour:
        recipe = Recipe.read(root / "guest-image", flavour)
        assert {"crun", "kmod", "e2fsprogs", "busybox-static"} <= set(recipe.packages)
        assert not recipe.left_out.intersection(recipe.packages)
        assert not [name for name in recipe.packages if "systemd" in name or "udev" in name]

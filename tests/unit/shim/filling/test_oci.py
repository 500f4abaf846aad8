"""OCI layouts: which image, that its blobs are what they say, and what whiteouts hide.

https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from innkeeper.shim import commands
from innkeeper.shim.filling.oci import Layout, is_layout, split
from innkeeper.shim.guest_disk import DiskError
from tests.fakes.oci_layout import AMD64, FakeLayout, member, symlink, tar_of

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
def made(tmp_path: Path) -> FakeLayout:
    return FakeLayout(tmp_path / "layout")


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as held:
        yield held


def paths(made: FakeLayout, stack: contextlib.ExitStack, name: str = "") -> list[str]:
    scratch = made.root.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    return sorted(Layout(made.write(), name).tree(scratch, stack).nodes)[1:]


BASE = tar_of(
    member("etc/"),
    member("etc/a", b"a"),
    member("etc/b", b"b"),
    member("var/"),
    member("var/x", b"x"),
    member("var/d/y", b"y"),
)


def test_a_whiteout_hides_a_file_or_a_whole_directory(
    made: FakeLayout, stack: contextlib.ExitStack
) -> None:
    made.add(BASE, tar_of(member("etc/.wh.a", b""), member("var/.wh.d", b"")))
    assert paths(made, stack) == ["etc", "etc/b", "var", "var/x"]


def test_an_opaque_directory_shows_only_its_own_layer(
    made: FakeLayout, stack: contextlib.ExitStack
) -> None:
    """Wherever in the layer the mark stands."""
    made.add(BASE, tar_of(member("var/new", b"n"), member("var/.wh..wh..opq", b"")))
    assert paths(made, stack) == ["etc", "etc/a", "etc/b", "var", "var/new"]


def test_a_whiteout_is_about_lower_layers_alone(
    made: FakeLayout, stack: contextlib.ExitStack
) -> None:
    made.add(BASE, tar_of(member("etc/a", b"new"), member("etc/.wh.a", b"")))
    assert "etc/a" in paths(made, stack)


def test_a_whiteout_through_a_link_stays_inside(
    made: FakeLayout, stack: contextlib.ExitStack
) -> None:
    made.add(BASE, tar_of(symlink("out", "/etc")), tar_of(member("out/.wh.a", b"")))
    assert paths(made, stack) == ["etc", "etc/b", "out", "var", "var/d", "var/d/y", "var/x"]


def test_what_may_not_be_looked_into_is_no_layout() -> None:
    """A name of more than 255 bytes is refused by the kernel, as is a directory of others."""
    assert not is_layout(Path("x" * 256))


def test_an_image_of_a_layout_is_written_behind_a_colon(made: FakeLayout) -> None:
    made.add(BASE, name="v1")
    layout = made.write()
    assert split(f"{layout}:v1") == (layout, "v1")
    assert split(str(layout)) == (layout, "")
    assert split(f"{layout}x:v1") == (layout.with_name(f"{layout.name}x:v1"), "")


@pytest.mark.parametrize("name", ["../.wh.etc", "a/../../.wh.x", ".wh.", ".wh..", ".wh..."])
def test_a_whiteout_of_what_can_not_be_is_refused(
    made: FakeLayout, stack: contextlib.ExitStack, name: str
) -> None:
    made.add(BASE, tar_of(member(name, b"")))
    with pytest.raises(DiskError):
        paths(made, stack)


def test_a_layer_may_be_plain_gzip_or_zstd(made: FakeLayout, stack: contextlib.ExitStack) -> None:
    made.add(BASE, name="plain", packed=lambda layer: layer)
    made.add(BASE, name="gzip")
    names = ["plain", "gzip"]
    if shutil.which("zstd"):
        argv = ["zstd", "--stdout"]
        made.add(
            BASE,
            name="zstd",
            packed=lambda layer: commands.run(argv, deadline=60, input=layer).stdout,
        )
        names.append("zstd")
    found = [paths(made, stack, name) for name in names]
    assert found == [found[0]] * len(names)


def test_the_image_of_this_platform_is_taken_and_others_are_asked_for_by_name(
    made: FakeLayout, stack: contextlib.ExitStack
) -> None:
    arm = {"os": "linux", "architecture": "arm64"}
    made.add(tar_of(member("arm", b"")), platform=arm)
    made.add(tar_of(member("amd", b"")), platform=AMD64)
    made.nest(name="v1")
    assert paths(made, stack) == ["amd"]
    made.add(tar_of(member("other", b"")), name="v2")
    with pytest.raises(DiskError, match="holds no image with the name 'v3'; images: v1, v2"):
        Layout(made.write(), "v3")
    with pytest.raises(DiskError, match="holds 2 images for linux/amd64; images: v1, v2"):
        paths(made, stack)
    assert paths(made, stack, "v1") == ["amd"]
    assert paths(made, stack, "v2") == ["other"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_blob_that_was_changed_is_refused(
    made: FakeLayout, stack: contextlib.ExitStack, at: int
) -> None:
    """Layer, configuration and manifest, of the same size as before."""
    made.add(BASE)
    blob = sorted((made.root / "blobs/sha256").iterdir())[at]
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(DiskError, match="is not what its digest and size say"):
        paths(made, stack)


@pytest.mark.parametrize(
    "digest", ["sha256:../../../etc/passwd", "md5:00", "", "sha256:" + "A" * 64]
)
def test_a_digest_is_no_path(made: FakeLayout, digest: str) -> None:
    made.add(BASE)
    made.manifests[0]["digest"] = digest
    made.manifests[0]["mediaType"] = "application/vnd.oci.image.index.v1+json"
    with pytest.raises(DiskError, match="is no digest"):
        Layout(made.write())


def test_a_layer_must_unpack_to_what_the_configuration_says(
    made: FakeLayout, stack: contextlib.ExitStack
) -> None:
    made.add(BASE)
    other = made.blob(b'{"rootfs": {"diff_ids": ["sha256:%s"]}}' % (b"0" * 64))
    layer = made.blob(BASE)
    made.manifests.clear()
    made.describe({"config": other, "layers": [layer]})
    with pytest.raises(DiskError, match="unpacked is not sha256:0000"):
        paths(made, stack)


def test_what_is_a_layout(made: FakeLayout, tmp_path: Path) -> None:
    made.add(BASE)
    assert is_layout(made.write())
    assert not is_layout(tmp_path)

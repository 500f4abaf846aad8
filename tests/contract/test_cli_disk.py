"""`innkeeper disk` as a program: needs no VM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from innkeeper.shim.filling import mkfs
from innkeeper.shim.guest_disk import DiskError
from tests.command_line import Innkeeper
from tests.fakes.oci_layout import FakeLayout, member, tar_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.storage]


@pytest.fixture
def innkeeper(tmp_path: Path) -> Innkeeper:
    environment = {**os.environ, "INNKEEPER_CACHE_DIR": str(tmp_path / "cache")}
    return Innkeeper(environment=environment, directory=tmp_path)


async def test_make_copies_from_the_cache_and_prune_empties_it(
    innkeeper: Innkeeper, tmp_path: Path
) -> None:
    (tmp_path / "app.tar").write_bytes(tar_of(member("a", b"1")))
    words = ("disk", "make", "--from", "app.tar", "--size", "32M", "--out")
    for name in ("one.img", "two.img"):
        done = await innkeeper(*words, name)
        assert done.out.decode() == f"{name}: ext4, 32 MiB\n", done.err
    one, two = ((tmp_path / name).read_bytes() for name in ("one.img", "two.img"))
    assert one == two
    assert os.access(tmp_path / "one.img", os.W_OK)
    assert (await innkeeper("disk", "prune")).out.startswith(b"1 removed")
    assert (await innkeeper("disk", "prune")).out.startswith(b"0 removed")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from", "nowhere"), "does not exist"),
        (("--from", "image:v3"), "holds no image with the name"),
        (("--from", "image", "--type", "xfs"), "ext4 or erofs"),
        (("--from", "image", "--size", "many"), "write a size"),
    ],
)
async def test_what_is_wrong_is_told_and_no_file_made(
    innkeeper: Innkeeper, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    layout = FakeLayout(tmp_path / "image")
    layout.add(tar_of(member("a", b"1")), name="v1")
    layout.write()
    done = await innkeeper("disk", "make", *words, "--out", "x.img")
    assert done.code in (2, 125)
    assert told in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert not (tmp_path / "x.img").exists()


async def test_an_image_by_its_name(innkeeper: Innkeeper, tmp_path: Path) -> None:
    try:
        mkfs.mkfs_erofs(0)
    except DiskError as error:
        pytest.skip(str(error))
    layout = FakeLayout(tmp_path / "image")
    layout.add(tar_of(member("a", b"1")), name="v1")
    layout.add(tar_of(member("a", b"2")), name="v2")
    layout.write()
    words = ("disk", "make", "--from", "image:v2", "--type", "erofs", "--out", "x.img")
    done = await innkeeper(*words)
    assert done.out.startswith(b"x.img: erofs, "), done.err

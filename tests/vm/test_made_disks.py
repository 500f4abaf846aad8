"""Disks made of a directory, a tar and an OCI image, as the guest's kernel reads them."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from innkeeper.v1 import containers_pb2 as containers
from tests.command_line import Innkeeper
from tests.fakes.oci_layout import FakeLayout, hard_link, member, symlink, tar_of
from tests.vm.guest import Guest

pytestmark = [pytest.mark.vm, pytest.mark.storage]

MIB = 1 << 20
TYPES = ("ext4", "erofs")

# Name, kind, mode, owner, size and links of all that is there, and what the files hold.
LOOK = r"""
cd /d && find . -path ./lost+found -prune -o -print | sort | while read -r name; do
  stat -c '%n %F %a %u:%g %h' "$name" | sed 's/regular empty file/regular file/'
  test -h "$name" && readlink "$name"
  test -f "$name" && test ! -h "$name" && wc -c < "$name" && md5sum < "$name"
done; true
"""


@pytest.fixture
def innkeeper(tmp_path: Path) -> Innkeeper:
    environment = {**os.environ, "INNKEEPER_CACHE_DIR": str(tmp_path / "cache")}
    return Innkeeper(environment=environment, directory=tmp_path)


@asynccontextmanager
async def attached(
    guest: Guest, innkeeper: Innkeeper, source: str, fs_type: str
) -> AsyncIterator[None]:
    words = ("made", "--from", source, "--type", fs_type)
    done = await innkeeper("storage", "attach", guest.vm.name, *words)
    assert done.code == 0, done.err
    try:
        yield
    finally:
        done = await innkeeper("storage", "detach", guest.vm.name, "made")
        assert done.code == 0, done.err
    plugged = await guest.vm.plugged()
    assert "made.disk" not in {each.id for each in plugged}


async def seen(guest: Guest, script: str = LOOK) -> str:
    mount = containers.StorageMount(storage_id="made", destination="/d", options=("ro",))
    done = await guest.run(script, storages=(mount,))
    assert done.code == 0, done
    return done.text


@pytest.mark.parametrize("fs_type", TYPES)
async def test_a_directory_is_there_as_it_is(
    guest: Guest, innkeeper: Innkeeper, tmp_path: Path, fs_type: str
) -> None:
    root = tmp_path / "root"
    (root / "d/deep").mkdir(parents=True, mode=0o750)
    (root / "a b").write_text("content\n")
    (root / "a b").chmod(0o4755)
    os.link(root / "a b", root / "d/link")
    (root / "d/deep/to").symlink_to("../../a b")
    (root / "empty").touch(mode=0o600)
    if os.geteuid() == 0:
        os.chown(root / "empty", 1234, 70000)
    async with attached(guest, innkeeper, "root", fs_type):
        made = await seen(guest)
        changed = await seen(guest, "stat -c %Y '/d/a b'")
    me = f"{os.getuid()}:{os.getgid()}"
    owner = "1234:70000" if os.geteuid() == 0 else me
    assert f"./a b regular file 4755 {me} 2\n8\n" in made
    assert f"./empty regular file 600 {owner} 1\n0\n" in made
    assert f"./d/link regular file 4755 {me} 2\n" in made
    assert "\n../../a b\n" in made
    assert int(changed) == int((root / "a b").stat().st_mtime)


@pytest.mark.parametrize("fs_type", TYPES)
async def test_a_tar_keeps_owners_links_and_holes(
    guest: Guest, innkeeper: Innkeeper, tmp_path: Path, fs_type: str
) -> None:
    """Without root on the host, too: nothing is unpacked there."""
    sparse = bytearray(4 * MIB)
    sparse[2 * MIB : 2 * MIB + 6] = b"middle"
    (tmp_path / "app.tar").write_bytes(
        tar_of(
            member("./", mode=0o711, uid=9, gid=9),
            member("usr/bin/", mode=0o755),
            symlink("bin", "usr/bin"),
            member("bin/tool", b"#!/bin/sh\n", mode=0o4755, uid=1000, gid=1001),
            hard_link("usr/bin/alias", "usr/bin/tool"),
            member("null", type=tarfile.CHRTYPE, mode=0o666, devmajor=1, devminor=3),
            member("hole", bytes(sparse)),
        )
    )
    async with attached(guest, innkeeper, "app.tar", fs_type):
        made = await seen(guest)
        taken = await seen(
            guest, "du -k /d/hole; dd if=/d/hole bs=1M skip=2 2>/dev/null | head -c6"
        )
    assert made.startswith(". directory 711 9:9 ")
    assert "./usr/bin/tool regular file 4755 1000:1001 2\n10\n" in made
    assert "./usr/bin/alias regular file 4755 1000:1001 2\n10\n" in made
    assert "./bin symbolic link 777 0:0 1\nusr/bin\n" in made
    assert "./null character special file 666 0:0 1\n" in made
    blocks, content = taken.split("\n")
    assert content == "middle"
    if fs_type == "ext4":
        assert int(blocks.split()[0]) < 1024


@pytest.mark.parametrize("fs_type", TYPES)
async def test_an_image_is_its_layers_one_over_the_other(
    guest: Guest, innkeeper: Innkeeper, tmp_path: Path, fs_type: str
) -> None:
    layout = FakeLayout(tmp_path / "image")
    layout.add(
        tar_of(member("etc/a", b"1"), member("etc/b", b"2"), member("var/x", b"3")),
        tar_of(member("etc/.wh.a", b""), member("var/y", b"4"), member("var/.wh..wh..opq", b"")),
        tar_of(member("etc/b", b"new", uid=7)),
        name="v1",
    )
    layout.write()
    async with attached(guest, innkeeper, "image:v1", fs_type):
        names = await seen(guest, "cd /d && find etc var | sort; cat etc/b; stat -c %u etc/b")
    assert names == "etc\netc/b\nvar\nvar/y\nnew7\n"


async def test_a_disk_to_keep_is_written_to_and_grows(
    guest: Guest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a").write_text("first\n")
    words = ("--from", "root", "--size", "64M", "--out", "own.img")
    done = await innkeeper("disk", "make", *words)
    assert done.out == b"own.img: ext4, 64 MiB\n", done.err
    words = ("storage", "attach", guest.vm.name, "made", "--disk", "own.img")
    assert (await innkeeper(*words)).code == 0
    try:
        mount = containers.StorageMount(storage_id="made", destination="/d")
        done_ = await guest.run("cat /d/a && echo more >> /d/a", storages=(mount,))
        assert (done_.code, done_.text) == (0, "first\n")
        done = await innkeeper("storage", "resize", guest.vm.name, "made", "96M")
        assert done.code == 0, done.err
    finally:
        done = await innkeeper("storage", "detach", guest.vm.name, "made")
    assert done.code == 0, done.err
    assert (tmp_path / "own.img").stat().st_size == 96 * MIB

"""`innkeeper storage` as a program, with a VM's daemon that is a fake."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from innkeeper.v1 import host_pb2, storages_pb2
from tests.command_line import Innkeeper
from tests.fakes.vm_daemon import FakeGuest, running_vm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.storage]

GIB = 1 << 30


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[FakeGuest]:
    (tmp_path / "vms").mkdir(mode=0o700)
    guest = FakeGuest()
    async with running_vm(tmp_path / "vms", guest):
        yield guest


@pytest.fixture
def innkeeper(tmp_path: Path) -> Innkeeper:
    environment = {**os.environ, "INNKEEPER_STATE_DIR": str(tmp_path / "vms")}
    return Innkeeper(environment=environment, directory=tmp_path)


async def test_attach_says_where_it_is(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    words = ("--device", "data", "--type", "xfs", "--read-only", "-o", "noatime,nosuid")
    done = await innkeeper("storage", "attach", "web", "x", *words)
    assert done.out == b"x: mounted at /run/innkeeper/storages/x (ext4 of /dev/vdb)\n"
    (asked,) = guest.storages
    assert (asked.block.device_id, asked.block.fs_type) == ("data", "xfs")
    assert (asked.read_only, list(asked.options)) == (True, ["noatime,nosuid"])
    assert guest.done == ["mount"]


async def test_a_disk_is_plugged_first_and_goes_with_its_storage(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    (tmp_path / "d.img").write_bytes(bytes(4096))
    await innkeeper("storage", "attach", "web", "x", "--disk", "d.img")
    assert guest.done == ["plug", "mount"]
    (function,) = guest.plugged[0].functions
    assert function.hardware.disk.content.file == str(tmp_path / "d.img")
    assert function.id == guest.storages[0].block.device_id == "x.disk"
    done = await innkeeper("storage", "detach", "web", "x")
    assert guest.done[2:] == ["unmount", "unplug"]
    assert (guest.unplugged, done.out) == (["x.disk"], b"x: detached\n")


async def test_a_device_that_was_there_before_stays(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    """Also one that has the storage's own name."""
    await innkeeper("storage", "attach", "web", "data", "--device", "data")
    await innkeeper("storage", "detach", "web", "data")
    assert guest.done == ["mount", "unmount"]


async def test_a_share_is_known_by_one_tag_on_both_sides(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    """A tag has 36 bytes (virtio 1.2, 5.11.4), an id may have 64 characters."""
    name = "a" * 50
    for storage_id in ("src", name):
        await innkeeper("storage", "attach", "web", storage_id, "--share", ".", "--read-only")
    for plug, storage in zip(guest.plugged, guest.storages, strict=True):
        share = plug.functions[0].hardware.share
        assert (share.directory, share.read_only) == (str(tmp_path), True)
        assert share.tag == storage.virtiofs.tag
        assert len(share.tag) <= 36


async def test_a_mount_that_fails_takes_the_plug_back(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.refuses_mounts = True
    done = await innkeeper("storage", "attach", "web", "src", "--share", ".")
    assert (done.code, done.out) == (125, b"")
    assert "MOUNT_REFUSED" in done.err
    assert guest.done == ["plug", "mount", "unplug"]


async def test_a_key_is_read_from_a_file_and_shown_nowhere(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    key = bytes(range(64))
    (tmp_path / "key").write_bytes(key)
    words = ("storage", "attach", "web", "x", "--device", "data", "--key-file")
    await innkeeper(*words, "key")
    await innkeeper(*words, "-", stdin=key)
    assert [each.block.crypt.key for each in guest.storages] == [key, key]
    (tmp_path / "pw").write_text("s3cret\n")
    share = ("--cifs", "//files/team", "--user", "ann", "--password-file", "pw")
    await innkeeper("storage", "attach", "web", "y", *share)
    assert guest.storages[-1].cifs.password == "s3cret"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "one source is needed"),
        (("--tmpfs", "1M", "--local"), "--tmpfs and --local given"),
        (("--tmpfs", "1M", "--type", "xfs"), "--type: not for --tmpfs"),
        (("--nfs", "server"), "write SERVER:/PATH"),
        (("--share", "nowhere"), "nowhere: no such file"),
        (("--tmpfs", "1M", "--mode", "rwx"), "octal"),
        (("--disk", "new.img", "--format"), "a new one is made with: truncate -s 1G new.img"),
    ],
)
async def test_a_wrong_use_is_told_before_anything_is_done(
    guest: FakeGuest, innkeeper: Innkeeper, words: tuple[str, ...], told: str
) -> None:
    done = await innkeeper("storage", "attach", "web", "x", *words)
    assert done.code == 2
    assert told in " ".join(done.err.split())
    assert guest.done == []


async def test_list_shows_what_where_and_for_whom(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    guest.storages.append(storages_pb2.Storage(id="x", read_only=True))
    lines = (await innkeeper("storage", "list", "web")).lines
    assert lines[1].split() == [
        *("x", "ext4", "/dev/vdb", "/run/innkeeper/storages/x", "read-only", "main")
    ]
    (told,) = json.loads((await innkeeper("storage", "list", "web", "--json")).out)
    assert (told["storage"]["id"], told["mount_point"]) == ("x", "/run/innkeeper/storages/x")


async def test_stats_have_figures_where_the_file_system_answers(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.storages += [storages_pb2.Storage(id="good"), storages_pb2.Storage(id="hung")]
    guest.stats = {
        "good": storages_pb2.StorageStatsResponse(
            size=4 * GIB,
            used=GIB,
            available=3 * GIB,
            inodes=100,
            inodes_used=7,
            health=storages_pb2.STORAGE_HEALTH_GOOD,
        ),
        "hung": storages_pb2.StorageStatsResponse(health=storages_pb2.STORAGE_HEALTH_STALLED),
    }
    _, good, hung = (await innkeeper("storage", "stats", "web")).lines
    assert good.split() == ["good", "4", "GiB", "1", "GiB", "3", "GiB", "100", "7", "good", "-"]
    assert hung.split() == ["hung", "-", "-", "-", "-", "-", "stalled", "-"]
    (told,) = json.loads((await innkeeper("storage", "stats", "web", "good", "--json")).out)
    assert (told["id"], told["available"], told["health"]) == ("good", 3 * GIB, "good")


async def test_one_without_figures_does_not_hide_the_others(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.storages += [storages_pb2.Storage(id="bad"), storages_pb2.Storage(id="good")]
    guest.stats = {"good": storages_pb2.StorageStatsResponse(size=GIB)}
    done = await innkeeper("storage", "stats", "web", "--json")
    assert [each["id"] for each in json.loads(done.out)] == ["good"]
    assert (done.code, "storage bad" in done.err) == (125, True)
    assert (await innkeeper("storage", "stats", "web", "bad")).code == 125


async def test_a_frozen_storage_keeps_its_disk_as_it_is(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    block = storages_pb2.BlockSource(device_id="data")
    guest.storages.append(storages_pb2.Storage(id="x", block=block))
    guest.frozen.add("x")
    done = await innkeeper("storage", "resize", "web", "x", "2G")
    assert (done.code, guest.done) == (125, [])
    assert "innkeeper storage thaw web x" in done.err


async def test_a_disk_that_grew_under_a_file_system_that_did_not_is_told(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    block = storages_pb2.BlockSource(device_id="data")
    guest.storages.append(storages_pb2.Storage(id="x", block=block))
    guest.in_use = True
    done = await innkeeper("storage", "resize", "web", "x", "2G")
    assert (done.code, guest.done) == (125, ["resize", "grow"])
    assert "data: the disk has 2 GiB now, its file system is as before" in done.err
    assert "it is on a partition" in done.err


async def test_a_disk_that_stays_behind_its_storage_is_named(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.hardware = [host_pb2.PluggedDevice(id="x.disk", state="plugged")]
    guest.in_use = True
    done = await innkeeper("storage", "detach", "web", "x")
    assert (done.code, guest.done) == (125, ["unmount"])
    told = " ".join(done.err.split())
    assert "x: is detached, and x.disk" in told
    assert "innkeeper device detach web x.disk" in told


async def test_resize_grows_the_disk_and_then_the_file_system(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    block = storages_pb2.BlockSource(device_id="data")
    guest.storages.append(storages_pb2.Storage(id="x", block=block))
    done = await innkeeper("storage", "resize", "web", "x", "2G")
    assert (guest.done, guest.resized) == (["resize", "grow"], [("data", 2 * GIB)])
    assert done.out == b"x: 2 GiB, before: 1 GiB\n"
    await innkeeper("storage", "resize", "web", "x")
    assert guest.resized[1:] == [("data", 0)]


async def test_resize_leaves_a_disk_that_is_not_ours_alone(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.hardware = []
    block = storages_pb2.BlockSource(device_id="data")
    guest.storages.append(storages_pb2.Storage(id="x", block=block))
    done = await innkeeper("storage", "resize", "web", "x", "2G")
    assert (done.code, guest.done) == (125, [])
    assert "on no disk that was plugged into web from here" in done.err
    await innkeeper("storage", "resize", "web", "x")
    assert guest.done == ["grow"]


async def test_what_is_on_no_disk_has_no_size_to_be_given(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.storages.append(storages_pb2.Storage(id="t", tmpfs=storages_pb2.TmpfsSource()))
    done = await innkeeper("storage", "resize", "web", "t", "2G")
    assert (done.code, guest.done) == (125, [])
    assert "t: is on no disk" in done.err


async def test_the_small_commands(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    said = [
        (await innkeeper("storage", word, "web", "x")).out.decode().strip()
        for word in ("trim", "freeze", "thaw", "refresh")
    ]
    assert said == [
        "x: 64 MiB given back",
        "x: frozen for 30 s at most",
        "x: thawed",
        "x: has what is new",
    ]
    assert guest.done == ["freeze 30", "thaw"]


async def test_a_container_of_a_new_vm_has_no_storages_to_be_given(innkeeper: Innkeeper) -> None:
    for words in (("--storage", "x:/x"), ("--device", "d")):
        done = await innkeeper("run", *words, "--", "true")
        assert (done.code, "want --vm" in done.err) == (2, True)


async def test_a_container_gets_a_directory_that_is_shared_for_it(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("run", "--vm", "web", "--share", ".:/src:ro", "--", "true")
    assert done.code == 0, done.err
    assert guest.done == ["plug", "mount", "create", "start", "remove", "unmount", "unplug"]
    share = guest.plugged[0].functions[0].hardware.share
    assert share.read_only
    assert guest.storages[0].read_only

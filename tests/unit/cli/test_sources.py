"""What is mounted, from the words of the command line to the protocol's message."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from innkeeper.cli import sources
from innkeeper.cli.options import GrantOption, MountOption, parse_grant, parse_mount
from innkeeper.cli.workload import ContainerOptions, ProcessOptions
from innkeeper.v1 import storages_pb2

pytestmark = [pytest.mark.unit, pytest.mark.storage]

MIB = 1 << 20


def source(**words: Any) -> storages_pb2.Storage:
    return sources.storage_of("x", words)


def test_every_source_of_the_protocol_has_an_option() -> None:
    fields = storages_pb2.Storage.DESCRIPTOR.oneofs_by_name["source"].fields
    words: dict[str, Any] = {
        "device": "d",
        "virtiofs": "t",
        "nine_p": "t",
        "tmpfs": "1M",
        "hugetlb": "0",
        "bind": "/a",
        "overlay": ["a"],
        "nfs": "s:/p",
        "cifs": "//s/p",
        "ceph": "m:/p",
        "pmem": "d",
        "local": True,
        "watch": "/a",
    }
    made = {source(**{name: word}).WhichOneof("source") for name, word in words.items()}
    assert made == {field.name for field in fields}


def test_memory_and_huge_pages() -> None:
    made = source(tmpfs="64M", mode="0750")
    assert (made.tmpfs.size, made.tmpfs.mode) == (64 * MIB, 0o750)
    pages = source(hugetlb="64M", page_size="2M").hugetlb
    assert (pages.size, pages.page_size) == (64 * MIB, 2 * MIB)


def test_layers_by_commas_and_by_repetition() -> None:
    made = source(overlay=["app:usr/lib,base", "last"], upper="data:root").overlay
    assert [(each.storage_id, each.path) for each in made.lower] == [
        ("app", "usr/lib"),
        ("base", ""),
        ("last", ""),
    ]
    assert (made.upper.storage_id, made.upper.path) == ("data", "root")
    assert not made.HasField("work")


@pytest.mark.parametrize("name", ["bind", "watch"])
def test_a_path_is_the_guests_and_anything_else_a_storages(name: str) -> None:
    field = {"watch": "watched"}.get(name, name)
    assert getattr(source(**{name: "/etc/app"}), field).path == "/etc/app"
    directory = getattr(source(**{name: "conf:a/b"}), field).directory
    assert (directory.storage_id, directory.path) == ("conf", "a/b")


@pytest.mark.parametrize(
    ("text", "server", "path"),
    [
        ("files.example:/export/a", "files.example", "/export/a"),
        ("[2001:db8::5]:/x", "2001:db8::5", "/x"),
        ("10.0.0.1:/", "10.0.0.1", "/"),
    ],
)
def test_an_nfs_server_may_be_an_address_with_colons(text: str, server: str, path: str) -> None:
    made = source(nfs=text).nfs
    assert (made.server, made.path) == (server, path)


def test_cephs_monitors_have_ports() -> None:
    made = source(ceph="10.0.0.1:6789,10.0.0.2:6789:/home").ceph
    assert (list(made.monitors), made.path) == (["10.0.0.1:6789", "10.0.0.2:6789"], "/home")


def test_a_partition_by_number_or_label() -> None:
    assert source(device="d", partition="2").block.partition == 2
    assert source(device="d", partition="root-a").block.partition_label == "root-a"


def test_verity_only_where_a_root_hash_is_given() -> None:
    assert not source(device="d").block.HasField("verity")
    made = source(device="d", verity="ab", verity_offset=4096, no_superblock=True).block.verity
    assert (made.root_hash, made.hash_offset, made.no_superblock) == ("ab", 4096, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"verity_offset": 4096, "verity_salt": "ab"}, r"--verity-offset, .*without --verity$"),
        ({"cipher": "aes-xts-plain64"}, "--cipher: means nothing without --key-file"),
    ],
)
def test_nothing_is_read_unproved_that_was_to_be_proved(words: dict[str, Any], told: str) -> None:
    with pytest.raises(typer.BadParameter, match=told):
        source(device="d", **words)


def test_a_group_of_the_whole_tree() -> None:
    assert source(local=True, fs_group=5).fs_group_policy == 0
    once = source(local=True, fs_group=5, fs_group_once=True)
    assert once.fs_group_policy == storages_pb2.FS_GROUP_POLICY_ON_ROOT_MISMATCH


def test_an_option_of_another_source_is_refused_by_its_spelling() -> None:
    with pytest.raises(typer.BadParameter, match=r"--format: not for --9p, which has .*--msize"):
        source(nine_p="t", format_=True)


def test_a_container_gets_storages_and_devices_of_the_vm() -> None:
    assert parse_mount("--storage", "conf:/etc/app:ro") == MountOption(
        what="conf", mount="/etc/app", read_only=True
    )
    with pytest.raises(typer.BadParameter, match="--storage 'conf'"):
        parse_mount("--storage", "conf")
    assert parse_grant("d:/dev/data:r") == GrantOption(
        device="d", path="/dev/data", permissions="r"
    )
    assert parse_grant("d:rw") == GrantOption(device="d", permissions="rw")
    with pytest.raises(typer.BadParameter, match="--device"):
        parse_grant("d:x")
    options = ContainerOptions(
        id="c",
        process=ProcessOptions(argv=("true",)),
        mounts=(parse_mount("--storage", "a:/a"), parse_mount("--storage", "a:/b:ro")),
        devices=(parse_grant("d"),),
    )
    request = options.to_request()
    mounts = [(each.storage_id, each.destination, *each.options) for each in request.storages]
    assert mounts == [("a", "/a"), ("a", "/b", "ro")]
    assert [each.device_id for each in request.devices] == ["d"]

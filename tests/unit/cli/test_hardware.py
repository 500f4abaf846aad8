"""Kinds of hardware as the command line says them."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from google.protobuf import json_format
from typer.testing import CliRunner, Result

from innkeeper.cli.app import app
from innkeeper.cli.hardware import KINDS, Words, parse, parse_cold, table
from innkeeper.v1 import host_pb2

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "data.img").touch()
    return str(tmp_path / "data.img")


def attach(*words: str) -> Result:
    return CliRunner().invoke(app, ["device", "attach", "web", *words])


def test_a_file_alone_is_a_disk(file: str) -> None:
    made = parse(file, Words(read_only=True, format="qcow2"))
    assert made.disk.content == host_pb2.DiskFile(file=file, format="qcow2", read_only=True)
    assert made == parse("disk", Words(source=file, read_only=True, format="qcow2"))


@pytest.mark.parametrize(
    ("what", "words", "kind"),
    [
        ("nic", Words(mac="52:54:00:12:34:56"), "nic"),
        ("e1000e", Words(), "nic"),
        ("rng", Words(rate=10), "rng"),
        ("gpu", Words(), "gpu"),
        ("scsi-controller", Words(), "scsi_controller"),
        ("memory", Words(source="256M"), "memory"),
        ("virtio-mem", Words(source="1G"), "memory"),
        ("cpus", Words(source="2"), "cpus"),
        ("vfio", Words(source="0000:3b:00.0"), "host_function"),
    ],
)
def test_every_word_has_its_kind(what: str, words: Words, kind: str) -> None:
    assert parse(what, words).WhichOneof("kind") == kind


def test_sizes_are_bytes() -> None:
    assert parse("memory", Words(source="256M")).memory.size == 256 << 20


def test_a_scsi_disk_says_its_place(file: str) -> None:
    disk = parse("scsi-disk", Words(source=file, controller="c0", target=2, lun=10)).scsi_disk
    assert (disk.controller, disk.target, disk.lun) == ("c0", 2, 10)
    with pytest.raises(typer.BadParameter, match="--controller"):
        parse("scsi-disk", Words(source=file))


@pytest.mark.parametrize(
    ("what", "source"),
    [
        ("nvme", ""),
        ("rng", "x"),
        ("nosuch", "x"),
        ("/no/such/file", ""),
        ("cpus", "two"),
        ("memory", "lots"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_asked(what: str, source: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse(what, Words(source=source))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rng", "--rate", "-1"), "--rate -1: not possible, 0 to 9223372036854775807"),
        (("rng", "--rate", str(2**64)), "--rate 18446744073709551616: not possible"),
        (("scsi-disk", "FILE", "--controller", "c", "--lun", "-1"), "--lun -1: not possible"),
        (
            ("scsi-disk", "FILE", "--controller", "c", "--target", "99999999999"),
            "--target 99999999999: not possible, 0 to 255",
        ),
        (("cpus", "99999999999"), "cpus 99999999999: not possible, 1 to 64"),
        (("cpus", "9" * 5000), "write a number, 1 to 64"),
        (("memory", "999999999999G"), "999999999999G: not possible, at most 1024T"),
        (("virtio-mem", "9" * 5000), "write a size"),
    ],
)
def test_a_number_that_no_field_holds_is_a_wrong_use(
    file: str, words: tuple[str, ...], message: str
) -> None:
    """A number that a protobuf field can't hold; virtio-rng.c takes less than 2^63."""
    told = attach(*(file if word == "FILE" else word for word in words))
    assert told.exit_code == 2
    assert message in " ".join(told.output.split())


@pytest.mark.parametrize("count", ["128", "99999999999", "x", "-1"])
def test_virtual_functions_from_the_start_have_a_range_too(file: str, count: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"vfs {count}: .*0 to 127"):
        parse_cold([f"nvme:{file}:vfs={count}"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("FILE", "--lun", "0"), "--lun: not for disk"),
        (("nic", "--controller", "c0"), "--controller: not for nic"),
        (("nvme", "FILE", "--mac", "52:54:00:12:34:56"), "--mac: not for nvme"),
        (("rng", "--read-only", "--format", "raw"), "--format, --read-only: not for rng"),
        (("memory", "1G", "--user-network"), "--user-network: not for memory"),
        (("cold", "gpu0", "--id", "x"), "--id: not for cold"),
    ],
)
def test_an_option_of_another_kind_is_refused_even_with_its_default(
    file: str, words: tuple[str, ...], message: str
) -> None:
    told = attach(*(file if word == "FILE" else word for word in words))
    assert told.exit_code == 2
    assert message in " ".join(told.output.split())


def test_what_is_neither_a_kind_nor_a_file_is_said_so() -> None:
    assert "frob: no kind and no file; kinds: disk" in " ".join(attach("frob").output.split())


def test_a_kind_without_its_file_has_no_blank_before_the_colon() -> None:
    assert "Invalid value: disk: write disk FILE" in attach("disk").output


def test_kinds_without_a_driver_in_the_usual_image_say_what_they_need() -> None:
    rows = {row.split()[0]: row for row in table().splitlines()}
    needy = {name for name, row in rows.items() if "--image generic" in row}
    assert needy == {"gpu", "virtio-gpu", "e1000e", "igb"}


def test_the_help_names_every_kind() -> None:
    text = table()
    assert all(f"  {name}" in text for name in KINDS)


def test_hardware_from_the_start(file: str) -> None:
    first, second, third = parse_cold(["virtio-gpu", f"data=nvme:{file}:vfs=2", f"d=disk:{file}"])
    assert (first.id, second.id, third.id) == ("cold0", "data", "d")
    assert '"GPU_MODEL_VIRTIO"' in first.hardware
    disk = json_format.Parse(second.hardware, host_pb2.Hardware()).disk
    assert (disk.content.file, disk.virtual_functions) == (file, 2)
    with pytest.raises(typer.BadParameter, match="kinds"):
        parse_cold(["nosuch"])

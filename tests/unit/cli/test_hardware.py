"""Kinds of hardware as the command line says them."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from google.protobuf import json_format

from innkeeper.cli.hardware import KINDS, Words, parse, parse_cold, table
from innkeeper.v1 import host_pb2

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "data.img").touch()
    return str(tmp_path / "data.img")


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

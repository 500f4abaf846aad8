"""Words of the command line, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from innkeeper.cli import options
from innkeeper.cli.exec import split_words as split_exec
from innkeeper.cli.options import DiskOption
from innkeeper.shim.spec import VmSpec

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "data.img"
    path.touch()
    return path


def test_a_disk_is_a_file_and_a_place(image: Path) -> None:
    assert options.parse_disk(f"{image}:/data") == DiskOption(file=image, mount="/data")


def test_a_disk_may_be_read_only_of_another_type_and_format(image: Path) -> None:
    assert options.parse_disk(f"{image}:/data:ro:fs=xfs:format=qcow2") == DiskOption(
        file=image, mount="/data", read_only=True, fs_type="xfs", format="qcow2"
    )


def test_a_disks_file_may_have_a_colon(tmp_path: Path) -> None:
    (tmp_path / "a:b.img").touch()
    assert options.parse_disk(f"{tmp_path}/a:b.img:/data").file == tmp_path / "a:b.img"


def test_a_relative_file_becomes_absolute(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(image.parent)
    assert options.parse_disk("data.img:/data").file == image


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "write FILE:MOUNT"),
        ("{}:data", "write FILE:MOUNT"),
        ("{}:/data:rw", "'rw' is none of"),
        ("{}:/data:ro=1", "'ro=1' is none of"),
        ("{}:/data:fs", "'fs' is none of"),
        ("none.img:/data", "none.img: no such file"),
    ],
)
def test_a_disk_that_is_none_is_refused_with_the_reason(image: Path, text: str, why: str) -> None:
    with pytest.raises(typer.BadParameter, match=why):
        options.parse_disk(text.format(image))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512 << 20),
        ("512M", 512 << 20),
        ("2G", 2 << 30),
        ("2GiB", 2 << 30),
        ("65536k", 64 << 20),
        ("1 t", 1 << 40),
    ],
)
def test_sizes_are_powers_of_two_and_mib_without_a_unit(text: str, size: int) -> None:
    assert options.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5G", "1X"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="512M or 2G"):
        options.parse_size(text)


def test_a_memory_below_the_least_is_refused_in_the_users_own_words() -> None:
    assert options.parse_memory("192") == 192 << 20
    for text in ("128M", "1", "200001K"):
        with pytest.raises(typer.BadParameter, match=f"--memory {text}: .*at least 192M"):
            options.parse_memory(text)


def test_a_directory_in_a_container_is_absolute() -> None:
    assert options.parse_directory("") == ""
    assert options.parse_directory("/srv") == "/srv"
    with pytest.raises(typer.BadParameter, match="--workdir srv: write an absolute path"):
        options.parse_directory("srv")


def test_a_variable_without_a_value_is_ours_if_we_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNOWN", "yes")
    monkeypatch.delenv("UNKNOWN", raising=False)
    words = ["A=1", "KNOWN", "UNKNOWN", "EMPTY="]
    assert options.parse_environment(words) == ("A=1", "KNOWN=yes", "EMPTY=")


def test_a_user_is_numbers_and_the_group_that_of_the_user(image: Path) -> None:
    assert options.parse_user("1000") == (1000, 1000)
    assert options.parse_user("1000:50") == (1000, 50)
    with pytest.raises(typer.BadParameter, match="UID:GID"):
        options.parse_user("nobody")


def test_exec_takes_a_vm_a_container_and_a_command() -> None:
    assert split_exec(["web", "main", "--", "ls", "-l"]) == ("web", "main", ("ls", "-l"))
    assert split_exec(["web", "--", "ls", "--", "x"]) == ("web", "", ("ls", "--", "x"))


@pytest.mark.parametrize(
    "words", [["web", "ls"], ["web", "--"], ["--", "ls"], ["web", "a", "-t", "--", "sh"]]
)
def test_exec_without_its_parts_shows_how_it_is_written(words: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match=r"VM \[CONTAINER\] -- CMD"):
        split_exec(words)


@pytest.mark.parametrize("text", ["4294967295", "0:99999999999", "9" * 5000])
def test_a_user_is_a_number_that_the_kernel_has(text: str) -> None:
    """user_namespaces(7): 4294967295 is no user."""
    with pytest.raises(typer.BadParameter, match="at most 4294967294"):
        options.parse_user(text)


def test_a_size_that_is_not_possible_is_told_with_its_unit() -> None:
    spec = VmSpec(name="web", max_memory=100 << 20)
    with pytest.raises(typer.BadParameter, match="max_memory 100 MiB: not possible"):
        options.vm_spec(spec)


def test_nvdimms_without_room_are_told_with_both_options() -> None:
    with pytest.raises(typer.BadParameter, match="--nvdimm --max-memory"):
        options.vm_spec(VmSpec(name="web", nvdimm=True))

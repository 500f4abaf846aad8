"""Words of the command line, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from innkeeper.cli import options
from innkeeper.cli.exec import Words
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


@pytest.mark.parametrize(
    ("text", "oci"),
    [
        ("1000", {"uid": 1000, "gid": 1000}),
        ("1000:50", {"uid": 1000, "gid": 50}),
        ("nobody", {"username": "nobody"}),
        ("www-data:adm", {"username": "www-data:adm"}),
        ("1000:adm", {"username": "1000:adm"}),
        ("nobody:0", {"username": "nobody:0"}),
    ],
)
def test_a_user_is_numbers_or_names_that_the_container_knows(
    text: str, oci: dict[str, object]
) -> None:
    """The group of a bare number is the same number."""
    user = options.parse_user(text)
    assert user is not None
    assert user.to_oci() == oci
    assert options.parse_user("") is None


@pytest.mark.parametrize("text", [":", "a:", ":b", "a:b:c", "a b", "a\nb"])
def test_what_is_no_user_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="NAME"):
        options.parse_user(text)


def test_variables_come_from_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker's form: nothing is quoted, a name alone takes ours."""
    file = tmp_path / "env"
    file.write_text('# mine\nA="b c"\n\n  B=\nKNOWN\n#C=1\n')
    monkeypatch.setenv("KNOWN", "yes")
    words = options.read_environment(str(file))
    assert options.parse_environment(words) == ('A="b c"', "B=", "KNOWN=yes")
    for bad in ("=x", "a b=c"):
        file.write_text(f"{bad}\n")
        with pytest.raises(typer.BadParameter, match="NAME=VALUE or NAME"):
            options.read_environment(str(file))
    with pytest.raises(typer.BadParameter, match="No such file"):
        options.read_environment(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "kind", "device", "path", "permissions"),
    [
        ("gpu0", "id", "gpu0", "", ""),
        ("gpu0:/dev/x:rw", "id", "gpu0", "/dev/x", "rw"),
        ("/dev/vfio/16", "node", "/dev/vfio/16", "", ""),
        ("/dev/fuse:rwm", "node", "/dev/fuse", "", "rwm"),
        ("/dev/a:/dev/b", "node", "/dev/a", "/dev/b", ""),
        ("0000:3B:02.1", "bdf", "0000:3b:02.1", "", ""),
        ("3b:02.1:r", "bdf", "0000:3b:02.1", "", "r"),
        ("10000:01:00.0:/dev/n:rw", "bdf", "10000:01:00.0", "/dev/n", "rw"),
        ("02/00", "pci_path", "02/00", "", ""),
        ("0000:20/00/02:/dev/x", "pci_path", "0000:20/00/02", "/dev/x", ""),
        ("02.3/00", "pci_path", "02.3/00", "", ""),
    ],
)
def test_a_device_is_named_by_id_address_or_node(
    text: str, kind: str, device: str, path: str, permissions: str
) -> None:
    assert options.parse_grant(text) == options.GrantOption(
        kind=kind, device=device, path=path, permissions=permissions
    )


def test_a_cdi_device_is_refused_for_now() -> None:
    for name in ("nvidia.com/gpu=0", "vendor.example.com/net=nic:1"):
        with pytest.raises(typer.BadParameter, match="CDI devices are not built yet"):
            options.parse_grant(name)
    for text in ("", "a/b", "gpu0:x", "gpu0:/a:rx", ":/dev/x", "/etc/passwd"):
        with pytest.raises(typer.BadParameter, match="--device"):
            options.parse_grant(text)


def test_exec_takes_a_vm_a_container_and_a_command() -> None:
    assert split_exec(["web", "main", "--", "ls", "-l"]) == Words(
        vm="web", container="main", argv=("ls", "-l")
    )
    assert split_exec(["web", "--", "ls", "--", "x"]) == Words(vm="web", argv=("ls", "--", "x"))


@pytest.mark.parametrize("words", [["web"], ["web", "--"], ["--", "ls"], ["web", "-t", "a", "sh"]])
def test_exec_without_its_parts_shows_how_it_is_written(words: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match=r"VM \[CONTAINER\] -- CMD"):
        split_exec(words)


def test_exec_of_two_words_is_shown_with_what_is_missing() -> None:
    with pytest.raises(typer.BadParameter, match=r"mean: innkeeper exec -it web -- 'a b'$"):
        split_exec(["web", "a b"], ["-it"])


def test_exec_of_three_words_may_be_as_dockers() -> None:
    """Its second word is a container, if there is such a one."""
    found = split_exec(["web", "sh", "-c", "ls"], ["-t"])
    assert (found.container, found.argv) == ("sh", ("-c", "ls"))
    assert found.doubt.endswith("innkeeper exec -t web -- sh -c ls")
    assert split_exec(["web", "db", "env", "--", "ls"]).argv == ("env", "--", "ls")


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

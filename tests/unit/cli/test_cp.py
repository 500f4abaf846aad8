"""`innkeeper cp`: what is a VM's path, and where a copy goes, as docker cp has taught."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from innkeeper.cli.app import app
from innkeeper.cli.cp import (
    CopyOptions,
    Local,
    Remote,
    landing_place,
    local_errors,
    name_of,
    only_content,
    parse_end,
    target_in_guest,
)
from innkeeper.cli.errors import CliError
from innkeeper.shim.landing import Place
from innkeeper.v1 import files_pb2 as pb

pytestmark = [pytest.mark.unit, pytest.mark.operations]

FILE, FOLDER = stat.S_IFREG, stat.S_IFDIR
PLAIN = CopyOptions()


def remote(text: str) -> Remote:
    found = parse_end(text)
    assert isinstance(found, Remote)
    return found


def local(text: str) -> Local:
    found = parse_end(text)
    assert isinstance(found, Local)
    return found


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("web:container/main/etc/app", ("web", "container", "main", "etc/app")),
        ("web:main:/etc/app", ("web", "container", "main", "etc/app")),
        ("web:main:/", ("web", "container", "main", "")),
        ("web:container/main", ("web", "container", "main", "")),
        ("web:container/main/", ("web", "container", "main", "")),
        ("web:storage/data/a:b/.", ("web", "storage", "data", "a:b/.")),
    ],
)
def test_a_path_in_a_vm(text: str, parts: tuple[str, ...]) -> None:
    found = remote(text)
    assert (found.vm, found.kind, found.id, found.path) == parts
    assert found.root.WhichOneof("root") == f"{found.kind}_id"


@pytest.mark.parametrize("text", ["a", "./a:b", "/x/web:container/y", "../web:storage/a/b"])
def test_a_local_path(text: str) -> None:
    assert local(text).path == Path(text)


def test_a_local_file_with_a_colon_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web:x").write_bytes(b"")
    assert local("web:x").path == Path("web:x")


@pytest.mark.parametrize("text", ["web:etc", "web:", "web:container", "web:/etc", "", "-"])
def test_what_looks_like_a_vm_and_is_none_is_explained(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_end(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("a", "a"), ("a/b/", "b"), (".", ""), ("a/.", ""), ("/", ""), ("..", ""), ("a//b//", "b")],
)
def test_the_name_of_a_path(text: str, name: str) -> None:
    assert name_of(text) == name


@pytest.mark.parametrize(
    ("text", "content"), [("a", False), ("a/", False), ("a/.", True), (".", True), ("a.", False)]
)
def test_what_stands_for_the_content_of_a_directory(text: str, content: bool) -> None:
    assert only_content(text) is content


@pytest.mark.parametrize(
    ("source", "mode", "target", "there", "path"),
    [
        ("f", FILE, "vm:storage/s/d", None, "d"),
        ("f", FILE, "vm:storage/s/d", "directory", "d/f"),
        ("f", FILE, "vm:storage/s/d/", "directory", "d/f"),
        ("f", FILE, "vm:storage/s/d", "file", "d"),
        ("f", FILE, "vm:storage/s", "directory", "f"),
        ("t", FOLDER, "vm:storage/s/d", None, "d"),
        ("t/", FOLDER, "vm:storage/s/d/", None, "d"),
        ("t", FOLDER, "vm:storage/s/d", "directory", "d/t"),
        ("t/.", FOLDER, "vm:storage/s/d", "directory", "d"),
        ("t/.", FOLDER, "vm:storage/s/d", None, "d"),
        ("f", FILE, "vm:storage/s/d/", None, CliError),
        ("f", FILE, "vm:storage/s/d/", "file", CliError),
        ("t", FOLDER, "vm:storage/s/d", "file", CliError),
    ],
)
def test_where_a_copy_into_a_vm_goes(
    source: str, mode: int, target: str, there: str | None, path: str | type[CliError]
) -> None:
    """The table of docker cp's manual."""
    kinds = {"file": pb.FILE_TYPE_FILE, "directory": pb.FILE_TYPE_DIRECTORY}
    header = pb.FileHeader(type=kinds[there]) if there else None
    if isinstance(path, str):
        assert target_in_guest(local(source), remote(target), mode, header) == path
        return
    with pytest.raises(path):
        target_in_guest(local(source), remote(target), mode, header)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a directory `d`, a file `f` and a link `l` to the directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_bytes(b"")
    (tmp_path / "l").symlink_to("d")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "kind", "target", "folder", "name", "into"),
    [
        ("vm:storage/s/a", "file", "new", "", "new", False),
        ("vm:storage/s/a", "file", "f", "", "f", False),
        ("vm:storage/s/a", "file", "d", "d", "a", False),
        ("vm:storage/s/a", "file", "l/", "d", "a", False),
        ("vm:storage/s/t", "directory", "new", "", "new", False),
        ("vm:storage/s/t", "directory", "d", "d", "t", False),
        ("vm:storage/s/t/.", "directory", "d", "", "d", True),
        ("vm:storage/s/t/.", "directory", "new", "", "new", False),
        ("vm:storage/s", "directory", "d", "d", "s", False),
        ("vm:storage/s/t", "directory", "new/", "", "new", False),
        ("vm:storage/s/.", "directory", ".", "..", "", True),
    ],
)
def test_where_a_copy_out_of_a_vm_lands(
    here: Path, source: str, kind: str, target: str, folder: str, name: str, into: bool
) -> None:
    kinds = {"file": pb.FILE_TYPE_FILE, "directory": pb.FILE_TYPE_DIRECTORY}
    found = landing_place(remote(source), local(target), kinds[kind], PLAIN)
    wanted = Place(folder=(here / folder).resolve(), name=name or here.name, into=into)
    assert found == wanted


@pytest.mark.parametrize(
    ("source", "kind", "target"),
    [
        ("vm:storage/s/t", "directory", "f"),
        ("vm:storage/s/a", "file", "new/"),
        ("vm:storage/s/a", "file", "no/such/place"),
        ("vm:storage/s/a", "file", "/dev/null"),
        ("vm:storage/s/a/.", "file", "d"),
    ],
)
@pytest.mark.usefixtures("here")
def test_where_none_can_land(source: str, kind: str, target: str) -> None:
    """A device is never replaced by a file, also not for root."""
    kinds = {"file": pb.FILE_TYPE_FILE, "directory": pb.FILE_TYPE_DIRECTORY}
    with pytest.raises(CliError):
        landing_place(remote(source), local(target), kinds[kind], PLAIN)


@pytest.mark.parametrize("words", [("a", "b"), ("vm:storage/a/b", "vm:storage/a/c")])
def test_one_end_is_here_and_one_in_a_vm(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["cp", *words])
    assert (done.exit_code, "as in:" in done.output) == (2, True)


def test_a_source_that_is_no_file_is_refused_before_a_vm_is_looked_for(here: Path) -> None:
    os.mkfifo(here / "p")
    done = CliRunner().invoke(app, ["cp", "p", "vm:storage/a/b"])
    assert isinstance(done.exception, CliError)


def test_owners_that_can_not_be_kept_are_told_by_where_and_how_to_go_on() -> None:
    """What fchown(2) raises has no name of a file."""
    end = Local(path=Path("out"), text="out")
    with (
        pytest.raises(CliError, match=r"^out: Operation not permitted$") as caught,
        local_errors(end, CopyOptions(archive=True)),
    ):
        raise PermissionError(errno.EPERM, "Operation not permitted")
    assert "without -a" in caught.value.hint


def test_a_name_that_was_ours_alone_is_not_the_one_that_is_told() -> None:
    end = Local(path=Path("/proc/x"), text="/proc/x")
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", ".innkeeper-1")
    with pytest.raises(CliError, match=r"^/proc/x: No such"), local_errors(end, PLAIN):
        raise error

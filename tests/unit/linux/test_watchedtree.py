"""What is seen of a source: names, through links that stay inside, and its signature."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.linux.mountcalls import Location
from agent.linux.watchedtree import ENTRIES_MOST, Look, opened

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def look(path: Path) -> Look:
    with opened(Location(root=str(path.parent), path=path.name)) as source:
        return source.look()


def paths(seen: Look) -> list[str]:
    return [entry.path for entry in seen.entries]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config map as kubelet writes it."""
    base = tmp_path / "config"
    (base / "..2026_11_29_23_57_43.1/nested").mkdir(parents=True)
    (base / "..2026_11_29_23_57_43.1/key").write_text("value")
    (base / "..2026_11_29_23_57_43.1/nested/deep").write_text("value")
    (base / "..data").symlink_to("..2026_11_29_23_57_43.1")
    (base / "key").symlink_to("..data/key")
    (base / "nested").symlink_to("..data/nested")
    return base


def test_a_config_map_is_its_visible_names(config: Path) -> None:
    seen = look(config)
    assert paths(seen) == ["", "key", "nested", "nested/deep"]
    assert [entry.is_directory for entry in seen.entries] == [True, False, True, False]
    assert seen.left_out == []


def test_a_switch_of_the_source_changes_the_signature(config: Path) -> None:
    before = look(config)
    assert look(config).signature == before.signature
    (config / "..new").mkdir()
    (config / "..new/key").write_text("other")
    os.symlink("..new", config / "..tmp")
    os.replace(config / "..tmp", config / "..data")
    after = look(config)
    assert after.signature != before.signature
    assert paths(after) == ["", "key"]
    assert after.left_out == ["nested leads nowhere"]


@pytest.mark.parametrize(
    "change",
    [
        lambda base: (base / "new").touch(),
        lambda base: (base / "file").write_text("abcd"),
        lambda base: os.utime(base / "file", ns=(1, 1)),
        lambda base: (base / "file").chmod(0o640),
        lambda base: (base / "dir").chmod(0o711),
        lambda base: base.chmod(0o711),
        lambda base: (base / "file").rename(base / "other"),
        lambda base: (base / "file").unlink(),
    ],
)
def test_every_change_changes_it(tmp_path: Path, change: object) -> None:
    base = tmp_path / "source"
    (base / "dir").mkdir(parents=True)
    (base / "file").write_text("abc")
    before = look(base)
    change(base)  # type: ignore[operator]
    assert look(base).signature != before.signature


def test_a_file_replaced_by_another_of_the_same_size_and_time(tmp_path: Path) -> None:
    base = tmp_path / "source"
    base.mkdir()
    (base / "file").write_text("abc")
    before, status = look(base), (base / "file").stat()
    (base / "new").write_text("xyz")
    os.utime(base / "new", ns=(status.st_mtime_ns, status.st_mtime_ns))
    os.replace(base / "new", base / "file")
    assert look(base).signature != before.signature


def test_links_that_lead_out_are_left_out(tmp_path: Path) -> None:
    base = tmp_path / "source"
    (base / "dir").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (base / "up").symlink_to("../secret")
    (base / "absolute").symlink_to("/etc/passwd")
    (base / "dir/up").symlink_to("../../secret")
    (base / "inside").symlink_to("dir/../plain")
    (base / "plain").write_text("x")
    seen = look(base)
    assert sorted(paths(seen)) == ["", "dir", "inside", "plain"]
    assert sorted(seen.left_out) == [
        "absolute leads outside",
        "dir/up leads outside",
        "up leads outside",
    ]


def test_circles_of_links_end(tmp_path: Path) -> None:
    base = tmp_path / "source"
    (base / "dir").mkdir(parents=True)
    (base / "dir/back").symlink_to("..")
    (base / "self").symlink_to(".")
    (base / "a").symlink_to("b")
    (base / "b").symlink_to("a")
    seen = look(base)
    assert paths(seen) == ["", "dir"]
    assert sorted(seen.left_out) == [
        "a leads in a circle",
        "b leads in a circle",
        "dir/back leads in a circle",
        "self leads in a circle",
    ]


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    base = tmp_path / "source"
    base.mkdir()
    os.mkfifo(base / "pipe")
    seen = look(base)
    assert paths(seen) == [""]
    assert seen.left_out == ["pipe is neither a directory nor a regular file"]


def test_a_single_file_is_seen_by_its_name(config: Path) -> None:
    seen = look(config / "key")
    assert paths(seen) == ["key"]
    with opened(Location(root=str(config), path="key")) as source:
        (entry,) = source.look().entries
        with source.reading(entry) as fd:
            assert os.read(fd, 100) == b"value"


def test_neither_directory_nor_file_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="neither"), opened(Location(root=str(tmp_path), path="pipe")):
        pass


def test_links_that_multiply_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    """Each directory has two links to the next: 2^24 names, of 24 directories."""
    base = tmp_path / "config"
    for number in range(24):
        (base / f"{number}").mkdir(parents=True)
        for name in "ab":
            (base / f"{number}/{name}").symlink_to(f"../{number + 1}")
    with pytest.raises(OSError, match="File too large") as raised:
        look(base)
    assert raised.value.errno == errno.EFBIG


def test_names_that_are_not_seen_count_too(tmp_path: Path) -> None:
    base = tmp_path / "config"
    base.mkdir()
    for number in range(ENTRIES_MOST + 1):
        (base / f"{number}").symlink_to("nowhere")
    with pytest.raises(OSError, match="File too large"):
        look(base)

"""Paths inside a root: absolute links and ".." must not lead out of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.linux.openat2 import Resolve, open_in_root, open_resolved

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "secret").write_text("outside")
    inside = tmp_path / "root"
    (inside / "run").mkdir(parents=True)
    (inside / "run/pid").write_text("inside")
    (inside / "var").mkdir()
    (inside / "var/run").symlink_to("/run")
    (inside / "up").symlink_to("../../../secret")
    (inside / "a").symlink_to("b")
    (inside / "b").symlink_to("a")
    fd = os.open(inside, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def read(root: int, path: str) -> str:
    with os.fdopen(open_in_root(root, path, os.O_RDONLY)) as file:
        return file.read()


def test_an_absolute_link_starts_at_the_root(root: int) -> None:
    """An image has /var/run as a link to /run: the guest's own /run is not meant."""
    assert read(root, "/var/run/pid") == "inside"


def test_dots_stop_at_the_root(root: int) -> None:
    assert read(root, "../../run/pid") == "inside"


@pytest.mark.parametrize("path", ["up", "/up", "var/../up"])
def test_links_upwards_find_nothing_outside(root: int, path: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        open_in_root(root, path, os.O_RDONLY)
    assert caught.value.filename == path


def test_a_loop_is_an_error_and_no_hang(root: int) -> None:
    with pytest.raises(OSError, match="openat2") as caught:
        open_in_root(root, "a", os.O_RDONLY)
    assert caught.value.errno == errno.ELOOP


def test_a_nul_does_not_cut_the_path(root: int) -> None:
    with pytest.raises(OSError, match="openat2") as caught:
        open_in_root(root, "run/pid\0x", os.O_RDONLY)
    assert caught.value.errno == errno.EINVAL


def test_the_descriptor_is_not_inherited(root: int) -> None:
    fd = open_in_root(root, "run", os.O_PATH)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_magic_links_of_proc_are_refused() -> None:
    fd = os.open("/proc", os.O_PATH)
    with pytest.raises(OSError, match="openat2") as caught:
        open_in_root(fd, "self/root", os.O_PATH)
    os.close(fd)
    assert caught.value.errno == errno.ELOOP


def test_without_links_the_path_is_what_it_says(root: int, tmp_path: Path) -> None:
    found = open_resolved("run/pid", os.O_RDONLY, below=root, resolve=Resolve.NO_SYMLINKS)
    with os.fdopen(found) as file:
        assert file.read() == "inside"
    found = open_resolved(str(tmp_path / "secret"), os.O_RDONLY, resolve=Resolve.NO_SYMLINKS)
    with os.fdopen(found) as file:
        assert file.read() == "outside"
    for path in ("var/run", "var/run/pid", "up"):
        with pytest.raises(OSError, match="openat2") as caught:
            open_resolved(path, os.O_PATH, below=root, resolve=Resolve.NO_SYMLINKS)
        assert caught.value.errno == errno.ELOOP, path

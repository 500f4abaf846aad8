"""Real nodes: numbers, owner and mode as asked, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent.linux.block import node_numbers
from agent.linux.mknod import make_char_node, remove

pytestmark = [pytest.mark.privileged, pytest.mark.devices]


@pytest.fixture(autouse=True)
def narrow_umask() -> object:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_node_with_a_minor_above_255(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-caps/nvidia-cap426"
    make_char_node(path, numbers=(508, 426), mode=0o444, uid=1, gid=44)
    assert node_numbers(path) == ("c", 508, 426)
    status = path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o444, 1, 44)


def test_a_node_replaces_a_file_and_a_link(tmp_path: Path) -> None:
    """A link must not be followed: what it leads to keeps its owner and mode."""
    other = tmp_path / "other"
    other.touch(mode=0o600)
    path = tmp_path / "nvidia0"
    path.symlink_to(other)
    make_char_node(path, numbers=(195, 0), mode=0o666)
    assert node_numbers(path) == ("c", 195, 0)
    assert stat.S_IMODE(other.stat().st_mode) == 0o600
    remove(path)
    assert not path.exists()

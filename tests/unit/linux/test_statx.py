"""statx(2) against stat(2), the older witness."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.linux.block import NodeNumbers
from agent.linux.statx import facts

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def test_a_node() -> None:
    """/dev/null is 1:3 and /dev/zero 1:5 on every Linux (admin-guide/devices.txt)."""
    assert facts("/dev/null").node == NodeNumbers("c", 1, 3)
    assert facts("/dev/zero").node == NodeNumbers("c", 1, 5)


def test_a_file_and_a_link_to_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    (tmp_path / "link").symlink_to("file")
    status = os.stat(path)
    found = facts(tmp_path / "link")
    assert found == facts(path)
    assert found.node is None
    assert found.inode == status.st_ino
    assert found.device == (os.major(status.st_dev), os.minor(status.st_dev))


def test_a_descriptor_by_its_link_in_proc() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    assert facts(f"/proc/self/fd/{fd}").node == NodeNumbers("c", 1, 3)
    os.close(fd)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="statx") as caught:
        facts(tmp_path / "gone")
    assert caught.value.filename == str(tmp_path / "gone")

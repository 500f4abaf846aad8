"""Links in /dev, and what is refused; nodes themselves need root (tests/privileged)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.linux.mknod import make_char_node, make_link, remove

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def test_a_link_replaces_what_had_its_name(tmp_path: Path) -> None:
    link = tmp_path / "dri/by-path/pci-0000:01:00.0-card"
    make_link(link, "../card0")
    make_link(link, "../card1")
    assert str(link.readlink()) == "../card1"
    remove(link)
    remove(link)
    assert not link.is_symlink()


def test_refusals_name_the_call_and_the_path(tmp_path: Path) -> None:
    taken = tmp_path / "nvidia0"
    taken.mkdir()
    with pytest.raises(OSError, match="unlink") as caught:
        make_char_node(taken, numbers=(195, 0), mode=0o666)
    assert caught.value.filename == str(taken)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="mkdir") as caught:
        make_link(tmp_path / "file/link", "x")
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)

"""Answers of the file-system worker."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from agent.linux import fsworker

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def figures(files: int, free: int) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, 100, 40, 30, files, free, free, 0, 255))


@pytest.mark.parametrize(
    ("files", "free", "told"),
    [
        (64, 60, (64, 60)),
        # erofs: ULLONG_MAX, and that less the inodes it has; Python makes both signed.
        (-1, -8, (7, 0)),
        # btrfs counts none.
        (0, 0, (0, 0)),
    ],
)
def test_files_are_unsigned_and_may_have_no_limit(
    monkeypatch: pytest.MonkeyPatch, files: int, free: int, told: tuple[int, int]
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: figures(files, free))
    answer = fsworker.statfs(path="/x")
    assert (answer["files"], answer["files_free"]) == told
    assert (answer["size"], answer["available"]) == (409600, 122880)


def test_every_call_that_the_agent_makes_is_known(root: Path) -> None:
    source = (root / "agent/core/fileops.py").read_text()
    asked = set(re.findall(r"_run\(\s*\"([a-z_]+)\"", source))
    assert {"mount", "make_targets", "resolve"} <= asked
    assert all(callable(fsworker._function(name)) for name in asked)

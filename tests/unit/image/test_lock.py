"""The record of resolved packages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from innkeeper.image.lock import Lock, LockEntry, Role, changes
from innkeeper.image.model import ImageError

pytestmark = [pytest.mark.unit, pytest.mark.boot]

ZLIB = LockEntry(
    role=Role.IMAGE,
    name="zlib1g",
    version="1:1.3.dfsg+really1.3.1-1+b1",
    architecture="amd64",
    sha256="ab" * 32,
)


def test_what_is_written_reads_back_the_same() -> None:
    tool = replace(ZLIB, role=Role.TOOL, name="libarchive13t64", version="3.7.4-4+deb13u1")
    lock = Lock(request=("crun", "+libarchive13t64", "-dpkg"), entries=(ZLIB, tool))
    assert Lock.parse(lock.format(), source="x") == lock
    assert lock.of(Role.TOOL) == (tool,)


def test_the_order_of_lines_does_not_matter() -> None:
    other = replace(ZLIB, name="aaa")
    lock = Lock(request=(), entries=(other, ZLIB))
    lines = lock.format().splitlines()
    assert Lock.parse("\n".join(reversed(lines)), source="x") == lock


@pytest.mark.parametrize(
    "line",
    [
        "image zlib1g 1.2 amd64 sha256:" + "ab" * 32,
        "image zlib1g=1.2 amd64 sha256:abc",
        "image zlib1g=1.2 amd64 md5:" + "ab" * 16,
        "other zlib1g=1.2 amd64 sha256:" + "ab" * 32,
    ],
)
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(ImageError, match=r"p\.lock:2: not a lock entry"):
        Lock.parse(f"# header\n{line}\n", source="p.lock")


def test_changes_name_what_came_went_and_moved() -> None:
    gone = replace(ZLIB, name="gone")
    moved = replace(ZLIB, version="2")
    come = replace(ZLIB, name="come")
    assert changes([ZLIB, gone], [moved, come]) == [
        f"come (none) -> {come.version}",
        f"gone {gone.version} -> (none)",
        f"zlib1g {ZLIB.version} -> 2",
    ]

"""Which versions an image is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from innkeeper.image.debs import DebCache
from innkeeper.image.lock import Lock
from innkeeper.image.progress import Silent
from innkeeper.image.resolution import Request, Resolver
from tests.fakes.archive import FakeArchive

pytestmark = [pytest.mark.unit, pytest.mark.boot]

REQUEST = Request(
    packages=("crun",),
    tools=("libarchive13t64",),
    left_out=frozenset({"dpkg"}),
    kernel="linux-image-cloud-amd64",
)
VERSIONS = {
    "crun": ["1.21-1"],
    "libc6": ["2.41-12"],
    "dpkg": ["1.22"],
    "libarchive13t64": ["3.7"],
    "iproute2": ["6.15"],
    "linux-image-6.12-cloud-amd64": ["6.12.9-1"],
}
NEEDS = {"crun": ["libc6", "dpkg"], "libarchive13t64": ["libc6"]}


class Bench:
    """A resolver with a fake archive; says how often the archive was opened."""

    def __init__(self, tmp_path: Path, versions: dict[str, list[str]]) -> None:
        self.archive = FakeArchive(state=tmp_path, versions=versions, needs=NEEDS)
        self.opened = 0
        self.progress = Silent()
        self.resolver = Resolver(
            cache=DebCache(directory=tmp_path / "debs"),
            resolved=tmp_path / "locks",
            open_archive=self._open,
            progress=self.progress,
        )

    def _open(self) -> FakeArchive:
        self.opened += 1
        return self.archive


def versions_of(lock: Lock) -> dict[str, tuple[str, str]]:
    return {entry.name: (str(entry.role), entry.version) for entry in lock.entries}


def test_without_a_lock_everything_is_resolved_and_fetched(tmp_path: Path) -> None:
    bench = Bench(tmp_path, VERSIONS)
    lock = bench.resolver.from_lock(REQUEST, None)
    assert versions_of(lock) == {
        "crun": ("image", "1.21-1"),
        "libc6": ("image", "2.41-12"),
        "libarchive13t64": ("tool", "3.7"),
        "linux-image-6.12-cloud-amd64": ("kernel", "6.12.9-1"),
    }
    assert bench.resolver.cache.missing(lock.entries) == []


def test_a_tool_stays_out_of_the_image_whatever_depends_on_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, VERSIONS)
    request = replace(REQUEST, tools=("libarchive13t64", "libc6"))
    found = versions_of(bench.resolver.from_lock(request, None))
    assert {name: role for name, (role, _) in found.items() if role != "kernel"} == {
        "crun": "image",
        "libarchive13t64": "tool",
        "libc6": "tool",
    }


def test_with_lock_and_cache_the_mirror_is_not_asked(tmp_path: Path) -> None:
    lock = Bench(tmp_path, VERSIONS).resolver.from_lock(REQUEST, None)
    bench = Bench(tmp_path, {})
    assert bench.resolver.from_lock(REQUEST, lock) == lock
    assert bench.opened == 0


def test_a_lock_keeps_old_versions_as_long_as_the_mirror_has_them(tmp_path: Path) -> None:
    lock = Bench(tmp_path / "a", VERSIONS).resolver.from_lock(REQUEST, None)
    bench = Bench(tmp_path / "b", VERSIONS | {"crun": ["1.21-1", "1.22-1"]})
    assert bench.resolver.from_lock(REQUEST, lock) == lock
    assert "crun=1.21-1" in bench.archive.fetched
    assert bench.progress.warnings == []


def test_an_entry_that_is_gone_is_resolved_anew_with_a_warning(tmp_path: Path) -> None:
    """A fresh clone long after: the mirror has only the newer version."""
    lock = Bench(tmp_path / "a", VERSIONS).resolver.from_lock(REQUEST, None)
    bench = Bench(tmp_path / "b", VERSIONS | {"crun": ["1.21-1+deb13u1"]})
    fresh = bench.resolver.from_lock(REQUEST, lock)
    assert versions_of(fresh)["crun"] == ("image", "1.21-1+deb13u1")
    assert bench.progress.warnings == [
        "the mirror no longer has crun=1.21-1; resolving packages anew"
    ]
    assert bench.progress.notes == ["package crun 1.21-1 -> 1.21-1+deb13u1"]
    # The next build finds what was resolved, and is quiet.
    again = Bench(tmp_path / "b", {})
    assert again.resolver.from_lock(REQUEST, lock) == fresh
    assert again.opened == 0


def test_one_more_package_leaves_the_others_as_locked(tmp_path: Path) -> None:
    lock = Bench(tmp_path / "a", VERSIONS).resolver.from_lock(REQUEST, None)
    bench = Bench(tmp_path / "b", VERSIONS | {"crun": ["1.21-1", "1.22-1"]})
    more = replace(REQUEST, packages=("crun", "iproute2"))
    found = versions_of(bench.resolver.from_lock(more, lock))
    assert found["crun"] == ("image", "1.21-1")
    assert found["iproute2"] == ("image", "6.15")


def test_an_update_takes_the_newest(tmp_path: Path) -> None:
    lock = Bench(tmp_path / "a", VERSIONS).resolver.from_lock(REQUEST, None)
    bench = Bench(tmp_path / "b", VERSIONS | {"crun": ["1.21-1", "1.22-1"]})
    assert versions_of(bench.resolver.anew(REQUEST, lock))["crun"] == ("image", "1.22-1")


def test_a_kernel_from_elsewhere_is_not_resolved(tmp_path: Path) -> None:
    bench = Bench(tmp_path, VERSIONS)
    lock = bench.resolver.from_lock(replace(REQUEST, kernel=None), None)
    assert not [entry for entry in lock.entries if entry.name.startswith("linux-image")]

"""resolv.conf and its kind over what a guest's /etc has, with real mounts.

The guest's root is a tmpfs of the test's own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.fileops import FileWorkers
from agent.core.network import DnsWish
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.handlers.network.resolver import HostName, Resolver
from agent.linux import mounting
from agent.linux.mountapi import Kernel
from agent.linux.mounting import MountFlag, UnmountFlag

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts"),
]

WISH = DnsWish(servers=(ip_address("192.0.2.53"),))
WRITTEN = "nameserver 192.0.2.53\n"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A guest's root with an empty /etc, /run and /proc's place, on a tmpfs."""
    path = tmp_path / "root"
    path.mkdir()
    mounting.mount("room", str(path), "tmpfs")
    mounting.mount(None, str(path), None, MountFlag.PRIVATE)
    for name in ("etc", "run"):
        (path / name).mkdir()
    (path / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (path / "etc/hostname").write_text("booted\n")
    yield path
    for entry in reversed(Kernel().mounts()):
        if Path(entry.mount_point).is_relative_to(path):
            mounting.unmount(entry.mount_point, UnmountFlag.DETACH)


@pytest.fixture
async def workers() -> AsyncIterator[FileWorkers]:
    made = FileWorkers()
    yield made
    await made.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Not there yet, nor what it is in."""
    return tmp_path / "other/innkeeper"


@pytest.fixture
def resolver(root: Path, run: Path, workers: FileWorkers) -> Resolver:
    return made(root, run, workers)


def made(root: Path, run: Path, workers: FileWorkers) -> Resolver:
    roots = Roots(run=run)
    name = HostName(get=lambda: "web", set=lambda _: None)
    return Resolver(
        roots, workers=workers, state=StateStore(roots.state), host_name=name, root=root
    )


def deadline() -> Deadline:
    return Deadline.after(60)


def mounts(root: Path) -> list[str]:
    found = [entry.mount_point for entry in Kernel().mounts()]
    return sorted(each.removeprefix(f"{root}/") for each in found if each.startswith(f"{root}/"))


def seen(root: Path, path: str) -> str:
    """What a process of that guest reads, by another program than ours."""
    read = subprocess.run(["cat", f"/proc/self/cwd/{path}"], cwd=root, capture_output=True)
    assert read.returncode == 0, read
    return read.stdout.decode()


async def test_files_of_the_guest_are_covered(root: Path, resolver: Resolver) -> None:
    (root / "etc/resolv.conf").write_text("nameserver 198.51.100.1\n")
    state = await resolver.apply(WISH, deadline())
    assert state.warnings == ()
    assert mounts(root) == ["etc/hostname", "etc/hosts", "etc/resolv.conf"]
    assert seen(root, "etc/resolv.conf") == WRITTEN
    assert "127.0.1.1 web\n" in seen(root, "etc/hosts")
    assert seen(root, "etc/hostname") == "web\n"


async def test_once_is_enough_and_changes_are_seen(root: Path, resolver: Resolver) -> None:
    await resolver.apply(WISH, deadline())
    before = mounts(root)
    await resolver.apply(DnsWish(searches=("example.org",)), deadline())
    assert mounts(root) == before
    assert seen(root, "etc/resolv.conf") == "search example.org\n"


async def test_missing_in_a_root_that_takes_no_writes(root: Path, resolver: Resolver) -> None:
    """The sandbox starts: the files are written, and one line says what is not shown."""
    _read_only(root)
    state = await resolver.apply(WISH, deadline())
    assert len(state.warnings) == 1
    assert state.warnings[0].startswith("/etc/resolv.conf: ")
    assert "Read-only file system" in state.warnings[0]
    assert str(resolver.files.resolv_conf) in state.warnings[0]
    assert resolver.files.resolv_conf.read_text() == WRITTEN
    assert mounts(root) == ["etc/hostname", "etc/hosts"]


async def test_there_in_a_root_that_takes_no_writes(root: Path, resolver: Resolver) -> None:
    (root / "etc/resolv.conf").touch()
    _read_only(root)
    state = await resolver.apply(WISH, deadline())
    assert state.warnings == ()
    assert seen(root, "etc/resolv.conf") == WRITTEN


@pytest.mark.parametrize(
    "link", ["/run/resolve/stub-resolv.conf", "../run/resolve/stub-resolv.conf"]
)
async def test_a_link_that_leads_nowhere(root: Path, resolver: Resolver, link: str) -> None:
    """systemd-resolved's, without systemd: made where it leads, inside that root."""
    (root / "etc/resolv.conf").symlink_to(link)
    state = await resolver.apply(WISH, deadline())
    assert state.warnings == ()
    assert (root / "etc/resolv.conf").is_symlink()
    assert seen(root, "run/resolve/stub-resolv.conf") == WRITTEN
    assert "run/resolve/stub-resolv.conf" in mounts(root)


async def test_a_link_that_leads_nowhere_and_no_writes(root: Path, resolver: Resolver) -> None:
    (root / "etc/resolv.conf").symlink_to("/run/resolve/stub-resolv.conf")
    _read_only(root)
    state = await resolver.apply(WISH, deadline())
    assert [line.partition(":")[0] for line in state.warnings] == ["/etc/resolv.conf"]
    assert resolver.files.resolv_conf.read_text() == WRITTEN


async def test_a_link_out_of_the_root_stays_inside(
    root: Path, resolver: Resolver, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    (root / "etc/resolv.conf").symlink_to(outside)
    state = await resolver.apply(WISH, deadline())
    assert state.warnings == ()
    assert outside.read_text() == "mine\n"
    assert seen(root, str(outside).lstrip("/")) == WRITTEN


async def test_a_directory_in_its_place(root: Path, resolver: Resolver) -> None:
    (root / "etc/resolv.conf").mkdir()
    state = await resolver.apply(WISH, deadline())
    assert [line.partition(":")[0] for line in state.warnings] == ["/etc/resolv.conf"]
    assert seen(root, "etc/hostname") == "web\n"


async def test_a_link_to_the_file_itself_needs_no_mount(root: Path, workers: FileWorkers) -> None:
    """Our own image's."""
    (root / "etc/resolv.conf").symlink_to("../run/innkeeper/network/resolv.conf")
    resolver = made(root, root / "run/innkeeper", workers)
    state = await resolver.apply(WISH, deadline())
    assert state.warnings == ()
    assert mounts(root) == ["etc/hostname", "etc/hosts"]
    assert (root / "etc/resolv.conf").read_text() == WRITTEN


async def test_a_new_agent_shows_them_again(
    root: Path, run: Path, resolver: Resolver, workers: FileWorkers
) -> None:
    await resolver.apply(WISH, deadline())
    before = mounts(root)
    mounting.unmount(str(root / "etc/hosts"), UnmountFlag.DETACH)
    again = made(root, run, workers)
    await again.restore()
    assert mounts(root) == before
    assert "127.0.1.1 web\n" in seen(root, "etc/hosts")


async def test_afterwards_etc_is_the_guests_own(root: Path, resolver: Resolver) -> None:
    (root / "etc/resolv.conf").write_text("nameserver 198.51.100.1\n")
    await resolver.apply(WISH, deadline())
    await resolver.clear(deadline())
    assert mounts(root) == []
    assert seen(root, "etc/resolv.conf") == "nameserver 198.51.100.1\n"


async def test_who_bound_a_file_sees_the_next_change(root: Path, resolver: Resolver) -> None:
    """As containers do."""
    await resolver.apply(WISH, deadline())
    target = root / "container"
    target.touch()
    mounting.mount(str(resolver.files.resolv_conf), str(target), None, MountFlag.BIND)
    for wish, text in ((DnsWish(), ""), (WISH, WRITTEN)):
        await resolver.apply(wish, deadline())
        assert seen(root, "container") == text


def _read_only(root: Path) -> None:
    mounting.mount(None, str(root), None, MountFlag.REMOUNT | MountFlag.RDONLY)

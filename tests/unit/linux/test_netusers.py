"""Where network namespaces are looked for; entering them needs root (tests/privileged)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.linux import netusers, procs, statx
from agent.linux.mounting import parse_mountinfo
from tests.fakes.procs import FakeProc
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

OWN = 4026531840


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def places(proc: FakeProc) -> netusers.Places:
    return netusers.Places(str(proc.path), procs.processes(str(proc.path)))


def test_namespaces_of_processes(proc: FakeProc) -> None:
    for pid in (1, 2):
        proc.process(pid)
    link = proc.process(60) / "ns/net"
    link.unlink()
    link.symlink_to("net:[4026532281]")
    found = places(proc).found
    assert set(found) == {OWN, 4026532281}
    assert found[OWN].process.pid == 1


def test_a_namespace_that_a_mount_keeps(proc: FakeProc) -> None:
    """As `ip netns add` leaves it; one of another kind is not a network."""
    directory = proc.process(60)
    lines = (
        "90 70 0:4 net:[4026532290] /run/netns/blue rw shared:9 - nsfs nsfs rw",
        "91 70 0:4 mnt:[4026532291] /run/mnt rw - nsfs nsfs rw",
    )
    found = places(proc)
    (process,) = procs.processes(str(proc.path))
    found.note_mounts(process, parse_mountinfo("\n".join(lines)))
    place = found.found[4026532290]
    assert (place.link, place.mount_point) == (f"{directory}/root", "/run/netns/blue")
    assert 4026532291 not in found.found


def test_a_namespace_that_a_descriptor_keeps() -> None:
    """Its link in proc need not say `net:`: it names the mount that it was opened by."""
    me = procs.Process(1, "/proc/self")
    found = netusers.Places("/proc", [])
    link = "/proc/self/ns/net"
    facts = statx.facts(link)
    found.note_file(procs.OpenFile(me, "/dev/null"), statx.facts("/dev/null"))
    assert found.found == {}
    found.note_file(procs.OpenFile(me, link), facts)
    assert found.found[facts.inode].link == link


def test_interfaces_below_a_function_and_not_of_those_behind_it(tmp_path: Path) -> None:
    """An empty `net` directory is what is left of an interface that has moved away."""
    sysfs = FakeSysfs(tmp_path)
    port = sysfs.port_with_slot()
    function = sysfs.function(port, "0000:01:00.0")
    virtio = sysfs.virtio(function, "virtio3", driver="virtio_net")
    (virtio / "net").mkdir()
    (function / "net").mkdir()
    assert list(netusers._net_directories(str(function), 8)) == [
        f"{function}/net",
        f"{virtio}/net",
    ]
    assert list(netusers._net_directories(str(port), 8)) == []


def test_something_else_in_the_place_of_a_namespace(tmp_path: Path) -> None:
    """Whoever owns the place may have put a FIFO there: it is not opened."""
    place = netusers.Place(procs.Process(1, "/proc/self"), "/dev/null")
    identity = ((0, 4), OWN)
    opened = netusers._opened("/proc", identity, place)
    with pytest.raises(FileNotFoundError, match="not at"):
        opened.__enter__()

"""Disks that this machine has, found through the real sysfs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.events import EventLog
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.kinds import BlockExpectation
from agent.core.model import DeviceRequest
from agent.core.pci import Bdf, parse_address
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.core.tree import SysfsTree
from agent.handlers.devices.manager import DeviceManager
from agent.linux.uevents import KernelUevents
from tests.fakes.devices import disk_of

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.devices,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: asks the disk for its size"),
]


@pytest.fixture
async def devices(tmp_path: Path) -> AsyncIterator[DeviceManager]:
    files = FileWorkers()
    tree = SysfsTree(roots=Roots(run=tmp_path))
    board = HotplugBoard(tree=tree, source=KernelUevents(), files=files)
    board.start()
    state = StateStore(tmp_path / "state")
    made = DeviceManager(board=board, state=state, events=EventLog(state))
    yield made
    await made.close()
    board.close()
    await files.close()


@pytest.fixture(scope="module")
def disk() -> Path:
    """The sysfs directory of a disk behind a PCI function."""
    for link in sorted(Path("/sys/class/block").iterdir()):
        path = link.resolve()
        if "/pci" in str(path) and not (path / "partition").exists():
            return path
    pytest.skip("no disk behind a PCI function on this machine")


def bdf_of(disk: Path) -> str:
    return [part for part in disk.parts if Bdf.is_name(part)][-1]


def request(address: str, device_id: str = "d1", **expected: object) -> DeviceRequest:
    kind = BlockExpectation(**expected)  # type: ignore[arg-type]
    return DeviceRequest(id=device_id, address=parse_address(address), kind=kind, timeout=20.0)


def kibibytes(disk: Path) -> int:
    """The size by another witness; proc counts in blocks of 1024 bytes."""
    lines = [line.split() for line in Path("/proc/partitions").read_text().splitlines()]
    return next(int(line[2]) for line in lines if line[3:] == [disk.name])


async def test_a_disk_of_this_machine_in_both_forms(devices: DeviceManager, disk: Path) -> None:
    by_bdf = await devices.attach(request(bdf_of(disk)))
    node = by_bdf.nodes[0]
    assert node.path == f"/dev/{disk.name}"
    status = os.stat(node.path)
    assert (node.major, node.minor) == (os.major(status.st_rdev), os.minor(status.st_rdev))
    assert disk_of(by_bdf).size // 1024 == kibibytes(disk)
    assert by_bdf.sysfs_path in str(disk)
    await devices.forget("d1")
    by_path = await devices.attach(request(str(by_bdf.pci_path)))
    assert (by_path.bdf, by_path.nodes) == (by_bdf.bdf, by_bdf.nodes)
    await devices.forget("d1")
    told = disk_of(by_path)
    exact = request(by_path.bdf, serial=told.serial, size=told.size)
    assert (await devices.attach(exact)).info == by_path.info


async def test_a_disk_of_another_size(devices: DeviceManager, disk: Path) -> None:
    attach = devices.attach(request(bdf_of(disk), size=12345))
    with pytest.raises(AgentError, match="not 12345") as caught:
        await attach
    assert caught.value.reason is Reason.UNEXPECTED_DEVICE


async def test_a_disk_that_does_not_leave(devices: DeviceManager, disk: Path) -> None:
    await devices.attach(request(bdf_of(disk)))
    with pytest.raises(AgentError, match="sysfs still has") as caught:
        await devices.detach("d1", 0.2)
    assert caught.value.reason is Reason.DEVICE_STILL_PRESENT


async def test_nothing_at_an_address(devices: DeviceManager) -> None:
    with pytest.raises(AgentError, match="the root bus") as caught:
        await devices.attach(replace(request("1d.7"), timeout=0.5))
    assert caught.value.reason is Reason.DEVICE_NOT_READY

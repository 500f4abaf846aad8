"""A disk that grows while it is attached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.kinds import BlockInfo
from tests.fakes.devices import DeviceBench, device_bench, request
from tests.fakes.hotplug import turns

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DeviceBench]:
    async with device_bench(tmp_path, relooks=()) as made:
        yield made


def size(lab: DeviceBench) -> int:
    info = lab.devices.get("disk").info
    assert isinstance(info, BlockInfo)
    return info.size


async def test_the_new_size_is_answered_and_saved(lab: DeviceBench) -> None:
    """Sizes in sysfs are sectors of 512 bytes whatever the disk's blocks are (sysfs-block)."""
    port = lab.sysfs.port_with_slot("02", "02")
    function = lab.sysfs.virtio_disk(port, "0000:02:00.0", "vdb")
    await lab.devices.attach(request("disk", "02/00"))
    (disk,) = function.glob("virtio*/block/vdb")
    (disk / "size").write_text("8192\n")
    assert size(lab) != 8192 * 512
    path = str(disk).removeprefix(str(lab.sysfs.roots.sys))
    lab.guest.kernel.send("change", path, "block", DEVNAME="vdb")
    await turns()
    assert size(lab) != 8192 * 512, "a change of something else"
    lab.guest.kernel.send("change", path, "block", DEVNAME="vdb", RESIZE="1")
    await turns()
    assert size(lab) == 8192 * 512
    saved = lab.state.load("devices", "disk")
    assert saved is not None
    assert saved["device"]["info"]["size"] == 8192 * 512


async def test_a_disk_of_nobody_changes_nothing(lab: DeviceBench) -> None:
    lab.guest.kernel.send("change", "/devices/x/block/vdz", "block", DEVNAME="vdz", RESIZE="1")
    await turns()
    assert lab.devices.list() == ()

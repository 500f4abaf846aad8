"""The fake machine does what Linux 6.12 was seen to do in a guest."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.fakes.hotplug import bench, turns
from tests.fakes.machine import FakeMachine

pytestmark = [pytest.mark.unit, pytest.mark.devices]


async def test_it_answers_as_the_kernel_does(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        machine = FakeMachine(guest.sysfs, guest.kernel, cpus=2)
        block = guest.sysfs.sys / "devices/system/memory/memory32/state"
        machine.add_block(32)
        machine.write(block, "online_movable")
        assert machine.blocks() == {0, 1, 2, 3, 32}
        with pytest.raises(OSError, match="Invalid argument"):
            machine.write(block, "online")
        machine.write(block, "offline")
        assert machine.blocks("offline") == {32}
        machine.write(guest.sysfs.sys / "devices/system/cpu/cpu1/online", "0")
        assert machine.online == {0}
        with pytest.raises(FileNotFoundError):
            machine.write(guest.sysfs.sys / "devices/system/cpu/cpu0/online", "0")
        machine.refusals["memory3"] = errno.EBUSY
        with pytest.raises(OSError, match="busy"):
            machine.write(guest.sysfs.sys / "devices/system/memory/memory3/state", "offline")


async def test_it_tells_what_it_does_by_events(tmp_path: Path) -> None:
    async with bench(tmp_path) as guest:
        machine = FakeMachine(guest.sysfs, guest.kernel)
        await turns()
        with guest.board.watch() as watch:
            machine.add_cpu(3)
            machine.write(guest.sysfs.sys / "devices/system/cpu/cpu3/online", "1")
            machine.add_block(32)
            machine.remove_cpu(3)
            await turns()
            assert list(watch.seen) == [
                "add cpu /devices/system/cpu/cpu3",
                "online cpu /devices/system/cpu/cpu3",
                "add memory /devices/system/memory/memory32",
                "offline cpu /devices/system/cpu/cpu3",
                "remove cpu /devices/system/cpu/cpu3",
            ]
        assert machine.online == {0}

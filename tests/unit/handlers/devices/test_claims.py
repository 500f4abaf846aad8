"""A device whose driver or source is changed is changed for one id alone, by whatever address
others ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.pci import parse_address
from agent.handlers.devices.block import BlockDevices
from tests.fakes.devices import DeviceBench, device_bench, request
from tests.fakes.hotplug import turns
from tests.unit.handlers.devices.test_half_way import BDF, WANTED, Changing
from tests.unit.handlers.devices.test_manager import plug

pytestmark = [pytest.mark.unit, pytest.mark.devices]

BY_NUMBER = replace(WANTED, id="other", address=parse_address(BDF))


@pytest.fixture
def changing() -> Changing:
    return Changing()


@pytest.fixture
async def lab(tmp_path: Path, changing: Changing) -> AsyncIterator[DeviceBench]:
    async with device_bench(tmp_path, classes=(changing, BlockDevices())) as made:
        yield made


async def refused(awaitable: object) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable  # type: ignore[misc]
    assert caught.value.reason is Reason.ADDRESS_IN_USE, caught.value
    return caught.value


async def test_the_second_of_two_at_once_changes_nothing(
    lab: DeviceBench, changing: Changing
) -> None:
    """By its path and by its number: the refused one took back, once, what the other had."""
    plug(lab)
    changing.stuck = True
    first = asyncio.ensure_future(lab.devices.attach(WANTED))
    await turns()
    error = await refused(lab.devices.attach(BY_NUMBER))
    assert error.fields["id"] == "d"
    assert changing.changed
    first.cancel()
    await asyncio.wait([first])
    changing.stuck = False
    await lab.devices.attach(BY_NUMBER)


async def test_who_changes_nothing_does_not_get_what_another_is_changing(
    lab: DeviceBench, changing: Changing
) -> None:
    """A disk that is found just before its function gets another driver."""
    plug(lab)
    changing.stuck = True
    first = asyncio.ensure_future(lab.devices.attach(WANTED))
    await turns()
    error = await refused(lab.devices.attach(request("disk", BDF)))
    assert error.fields["id"] == "d"
    first.cancel()
    await asyncio.wait([first])
    await lab.devices.attach(request("disk", BDF))


async def test_a_function_is_not_changed_under_a_disk_behind_it(
    lab: DeviceBench, changing: Changing
) -> None:
    """The disk was attached by its node: unbinding its driver would take it from its users."""
    function = plug(lab)
    lab.sysfs.link(lab.sysfs.sys / "dev/block/254:16", str(function / "virtio_vdb/block/vdb"))
    await lab.devices.attach(request("disk", "/dev/vdb"))
    error = await refused(lab.devices.attach(WANTED))
    assert (error.fields["id"], changing.changed) == ("disk", False)
    await lab.devices.release_device("disk")
    await lab.devices.attach(WANTED)

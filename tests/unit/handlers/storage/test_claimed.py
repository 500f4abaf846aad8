"""A disk that a storage attaches itself, by its address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.pci import PciPath
from agent.core.sources import BlockSource
from tests.fakes.devices import request
from tests.fakes.fault_bench import FaultBench, fault_bench
from tests.fakes.storages import made_from

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FaultBench]:
    """With a disk at 02/00 and one at 03/00 that nobody has attached."""
    async with fault_bench(tmp_path, monkeypatch) as made:
        await made.lab.devices.forget("disk")
        yield made


def at(address: str) -> BlockSource:
    return BlockSource(fs_type="ext4", address=PciPath.parse(address))


async def test_it_is_held_and_forgotten_with_the_storage(lab: FaultBench) -> None:
    before = lab.traces()
    await lab.storages.attach(made_from(at("03/00"), "data"))
    assert lab.lab.devices.get("storage.data").users == {"storage data"}
    await lab.storages.detach("data")
    assert lab.traces() == before


async def test_a_device_of_that_name_is_somebody_elses(lab: FaultBench) -> None:
    await lab.lab.devices.attach(request("storage.data", "03/00"))
    before = lab.traces()
    for address in ("02/00", "03/00"):
        with pytest.raises(AgentError) as caught:
            await lab.storages.attach(made_from(at(address), "data"))
        assert caught.value.reason is Reason.ID_IN_USE
        assert lab.traces() == before


async def test_a_disk_that_is_attached_already(lab: FaultBench) -> None:
    await lab.lab.devices.attach(request("mine", "03/00"))
    before = lab.traces()
    with pytest.raises(AgentError) as caught:
        await lab.storages.attach(made_from(at("03/00"), "data"))
    assert caught.value.reason is Reason.ADDRESS_IN_USE
    assert lab.traces() == before


async def test_long_ids_that_begin_the_same(lab: FaultBench) -> None:
    """Ids have up to 64 characters, that of the device too."""
    before = lab.traces()
    names = ["x" * 63 + end for end in "ab"]
    for name, address in zip(names, ("02/00", "03/00"), strict=True):
        await lab.storages.attach(made_from(at(address), name))
    assert len({device.request.id for device in lab.lab.devices.list()}) == 2
    for name in names:
        await lab.storages.detach(name)
    assert lab.traces() == before

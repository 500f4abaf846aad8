"""Operations on mounted storages over the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from agent.core.errors import Reason, wrong_state
from agent.core.model import Detached
from agent.handlers.storage.growing import ResizedStorage
from agent.handlers.storage.health import Health, StorageStats
from innkeeper.v1 import storages_pb2 as pb
from innkeeper.v1.storages_pb2_grpc import StoragesStub
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from innkeeper.v1.storages_pb2_grpc import StoragesAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.storage]


@pytest.fixture
async def stub(agent: RunningAgent) -> StoragesAsyncStub:
    """With a storage `data` attached."""
    made: StoragesAsyncStub = StoragesStub(agent.channel)
    block = pb.BlockSource(device_id="d1", fs_type="ext4")
    await made.Attach(pb.AttachStorageRequest(storage=pb.Storage(id="data", block=block)))
    return made


async def test_stats_are_told_as_they_are(agent: RunningAgent, stub: StoragesAsyncStub) -> None:
    agent.storage_operations.answer = StorageStats(
        health=Health.GOOD,
        size=1 << 40,
        used=3,
        available=5,
        inodes=7,
        inodes_used=11,
        inodes_free=13,
    )
    stats = await stub.Stats(pb.StorageStatsRequest(id="data"))
    assert stats == pb.StorageStatsResponse(
        size=1 << 40,
        used=3,
        available=5,
        inodes=7,
        inodes_used=11,
        inodes_free=13,
        health=pb.STORAGE_HEALTH_GOOD,
    )


@pytest.mark.parametrize(
    ("health", "told"),
    [
        (Health.READ_ONLY, pb.STORAGE_HEALTH_READ_ONLY),
        (Health.STALLED, pb.STORAGE_HEALTH_STALLED),
        (Health.LOST, pb.STORAGE_HEALTH_LOST),
    ],
)
async def test_a_sick_storage_is_an_answer_and_not_an_error(
    agent: RunningAgent,
    stub: StoragesAsyncStub,
    health: Health,
    told: pb.StorageHealth.ValueType,
) -> None:
    agent.storage_operations.answer = StorageStats(health=health, detail="why")
    stats = await stub.Stats(pb.StorageStatsRequest(id="data"))
    assert (stats.health, stats.detail, stats.size) == (told, "why", 0)


async def test_a_resize_tells_before_after_and_the_device(
    agent: RunningAgent, stub: StoragesAsyncStub
) -> None:
    agent.storage_operations.resized = ResizedStorage(before=1, size=2, device_size=3)
    answer = await stub.Resize(pb.ResizeStorageRequest(id="data"))
    assert (answer.before, answer.size, answer.device_size) == (1, 2, 3)


async def test_a_refusal_keeps_its_reason(agent: RunningAgent, stub: StoragesAsyncStub) -> None:
    agent.storage_operations.error = wrong_state("no", reason=Reason.RESIZE_REFUSED)
    answer = await refused(stub.Resize(pb.ResizeStorageRequest(id="data")))
    assert answer.code is grpc.StatusCode.FAILED_PRECONDITION
    assert answer.reason == "RESIZE_REFUSED"


async def test_trim_tells_what_was_given_back(agent: RunningAgent, stub: StoragesAsyncStub) -> None:
    agent.storage_operations.trimmed = 1 << 33
    assert (await stub.Trim(pb.TrimStorageRequest(id="data"))).trimmed == 1 << 33


async def test_a_frozen_storage_shows_it_until_it_is_thawed(
    agent: RunningAgent, stub: StoragesAsyncStub
) -> None:
    await stub.Freeze(pb.FreezeStorageRequest(id="data", timeout_seconds=2.5))
    assert agent.storage_operations.frozen_for == {"data": 2.5}
    assert (await stub.Get(pb.GetStorageRequest(id="data"))).frozen
    (listed,) = (await stub.List(pb.ListStoragesRequest())).storages
    assert listed.frozen
    await stub.Thaw(pb.ThawStorageRequest(id="data"))
    assert not (await stub.Get(pb.GetStorageRequest(id="data"))).frozen


async def test_without_a_time_the_agent_chooses_how_long_it_lasts(
    agent: RunningAgent, stub: StoragesAsyncStub
) -> None:
    await stub.Freeze(pb.FreezeStorageRequest(id="data"))
    assert agent.storage_operations.frozen_for == {"data": None}


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
async def test_a_time_that_is_none_is_a_bad_field(
    agent: RunningAgent, stub: StoragesAsyncStub, seconds: float
) -> None:
    answer = await refused(stub.Freeze(pb.FreezeStorageRequest(id="data", timeout_seconds=seconds)))
    assert (answer.reason, answer.fields["field"]) == ("BAD_FIELD", "timeout_seconds")
    assert agent.storage_operations.frozen_for == {}


async def test_the_calls_own_deadline_bounds_the_operation(
    agent: RunningAgent, stub: StoragesAsyncStub
) -> None:
    """A look is short in any case; a trim may take what its caller gives it."""
    await stub.Stats(pb.StorageStatsRequest(id="data"), timeout=3)
    await stub.Stats(pb.StorageStatsRequest(id="data"), timeout=1000)
    await stub.Trim(pb.TrimStorageRequest(id="data"), timeout=500)
    hurried, patient, trim = agent.storage_operations.left
    assert hurried < 3
    assert patient <= 5
    assert 300 < trim < 600


async def test_refresh_says_whether_there_was_anything_new(
    agent: RunningAgent, stub: StoragesAsyncStub
) -> None:
    assert not (await stub.Refresh(pb.RefreshStorageRequest(id="data"))).changed
    agent.storages.news = True
    assert (await stub.Refresh(pb.RefreshStorageRequest(id="data"))).changed
    assert agent.storages.refreshed == ["data", "data"]


async def test_detach_tells_what_is_left(agent: RunningAgent, stub: StoragesAsyncStub) -> None:
    agent.storages.went = replace(Detached(), lazily=True, left=("a mapping: busy",))
    answer = await stub.Detach(pb.DetachStorageRequest(id="data"))
    assert (answer.lazily, list(answer.left)) == (True, ["a mapping: busy"])


async def test_bad_ids_are_refused_by_every_operation(
    agent: RunningAgent, stub: StoragesAsyncStub
) -> None:
    answers = [
        await refused(stub.Stats(pb.StorageStatsRequest(id="../x"))),
        await refused(stub.Resize(pb.ResizeStorageRequest(id="../x"))),
        await refused(stub.Trim(pb.TrimStorageRequest(id="../x"))),
        await refused(stub.Freeze(pb.FreezeStorageRequest(id="../x"))),
        await refused(stub.Thaw(pb.ThawStorageRequest(id="../x"))),
        await refused(stub.Refresh(pb.RefreshStorageRequest(id="../x"))),
    ]
    assert {one.reason for one in answers} == {"BAD_ID"}
    assert agent.storage_operations.asked == []

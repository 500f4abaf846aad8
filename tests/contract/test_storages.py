"""innkeeper.v1.Storages over the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from innkeeper.v1 import storages_pb2 as pb
from innkeeper.v1.storages_pb2_grpc import StoragesStub
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from innkeeper.v1.storages_pb2_grpc import StoragesAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.storage]


@pytest.fixture
def stub(agent: RunningAgent) -> StoragesAsyncStub:
    return StoragesStub(agent.channel)


def ext4(storage_id: str = "data", **members: object) -> pb.Storage:
    storage = pb.Storage(id=storage_id, block=pb.BlockSource(device_id="d1", fs_type="ext4"))
    for name, value in members.items():
        setattr(storage, name, value)
    return storage


def attaching(storage: pb.Storage) -> pb.AttachStorageRequest:
    return pb.AttachStorageRequest(storage=storage)


async def test_a_mounted_storage_is_answered_with_its_place(
    agent: RunningAgent, stub: StoragesAsyncStub
) -> None:
    asked = ext4(read_only=True)
    asked.options.extend(["noatime,nodev", "nosuid"])
    mounted = await stub.Attach(attaching(asked))
    assert mounted.mount_point == "/run/innkeeper/storages/data"
    assert mounted.storage == asked
    assert await stub.Get(pb.GetStorageRequest(id="data")) == mounted
    assert list((await stub.List(pb.ListStoragesRequest())).storages) == [mounted]
    assert agent.storages.table["data"].request.options == ("noatime,nodev", "nosuid")


async def test_the_same_request_twice_and_another_one(stub: StoragesAsyncStub) -> None:
    first = await stub.Attach(attaching(ext4()))
    assert await stub.Attach(attaching(ext4())) == first
    answer = await refused(stub.Attach(attaching(ext4(read_only=True))))
    assert (answer.code, answer.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")


async def test_detach_names_who_holds_it(agent: RunningAgent, stub: StoragesAsyncStub) -> None:
    await stub.Attach(attaching(ext4()))
    held = replace(agent.storages.table["data"], users=frozenset({"web"}))
    agent.storages.table["data"] = held
    answer = await refused(stub.Detach(pb.DetachStorageRequest(id="data")))
    assert (answer.code, answer.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    assert answer.fields["users"] == "web"
    assert list((await stub.Get(pb.GetStorageRequest(id="data"))).users) == ["web"]
    agent.storages.table["data"] = replace(held, users=frozenset())
    await stub.Detach(pb.DetachStorageRequest(id="data"))
    assert not (await stub.List(pb.ListStoragesRequest())).storages


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        (ext4("/etc"), "BAD_ID"),
        (ext4(mount_point="mnt/data"), "BAD_FIELD"),
        (ext4(mount_point="/mnt/a\0b"), "BAD_FIELD"),
        (ext4(timeout_seconds=float("inf")), "BAD_FIELD"),
        (pb.Storage(id="data"), "BAD_FIELD"),
        (pb.Storage(id="data", block=pb.BlockSource(device_id="d1")), "BAD_FIELD"),
        (pb.Storage(id="data", block=pb.BlockSource(device_id="", fs_type="ext4")), "BAD_ID"),
        (pb.Storage(id="data", options=["a\0b"], block=ext4().block), "BAD_FIELD"),
    ],
)
async def test_bad_input_is_named_and_changes_nothing(
    agent: RunningAgent, stub: StoragesAsyncStub, storage: pb.Storage, reason: str
) -> None:
    answer = await refused(stub.Attach(attaching(storage)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert agent.storages.table == {}


async def test_a_request_without_a_storage_is_a_bad_field(stub: StoragesAsyncStub) -> None:
    answer = await refused(stub.Attach(pb.AttachStorageRequest()))
    assert (answer.reason, answer.fields["field"]) == ("BAD_FIELD", "storage")


@pytest.mark.parametrize(
    "source",
    [
        field.name
        for field in pb.Storage.DESCRIPTOR.oneofs_by_name["source"].fields
        if field.name != "block"
    ],
)
async def test_a_source_that_is_not_built_is_unimplemented_by_name(
    stub: StoragesAsyncStub, source: str
) -> None:
    storage = pb.Storage(id="data")
    getattr(storage, source).SetInParent()
    answer = await refused(stub.Attach(attaching(storage)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.UNIMPLEMENTED, "NOT_BUILT_YET")
    assert source in answer.message


@pytest.mark.parametrize(
    ("field", "block"),
    [
        ("format_if_empty", pb.BlockSource(format_if_empty=True)),
        ("partition", pb.BlockSource(partition=1)),
        ("partition_label", pb.BlockSource(partition_label="root")),
        ("verity", pb.BlockSource(verity=pb.Verity(root_hash="00"))),
    ],
)
async def test_a_field_that_is_not_built_is_not_ignored(
    stub: StoragesAsyncStub, field: str, block: pb.BlockSource
) -> None:
    storage = ext4()
    storage.block.MergeFrom(block)
    answer = await refused(stub.Attach(attaching(storage)))
    assert answer.reason == "NOT_BUILT_YET"
    assert f"storage.block.{field}" in answer.message


async def test_a_group_is_not_ignored(stub: StoragesAsyncStub) -> None:
    answer = await refused(stub.Attach(attaching(ext4(fs_group=1000))))
    assert answer.reason == "NOT_BUILT_YET"


async def test_unknown_and_bad_ids(stub: StoragesAsyncStub) -> None:
    unknown = [
        await refused(stub.Get(pb.GetStorageRequest(id="x"))),
        await refused(stub.Detach(pb.DetachStorageRequest(id="x"))),
    ]
    assert {one.reason for one in unknown} == {"UNKNOWN_STORAGE"}
    bad = [
        await refused(stub.Get(pb.GetStorageRequest(id=".."))),
        await refused(stub.Detach(pb.DetachStorageRequest(id=".."))),
    ]
    assert {one.reason for one in bad} == {"BAD_ID"}


async def test_the_calls_own_deadline_bounds_the_mount(
    agent: RunningAgent, stub: StoragesAsyncStub
) -> None:
    await stub.Attach(attaching(ext4("a")), timeout=4)
    await stub.Attach(attaching(ext4("b", timeout_seconds=2)), timeout=60)
    bounded, asked = agent.storages.timeouts
    assert bounded is not None
    assert bounded < 4
    assert asked == 2

"""innkeeper.v1.Storages over the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from agent.core import sources
from agent.core.model import Detached, FsGroup, FsGroupPolicy
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import storages_pb2 as pb
from innkeeper.v1.storages_pb2_grpc import StoragesStub
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from google.protobuf.message import Message

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
        (pb.Storage(id="data", block=pb.BlockSource(device_id="/", fs_type="ext4")), "BAD_ID"),
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


PLACE = pb.StorageDirectory(storage_id="base", path="a/b")
DISK = devices.DeviceAddress(pci_path="02/00")
SOURCES: dict[str, Message] = {
    "block": pb.BlockSource(
        address=DISK,
        fs_type="ext4",
        partition=2,
        format_if_empty=True,
        crypt=pb.Crypt(cipher="aes-xts-plain64", sector_size=4096, offset=1024),
    ),
    "virtiofs": pb.VirtiofsSource(tag="share"),
    "nine_p": pb.NinePSource(tag="share", msize=65536),
    "tmpfs": pb.TmpfsSource(size=1 << 20, mode=0o1770),
    "hugetlb": pb.HugetlbSource(page_size=2 << 20, size=4 << 20),
    "bind": pb.BindSource(directory=PLACE, recursive=True),
    "overlay": pb.OverlaySource(lower=[PLACE, PLACE], upper=PLACE, work=PLACE),
    "nfs": pb.NfsSource(server="2001:db8::5", path="/x", version="4.2"),
    "cifs": pb.CifsSource(server="files", share="x", user="u", domain="d", version="3.1.1"),
    "ceph": pb.CephSource(monitors=["a", "b"], path="/p", user="u", file_system="fs"),
    "pmem": pb.PmemSource(device_id="d1", fs_type="xfs", dax=True),
    "local": pb.LocalSource(mode=0o750, storage_id="base"),
    "watched": pb.WatchedSource(path="/run/share/config", interval_seconds=0.5),
}
SECRETS: dict[str, tuple[str, str, bytes | str]] = {
    "block": ("crypt", "key", b"k3y"),
    "cifs": ("", "password", "pw"),
    "ceph": ("", "secret", "pw"),
}


def with_source(name: str) -> pb.Storage:
    storage = pb.Storage(id="data")
    getattr(storage, name).CopyFrom(SOURCES[name])
    return storage


def test_every_source_of_the_protocol_is_here() -> None:
    fields = pb.Storage.DESCRIPTOR.oneofs_by_name["source"].fields
    assert {field.name for field in fields} == set(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
async def test_a_source_comes_back_as_it_was_asked_for(
    stub: StoragesAsyncStub, agent: RunningAgent, name: str
) -> None:
    """But for what is secret in it."""
    asked = with_source(name)
    wanted = with_source(name)
    if secret := SECRETS.get(name):
        holder, member, value = secret
        message = getattr(asked, name)
        setattr(getattr(message, holder) if holder else message, member, value)
    mounted = await stub.Attach(attaching(asked))
    assert mounted.storage == wanted
    source = agent.storages.table["data"].request.source
    assert sources.from_data(sources.to_data(source)) == source
    assert "k3y" not in repr(source) + str(sources.to_data(source))
    assert "pw" not in repr(source) + str(sources.to_data(source))


@pytest.mark.parametrize("name", SECRETS)
async def test_the_same_request_is_the_same_without_its_secret(
    stub: StoragesAsyncStub, name: str
) -> None:
    asked = with_source(name)
    holder, member, value = SECRETS[name]
    message = getattr(asked, name)
    setattr(getattr(message, holder) if holder else message, member, value)
    first = await stub.Attach(attaching(asked))
    for other in (value * 2, value[:0]):
        setattr(getattr(message, holder) if holder else message, member, other)
        assert await stub.Attach(attaching(asked)) == first


def encrypted(**members: Any) -> pb.BlockSource:
    crypt = pb.Crypt(key=b"k", **members)
    return pb.BlockSource(device_id="d", fs_type="ext4", crypt=crypt)


VERITY = pb.Verity(root_hash="AB" * 32, salt="00ff", hash_offset=4096, hash_device_id="d2")


async def test_verity_and_its_second_device(stub: StoragesAsyncStub) -> None:
    block = pb.BlockSource(device_id="d1", fs_type="erofs", partition_label="r", verity=VERITY)
    mounted = await stub.Attach(attaching(pb.Storage(id="data", read_only=True, block=block)))
    assert mounted.storage.block.verity.root_hash == "ab" * 32
    assert mounted.storage.block.verity.hash_device_id == "d2"


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("block", pb.BlockSource(device_id="d", address=DISK, fs_type="ext4")),
        ("block", pb.BlockSource(fs_type="ext4")),
        ("block", pb.BlockSource(device_id="d", fs_type="ext4", partition=1, partition_label="x")),
        ("block", pb.BlockSource(device_id="d", fs_type="ext4", verity=pb.Verity())),
        ("block", pb.BlockSource(device_id="d", fs_type="ext4", verity=pb.Verity(root_hash="xy"))),
        (
            "block",
            pb.BlockSource(
                device_id="d",
                fs_type="ext4",
                verity=pb.Verity(root_hash="00", algorithm="sha256 1 restart_on_corruption"),
            ),
        ),
        ("block", pb.BlockSource(device_id="d", fs_type="ext4", crypt=pb.Crypt(key=b"k" * 257))),
        ("block", encrypted(offset=1)),
        ("block", encrypted(sector_size=3)),
        ("block", encrypted(cipher="a b")),
        ("virtiofs", pb.VirtiofsSource()),
        ("virtiofs", pb.VirtiofsSource(tag="x" * 37)),
        ("nine_p", pb.NinePSource()),
        ("tmpfs", pb.TmpfsSource(mode=0o20777)),
        ("bind", pb.BindSource()),
        ("bind", pb.BindSource(path="relative")),
        ("bind", pb.BindSource(path="/x", directory=PLACE)),
        ("overlay", pb.OverlaySource()),
        ("overlay", pb.OverlaySource(lower=[PLACE], work=PLACE)),
        ("nfs", pb.NfsSource(path="/x")),
        ("nfs", pb.NfsSource(server="s", path="x")),
        ("nfs", pb.NfsSource(server="s", path="/x", version="4,addr=1.2.3.4")),
        ("cifs", pb.CifsSource(server="s")),
        ("ceph", pb.CephSource()),
        ("watched", pb.WatchedSource()),
        ("watched", pb.WatchedSource(path="/x", interval_seconds=0.01)),
    ],
)
async def test_a_source_that_can_never_be(
    stub: StoragesAsyncStub, agent: RunningAgent, field: str, bad: Message
) -> None:
    storage = pb.Storage(id="data", read_only=True)
    getattr(storage, field).CopyFrom(bad)
    answer = await refused(stub.Attach(attaching(storage)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert agent.storages.table == {}


async def test_a_group_and_its_policy(stub: StoragesAsyncStub, agent: RunningAgent) -> None:
    asked = ext4(fs_group=1000, fs_group_policy=pb.FS_GROUP_POLICY_ON_ROOT_MISMATCH)
    assert (await stub.Attach(attaching(asked))).storage == asked
    group = FsGroup(gid=1000, policy=FsGroupPolicy.ON_ROOT_MISMATCH)
    assert agent.storages.table["data"].request.fs_group == group
    for bad in (ext4("x", fs_group=0xFFFFFFFF), ext4("x", fs_group=1, fs_group_policy=9)):
        assert (await refused(stub.Attach(attaching(bad)))).reason == "BAD_FIELD"


async def test_what_stays_of_a_storage_is_told(
    stub: StoragesAsyncStub, agent: RunningAgent
) -> None:
    await stub.Attach(attaching(ext4()))
    agent.storages.went = Detached(lazily=True, left=("the mapping x: busy",))
    answer = await stub.Detach(pb.DetachStorageRequest(id="data"))
    assert answer == pb.DetachStorageResponse(lazily=True, left=["the mapping x: busy"])


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


@pytest.mark.parametrize(
    ("storage", "field"),
    [
        (pb.Storage(tmpfs=pb.TmpfsSource(), options=["rw," * 30_000]), "storage.options"),
        (pb.Storage(tmpfs=pb.TmpfsSource(), options=["rw"] * 2_000), "storage.options"),
        (
            pb.Storage(overlay=pb.OverlaySource(lower=[pb.StorageDirectory(storage_id="a")] * 501)),
            "storage.overlay.lower",
        ),
        (pb.Storage(ceph=pb.CephSource(monitors=["10.0.0.1"] * 300)), "storage.ceph.monitors"),
        (pb.Storage(bind=pb.BindSource(path="/" + "x" * 4095)), "storage.bind.path"),
        (pb.Storage(nfs=pb.NfsSource(server="a", path="/" + "x" * 4095)), "storage.nfs.path"),
        (
            pb.Storage(tmpfs=pb.TmpfsSource(), mount_point="/" + "\xe4" * 2048),
            "storage.mount_point",
        ),
        (
            pb.Storage(block=pb.BlockSource(device_id="d", fs_type="x" * 256)),
            "storage.block.fs_type",
        ),
    ],
)
async def test_what_no_kernel_takes_is_refused_before_it_is_worked_on(
    stub: StoragesAsyncStub, agent: RunningAgent, storage: pb.Storage, field: str
) -> None:
    """A message may have 16 MiB: to look at each letter takes a minute, and all wait for it."""
    storage.id = "data"
    answer = await refused(stub.Attach(attaching(storage)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert answer.fields["field"] == field
    assert agent.storages.table == {}

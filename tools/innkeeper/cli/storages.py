"""Storages of a VM: what the commands ask of daemon and guest, and how it is shown."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import typer
from google.protobuf import json_format

from innkeeper.cli import output, sources
from innkeeper.cli.disk import made_of
from innkeeper.cli.errors import CliError, explain
from innkeeper.cli.options import existing_file
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.share import LONGEST_TAG
from innkeeper.v1 import host_pb2, storages_pb2, storages_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from innkeeper.cli.sources import Words
    from innkeeper.shim.client import Vm

COLUMNS = ("ID", "TYPE", "SOURCE", "MOUNTED AT", "STATE", "USED BY")
STATS_COLUMNS = ("ID", "SIZE", "USED", "AVAIL", "INODES", "IUSED", "HEALTH", "DETAIL")

# What is plugged in for a storage is told from what somebody attached by its name.
_OWN = (".disk", ".share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A storage, and what has to be plugged in for it first."""

    storage: storages_pb2.Storage
    hardware: host_pb2.Hardware | None = None
    device_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the guest says of each storage: figures, or why there are none."""

    figures: list[tuple[str, storages_pb2.StorageStatsResponse]] = field(default_factory=list)
    refused: list[tuple[str, grpc.RpcError]] = field(default_factory=list)


def wanted(storage_id: str, words: Words) -> Wanted:
    """What the options of `storage attach` ask for. Raises typer.BadParameter."""
    storage = sources.storage_of(storage_id, words)
    match sources.kind_of(words):
        case "disk":
            file = _image_file(words["disk"])
            return disk_of(storage, str(file), words.get("disk_format", "raw"))
        case "from_":
            # It is kept for others too, which read it at the same time.
            storage.read_only = True
            with output.busy(f"making a disk of {words['from_']}"):
                made = made_of(words["from_"], storage.block.fs_type, writable=False)
            return disk_of(storage, str(made))
        case "share":
            return share_of(storage, words["share"])
        case _:
            return Wanted(storage=storage)


def _image_file(text: str) -> Path:
    """Raises typer.BadParameter. None is made here: a name that is mistyped would be a
    new disk, and the data would seem lost."""
    if not Path(text).exists():
        raise typer.BadParameter(
            f"{text}: no such file; a new one is made with: truncate -s 1G {text}"
        )
    return existing_file(text)


def disk_of(storage: storages_pb2.Storage, file: str, format_: str = "raw") -> Wanted:
    device_id = f"{storage.id}.disk"
    storage.block.device_id = device_id
    content = host_pb2.DiskFile(file=file, format=format_, read_only=storage.read_only)
    hardware = host_pb2.Hardware(disk=host_pb2.Disk(content=content))
    return Wanted(storage=storage, hardware=hardware, device_id=device_id)


def share_of(storage: storages_pb2.Storage, directory: str) -> Wanted:
    """Raises typer.BadParameter."""
    path = existing_file(directory)
    if not path.is_dir():
        raise typer.BadParameter(f"{directory}: is no directory")
    storage.virtiofs.tag = _tag(storage.id)
    share = host_pb2.Share(
        directory=str(path.resolve()), tag=storage.virtiofs.tag, read_only=storage.read_only
    )
    hardware = host_pb2.Hardware(share=share)
    return Wanted(storage=storage, hardware=hardware, device_id=f"{storage.id}.share")


def _tag(storage_id: str) -> str:
    """The id, which may be too long for a tag."""
    if len(storage_id) <= LONGEST_TAG:
        return storage_id
    return f"{storage_id[:25]}-{hashlib.sha256(storage_id.encode()).hexdigest()[:10]}"


async def attach(vm: Vm, wanted: Wanted) -> storages_pb2.AttachedStorage:
    """Both or neither: what was plugged in for a mount that fails is unplugged."""
    async with contextlib.AsyncExitStack() as undo:
        if wanted.hardware is not None:
            await _plug(vm, wanted)
            undo.push_async_callback(_unplug, vm, wanted.device_id)
        async with _stub(vm) as stub:
            request = storages_pb2.AttachStorageRequest(storage=wanted.storage)
            attached = await stub.Attach(request)
        undo.pop_all()
    return attached


async def _plug(vm: Vm, wanted: Wanted) -> None:
    function = host_pb2.PlugFunction(id=wanted.device_id, hardware=wanted.hardware)
    timeout = wanted.storage.timeout_seconds
    try:
        await vm.plug(host_pb2.PlugRequest(functions=[function], timeout_seconds=timeout))
    except ShimError as error:
        if error.reason is Reason.ID_IN_USE and not error.hint:
            error.hint = (
                f"innkeeper storage list {vm.name} shows what is mounted; a device that was left"
                f" goes with: innkeeper device detach {vm.name} {wanted.device_id}"
            )
        raise


async def _unplug(vm: Vm, device_id: str) -> None:
    try:
        await vm.unplug(device_id)
    except ShimError as error:
        if error.reason is not Reason.UNKNOWN_DEVICE:
            output.warn(f"{device_id}: is left there: {explain(error)}")


async def detach(
    vm: Vm, storage_id: str, timeout: float, *, unplug: bool
) -> storages_pb2.DetachStorageResponse:
    """With what was plugged in for it, unless it is to stay."""
    async with _stub(vm) as stub:
        request = storages_pb2.DetachStorageRequest(id=storage_id, timeout_seconds=timeout)
        done = await stub.Detach(request)
    plugged = {each.id for each in await vm.plugged()} if unplug else set()
    for device_id in (storage_id + ending for ending in _OWN):
        if device_id in plugged:
            await _unplug_if_it_goes(vm, storage_id, device_id)
    return done


async def _unplug_if_it_goes(vm: Vm, storage_id: str, device_id: str) -> None:
    """A share whose server has ended may have to stay, and the storage is gone all the same."""
    try:
        await vm.unplug(device_id)
    except ShimError as error:
        if error.reason is not Reason.NOT_REMOVABLE:
            output.warn(
                f"{storage_id}: is detached, and {device_id}, which was plugged in for it, is not;"
                f" later: innkeeper device detach {vm.name} {device_id}"
            )
            raise
        output.warn(f"{device_id}: stays plugged in: {error.message}")


async def all_of(vm: Vm) -> Sequence[storages_pb2.AttachedStorage]:
    async with _stub(vm) as stub:
        return (await stub.List(storages_pb2.ListStoragesRequest())).storages


async def stats(vm: Vm, storage_id: str) -> Told:
    """Of one, or of all; they are asked at once, as one that hangs takes its time.
    Raises what the guest says of the one that was named."""
    async with _stub(vm) as stub:
        names = [storage_id]
        if not storage_id:
            found = await stub.List(storages_pb2.ListStoragesRequest())
            names = [each.storage.id for each in found.storages]
        requests = [storages_pb2.StorageStatsRequest(id=name) for name in names]
        answers = await asyncio.gather(
            *map(stub.Stats, requests), return_exceptions=bool(names[1:])
        )
    told = Told()
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, storages_pb2.StorageStatsResponse):
            told.figures.append((name, answer))
        elif isinstance(answer, grpc.RpcError):
            told.refused.append((name, answer))
        else:
            raise answer
    return told


async def resize(vm: Vm, storage_id: str, size: int) -> storages_pb2.ResizeStorageResponse:
    """Its disk first, where this VM's daemon has plugged it in; `size` 0: as its file is."""
    async with _stub(vm) as stub:
        found = await stub.Get(storages_pb2.GetStorageRequest(id=storage_id))
        device_id = found.storage.block.device_id
        grown = ""
        if device_id and device_id in {each.id for each in await vm.plugged()}:
            _check_thawed(vm, found)
            await _resize_disk(vm, device_id, size)
            grown = device_id if size else ""
        elif size and not device_id:
            raise CliError(
                f"{storage_id}: is on no disk, so there is nothing to make larger",
                hint="ext4, xfs and btrfs on a disk can grow",
            )
        elif size:
            raise CliError(
                f"{storage_id}: is on no disk that was plugged into {vm.name} from here",
                hint="make its device larger, and leave the size out",
            )
        with _says_what_grew(grown, size):
            return await stub.Resize(storages_pb2.ResizeStorageRequest(id=storage_id))


def _check_thawed(vm: Vm, found: storages_pb2.AttachedStorage) -> None:
    """Before its disk grows, which can't be taken back."""
    if found.frozen:
        raise CliError(
            f"storage {found.storage.id} is frozen, and nothing was changed",
            hint=f"thaw it first: innkeeper storage thaw {vm.name} {found.storage.id}",
        )


@contextlib.contextmanager
def _says_what_grew(device_id: str, size: int) -> Iterator[None]:
    """A disk does not shrink again when the file system on it can't follow."""
    try:
        yield
    except grpc.RpcError:
        if device_id:
            told = output.size(size)
            output.warn(f"{device_id}: the disk has {told} now, its file system is as before")
        raise


async def _resize_disk(vm: Vm, device_id: str, size: int) -> None:
    """Without a size the file system may grow all the same, to what its disk has."""
    try:
        await vm.resize_disk(device_id, size)
    except ShimError as error:
        if size or error.reason not in (Reason.RESIZE_REFUSED, Reason.BAD_FIELD):
            raise


async def trim(vm: Vm, storage_id: str) -> int:
    async with _stub(vm) as stub:
        return (await stub.Trim(storages_pb2.TrimStorageRequest(id=storage_id))).trimmed


async def freeze(vm: Vm, storage_id: str, timeout: float) -> None:
    request = storages_pb2.FreezeStorageRequest(id=storage_id, timeout_seconds=timeout)
    async with _stub(vm) as stub:
        await stub.Freeze(request)


async def thaw(vm: Vm, storage_id: str) -> None:
    async with _stub(vm) as stub:
        await stub.Thaw(storages_pb2.ThawStorageRequest(id=storage_id))


async def refresh(vm: Vm, storage_id: str) -> bool:
    async with _stub(vm) as stub:
        return (await stub.Refresh(storages_pb2.RefreshStorageRequest(id=storage_id))).changed


def say_attached(attached: storages_pb2.AttachedStorage, *, as_json: bool) -> None:
    if as_json:
        output.say_json(as_dict(attached))
        return
    # The kernel's own file systems are their own source: "tmpfs".
    names = dict.fromkeys((attached.fs_type, attached.source))
    of = " of ".join(name for name in names if name)
    output.say(f"{attached.storage.id}: mounted at {attached.mount_point} ({of})")


def row(attached: storages_pb2.AttachedStorage) -> list[str]:
    """For `COLUMNS`."""
    states = ("read-only" * attached.storage.read_only, "frozen" * attached.frozen)
    users = (*attached.users, *attached.used_by)
    cells = (
        *(attached.storage.id, attached.fs_type, _source(attached), attached.mount_point),
        *(", ".join(state for state in states if state), " ".join(users)),
    )
    return [cell or "-" for cell in cells]


def _source(attached: storages_pb2.AttachedStorage) -> str:
    """What it was asked for, where the kernel only knows "tmpfs" or "overlay"."""
    storage = attached.storage
    match storage.WhichOneof("source"):
        case "bind":
            return f"bind {storage.bind.path or _directory(storage.bind.directory)}"
        case "watched":
            return f"watch {storage.watched.path or _directory(storage.watched.directory)}"
        case "overlay":
            layers = [*map(_directory, storage.overlay.lower)]
            upper = storage.overlay.upper
            return ",".join([_directory(upper) if upper.storage_id else "", *layers]).strip(",")
        case "local":
            return "local"
        case "block":
            return f"{attached.source} ({storage.block.device_id})".removesuffix(" ()")
        case _:
            return attached.source


def _directory(directory: storages_pb2.StorageDirectory) -> str:
    return f"{directory.storage_id}:{directory.path}".removesuffix(":")


def stats_row(storage_id: str, told: storages_pb2.StorageStatsResponse) -> list[str]:
    """For `STATS_COLUMNS`; a storage that does not answer has no figures."""
    health = _health(told)
    if health in ("stalled", "lost"):
        return [storage_id, *["-"] * 5, health, told.detail or "-"]
    sizes = [output.size(number) for number in (told.size, told.used, told.available)]
    inodes = [str(number) for number in (told.inodes, told.inodes_used)]
    return [storage_id, *sizes, *inodes, health, told.detail or "-"]


def figures(told: storages_pb2.StorageStatsResponse) -> dict[str, object]:
    """Every field of the protocol, also those that are 0."""
    plain: dict[str, object] = {
        field.name: getattr(told, field.name) for field in told.DESCRIPTOR.fields
    }
    return plain | {"health": _health(told)}


def _health(told: storages_pb2.StorageStatsResponse) -> str:
    name = storages_pb2.StorageHealth.Name(told.health).removeprefix("STORAGE_HEALTH_").lower()
    return "-" if name == "unspecified" else name.replace("_", "-")


def as_dict(attached: storages_pb2.AttachedStorage) -> object:
    return json_format.MessageToDict(attached, preserving_proto_field_name=True)


@contextlib.asynccontextmanager
async def _stub(vm: Vm) -> AsyncIterator[storages_pb2_grpc.StoragesAsyncStub]:
    async with vm.channel() as channel:
        yield storages_pb2_grpc.StoragesStub(channel)

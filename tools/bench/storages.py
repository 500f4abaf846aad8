"""How long a storage takes to be attached and detached, by source, as the host sees it.

All in one VM that is up and has what the sources need: a disk with an ext4, a share,
other storages to build on. The first round of each is left out, in which the kernel
loads what it needs. Each is also told in times a call that does nothing, which takes the
way there and back and its emulation out.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from bench.figures import Sample, milliseconds
from innkeeper.v1 import host_pb2, storages_pb2, storages_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from grpc import aio

    from innkeeper.shim.client import Vm


_DISK_SIZE = 64 << 20
_HUGE = 2 << 20
_ATTACH = "Storages.Attach of {source}, from the call to its answer"
_DETACH = "Storages.Detach of it"
_RATIO = "Attach of {source} in times Storages.List, by the medians"


async def storage_samples(vm: Vm, channel: aio.Channel, folder: Path, rounds: int) -> list[Sample]:
    """Attaches and detaches each source `rounds` times; what QEMU can't serve is left out."""
    stub = storages_pb2_grpc.StoragesStub(channel)
    requests = await _prepare(vm, stub, folder)
    idle = [
        await _timed(lambda: stub.List(storages_pb2.ListStoragesRequest())) for _ in range(rounds)
    ]
    samples = list[Sample]()
    for source, request in requests.items():
        taken = [await _round(stub, request) for _ in range(rounds + 1)][1:]
        samples += figures(source, taken, idle)
    return samples


def figures(source: str, taken: list[tuple[float, float]], idle: list[float]) -> Iterator[Sample]:
    """Of pairs of seconds, to attach and to detach."""
    for attach, detach in taken:
        yield milliseconds(f"attach_{source}_ms", attach, _ATTACH.format(source=source))
        yield milliseconds(f"detach_{source}_ms", detach, _DETACH)
    middle, base = (sorted(each)[len(each) // 2] for each in ([a for a, _ in taken], idle))
    yield Sample(
        name=f"attach_{source}_ratio",
        value=middle / base,
        unit="x",
        what=_RATIO.format(source=source),
    )


async def _prepare(
    vm: Vm, stub: storages_pb2_grpc.StoragesAsyncStub, folder: Path
) -> Mapping[str, storages_pb2.Storage]:
    """What the sources need, and a request for each."""
    await vm.plug_disk("bench-disk", _empty_disk(folder))
    share = host_pb2.Hardware(share=host_pb2.Share(directory=str(folder)))
    function = host_pb2.PlugFunction(id="bench-share", hardware=share)
    await vm.plug(host_pb2.PlugRequest(functions=[function]))
    base = storages_pb2.Storage(id="bench-base", tmpfs=storages_pb2.TmpfsSource())
    await stub.Attach(storages_pb2.AttachStorageRequest(storage=base))
    block = storages_pb2.BlockSource(device_id="bench-disk", fs_type="ext4", format_if_empty=True)
    disk = storages_pb2.Storage(id="bench", block=block)
    await _round(stub, disk)
    disk.block.format_if_empty = False
    return {"block": disk, **_sources(storages_pb2.StorageDirectory(storage_id="bench-base"))}


def _sources(base: storages_pb2.StorageDirectory) -> dict[str, storages_pb2.Storage]:
    storage = partial(storages_pb2.Storage, id="bench")
    huge = storages_pb2.HugetlbSource(page_size=_HUGE, size=2 * _HUGE)
    watched = storages_pb2.WatchedSource(directory=base, only_refresh=True)
    return {
        "tmpfs": storage(tmpfs=storages_pb2.TmpfsSource(size=1 << 20)),
        "hugetlb": storage(hugetlb=huge),
        "bind": storage(bind=storages_pb2.BindSource(directory=base)),
        "overlay": storage(overlay=storages_pb2.OverlaySource(lower=[base])),
        "local": storage(local=storages_pb2.LocalSource()),
        "watched": storage(watched=watched),
        "virtiofs": storage(virtiofs=storages_pb2.VirtiofsSource(tag="bench-share")),
    }


def _empty_disk(folder: Path) -> Path:
    disk = folder / "storage.img"
    with disk.open("wb") as file:
        file.truncate(_DISK_SIZE)
    return disk


async def _round(
    stub: storages_pb2_grpc.StoragesAsyncStub, storage: storages_pb2.Storage
) -> tuple[float, float]:
    attach = storages_pb2.AttachStorageRequest(storage=storage)
    detach = storages_pb2.DetachStorageRequest(id=storage.id)
    return (
        await _timed(lambda: stub.Attach(attach)),
        await _timed(lambda: stub.Detach(detach)),
    )


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began

"""Copies: bytes a second and small files a second, both ways, against tar in a container.

Everything is in a tmpfs of the guest and in memory here, so that no disk is in it. tar
is the other way that a host has: `innkeeper exec ... -- tar`, through the streams of a
process in the same guest, and with the same files.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.figures import Sample
from bench.guest import start_script
from innkeeper.shim.streams import ProcessStreams, StreamEnds
from innkeeper.shim.transport.choose import Host, Kind, choose
from innkeeper.shim.transport.stream import TransportError
from innkeeper.v1 import containers_pb2, containers_pb2_grpc, files_pb2_grpc, storages_pb2_grpc
from innkeeper.v1 import files_pb2 as pb
from innkeeper.v1 import storages_pb2 as storages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpc import aio

BIG = 32 << 20
"""Bytes of the one big file."""

_SMALL = 1000
_ROOM = 256 << 20
_FRAME = 256 << 10
_FOLDER = 100
_STORAGE = "bench-copies"
_ROOT = pb.FileRoot(storage_id=_STORAGE)


def transports() -> tuple[str, ...]:
    """Those that this host has."""
    return tuple(kind.value for kind in Kind if _is_there(kind))


def _is_there(kind: Kind) -> bool:
    try:
        choose(kind.value, Host.look())
    except TransportError:
        return False
    return True


async def copy_samples(channel: aio.Channel, transport: str, files: int) -> list[Sample]:
    """Copies a big file and a tree of `files` small ones in and out, and lets tar do it."""
    tmpfs = storages.Storage(id=_STORAGE, tmpfs=storages.TmpfsSource(size=_ROOM))
    stub = storages_pb2_grpc.StoragesStub(channel)
    await stub.Attach(storages.AttachStorageRequest(storage=tmpfs))
    try:
        copies = _Copies(channel, transport)
        return [*await copies.big(), *await copies.small(files)]
    finally:
        await stub.Detach(storages.DetachStorageRequest(id=_STORAGE))


class _Copies:
    """Measures in one guest."""

    def __init__(self, channel: aio.Channel, transport: str) -> None:
        self._channel = channel
        self._files = files_pb2_grpc.FilesStub(channel)
        self._transport = transport

    async def big(self) -> Iterator[Sample]:
        into = await self._copy_in(_big_file())
        out = await self._copy_out("big")
        return (
            self._sample(f"copy_{way}_mb_s", BIG / 1e6 / seconds, "MB/s", f"a file of 32 MiB {way}")
            for way, seconds in (("in", into), ("out", out))
        )

    async def small(self, files: int) -> Iterator[Sample]:
        into = await self._copy_in(_small_files(files))
        out = await self._copy_out("tree")
        tar_in = await self._tar("mkdir /data/tar; exec tar x -C /data/tar", _archive(files))
        tar_out = await self._tar("exec tar c -C /data tree", b"")
        return (
            self._sample(name, value, unit, f"{files} files of {_SMALL} bytes {what}")
            for name, value, unit, what in (
                ("copy_in_files_s", files / into, "/s", "in"),
                ("copy_out_files_s", files / out, "/s", "out"),
                ("tar_in_files_s", files / tar_in, "/s", "in by tar in a container"),
                ("tar_out_files_s", files / tar_out, "/s", "out by tar in a container"),
                ("copy_in_to_tar", into / tar_in, "", "in, in times of tar's time"),
                ("copy_out_to_tar", out / tar_out, "", "out, in times of tar's time"),
            )
        )

    def _sample(self, name: str, value: float, unit: str, what: str) -> Sample:
        word = self._transport.replace("-", "_")
        return Sample(
            name=f"{name}_{word}", value=value, unit=unit, what=f"{what}, over {self._transport}"
        )

    async def _copy_in(self, frames: Iterator[pb.CopyInRequest]) -> float:
        begin = time.perf_counter()
        await self._files.CopyIn(frames)
        return time.perf_counter() - begin

    async def _copy_out(self, path: str) -> float:
        begin = time.perf_counter()
        request = pb.CopyOutRequest(root=_ROOT, path=path, recursive=True)
        async for _ in self._files.CopyOut(request):
            pass
        return time.perf_counter() - begin

    async def _tar(self, script: str, data: bytes) -> float:
        """Seconds from the first byte to the exit, in a container that runs already."""
        mount = containers_pb2.StorageMount(storage_id=_STORAGE, destination="/data")
        name = await start_script(self._channel, script, storages=(mount,))
        process = ProcessStreams(
            self._channel,
            name,
            StreamEnds(stdout=_Nowhere(), stderr=_Nowhere(), source=_Bytes(data)),
        )
        begin = time.perf_counter()
        status = await process.run()
        seconds = time.perf_counter() - begin
        stub = containers_pb2_grpc.ContainersStub(self._channel)
        await stub.Remove(containers_pb2.RemoveContainerRequest(id=name.container_id))
        if status.code:
            raise RuntimeError(f"{script}: exit status {status.code}")
        return seconds


@dataclass(slots=True)
class _Bytes:
    """A source that has all its bytes."""

    data: bytes
    at: int = 0

    async def read(self, limit: int) -> bytes:
        piece = self.data[self.at : self.at + limit]
        self.at += len(piece)
        return piece


class _Nowhere:
    async def write(self, data: bytes) -> None:
        """Nobody reads it."""


def _big_file() -> Iterator[pb.CopyInRequest]:
    yield pb.CopyInRequest(start=pb.CopyStart(root=_ROOT))
    header = pb.FileHeader(path="big", type=pb.FILE_TYPE_FILE, mode=0o644, size=BIG)
    data = os.urandom(_FRAME)
    for at in range(0, BIG, _FRAME):
        yield pb.CopyInRequest(parts=[pb.FilePart(header=None if at else header, data=data)])


def _small_files(files: int) -> Iterator[pb.CopyInRequest]:
    yield pb.CopyInRequest(start=pb.CopyStart(root=_ROOT, path="tree"))
    parts: list[pb.FilePart] = []
    for name, data in _tree(files):
        kind = pb.FILE_TYPE_FILE if data else pb.FILE_TYPE_DIRECTORY
        header = pb.FileHeader(path=name, type=kind, mode=0o755, size=len(data))
        parts.append(pb.FilePart(header=header, data=data))
        if len(parts) * _SMALL >= _FRAME:
            yield pb.CopyInRequest(parts=parts)
            parts = []
    yield pb.CopyInRequest(parts=parts)


def _archive(files: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in _tree(files):
            info = tarfile.TarInfo(name)
            info.type = tarfile.REGTYPE if data else tarfile.DIRTYPE
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def _tree(files: int) -> Iterator[tuple[str, bytes]]:
    """Names and contents; a directory has none."""
    for number in range(files):
        if number % _FOLDER == 0:
            yield f"d{number // _FOLDER}", b""
        yield f"d{number // _FOLDER}/f{number}", b"x" * _SMALL

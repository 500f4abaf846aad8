"""The Files service on a unix socket, with everything below it real but the storages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from agent.core.copies import CopyWorkers
from agent.core.roots import Roots
from agent.server.files import FilesService
from agent.server.interceptors import Guard
from agent.server.routing import service_handler
from innkeeper.v1 import files_pb2 as pb
from innkeeper.v1 import files_pb2_grpc
from tests.fakes.agent_server import connect
from tests.fakes.copies import FolderFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesServer:
    """`top` is the storage "data"; `outside` is beside it and nobody's business."""

    channel: grpc.aio.Channel
    stub: files_pb2_grpc.FilesAsyncStub
    files: FolderFiles
    top: Path
    outside: Path

    root = pb.FileRoot(storage_id="data")


@contextlib.asynccontextmanager
async def serving_files(
    folder: Path, top: Path, *, workers: CopyWorkers | None = None
) -> AsyncIterator[FilesServer]:
    """Serves in `folder`, which needs a short path; the storage is made below `top`."""
    roots = Roots(run=folder, proc=Path("/proc"), cgroup=folder / "cgroup")
    files = FolderFiles(roots, workers=workers)
    data, outside = top / "data", top / "outside"
    data.mkdir()
    outside.mkdir()
    files.storages.folders["data"] = data
    (descriptor,) = pb.DESCRIPTOR.services_by_name.values()
    handler = service_handler(descriptor, FilesService(files).methods)
    server = grpc.aio.server(handlers=[handler], interceptors=[Guard(most=100, endless=())])
    socket = folder / "files.sock"
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    channel = connect(socket)
    try:
        yield FilesServer(
            channel=channel,
            stub=files_pb2_grpc.FilesStub(channel),
            files=files,
            top=data,
            outside=outside,
        )
    finally:
        await channel.close()
        await server.stop(5)
        await files.workers.close()

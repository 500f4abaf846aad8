"""What a script in a guest prints: a container of the image's own root, made for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from innkeeper.cli.descriptors import Collector
from innkeeper.shim.streams import ProcessStreams, StreamEnds
from innkeeper.v1 import containers_pb2, containers_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpc import aio

_MOST = 64 << 20
_TRACEFS = {"destination": "/trace", "type": "tracefs", "source": "tracefs"}
_PROC = {"destination": "/proc", "type": "proc", "source": "proc"}
_KINDS = ("bounding", "effective", "permitted")


async def start_script(
    channel: aio.Channel, script: str, *, storages: Sequence[containers_pb2.StorageMount]
) -> types_pb2.ProcessRef:
    """A container that runs it, for the caller to follow and to remove."""
    containers = containers_pb2_grpc.ContainersStub(channel)
    request = _request(script, ())
    request.storages.extend(storages)
    await containers.Create(request)
    await containers.Start(containers_pb2.StartContainerRequest(id=request.id))
    return types_pb2.ProcessRef(container_id=request.id)


async def output_of(
    channel: aio.Channel,
    script: str,
    *capabilities: str,
    storages: Sequence[containers_pb2.StorageMount] = (),
) -> str:
    """What it prints to stdout; tracefs is at /trace. A script that may not do what it
    tries says so on stderr alone."""
    containers = containers_pb2_grpc.ContainersStub(channel)
    request = _request(script, capabilities)
    request.storages.extend(storages)
    await containers.Create(request)
    await containers.Start(containers_pb2.StartContainerRequest(id="script"))
    said, rest = Collector(limit=_MOST), Collector()
    process = types_pb2.ProcessRef(container_id="script")
    await ProcessStreams(channel, process, StreamEnds(stdout=said, stderr=rest)).run()
    await containers.Remove(containers_pb2.RemoveContainerRequest(id="script"))
    return said.data.decode(errors="replace")


def _request(script: str, capabilities: tuple[str, ...]) -> containers_pb2.CreateContainerRequest:
    process = {
        "args": ["sh", "-c", script],
        "cwd": "/",
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "capabilities": dict.fromkeys(_KINDS, capabilities),
    }
    spec = {"ociVersion": "1.1.0", "process": process, "mounts": [_PROC, _TRACEFS]}
    return containers_pb2.CreateContainerRequest(
        id="script",
        spec=json.dumps(spec).encode(),
        path="/usr/lib/innkeeper/rootfs",
        writable_layer=True,
    )

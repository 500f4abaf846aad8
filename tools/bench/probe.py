"""A program of Python in the guest's own root, by a container that may do everything."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from innkeeper.cli.capabilities import EVERY
from innkeeper.cli.descriptors import Collector
from innkeeper.shim.streams import ProcessStreams, StreamEnds
from innkeeper.v1 import containers_pb2, containers_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from grpc import aio

_NAME: Final = "probe"
_MOST: Final = 64 << 20
_KINDS: Final = ("bounding", "effective", "permitted", "inheritable")
_SHOWN: Final = {"/proc": "/proc", "/sys": "/sys", "/dev": "/dev", "/guest": "/"}


async def said_in_guest(channel: aio.Channel, code: str, *words: str, limit: float) -> str:
    """What the program prints, with these arguments.

    Raises RuntimeError, with what it said, when it fails, TimeoutError after `limit` seconds.
    """
    containers = containers_pb2_grpc.ContainersStub(channel)
    argv = ("chroot", "/guest", "/usr/bin/python3", "-I", "-S", "-c", code, *words)
    await containers.Create(_request(argv))
    said, complained = Collector(limit=_MOST), Collector()
    try:
        await containers.Start(containers_pb2.StartContainerRequest(id=_NAME))
        process = types_pb2.ProcessRef(container_id=_NAME)
        ends = StreamEnds(stdout=said, stderr=complained)
        async with asyncio.timeout(limit):
            status = await ProcessStreams(channel, process, ends).run()
    finally:
        await containers.Remove(containers_pb2.RemoveContainerRequest(id=_NAME))
    if status.code:
        raise RuntimeError(f"in the guest: {complained.data.decode(errors='replace')}")
    return said.data.decode()


def _request(argv: tuple[str, ...]) -> containers_pb2.CreateContainerRequest:
    return containers_pb2.CreateContainerRequest(
        id=_NAME,
        spec=json.dumps(_spec(argv)).encode(),
        path="/usr/lib/innkeeper/rootfs",
        writable_layer=True,
    )


def _spec(argv: tuple[str, ...]) -> dict[str, Any]:
    """Of the guest's namespaces it leaves the mounts alone."""
    return {
        "ociVersion": "1.1.0",
        "process": {
            "args": argv,
            "cwd": "/",
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "capabilities": dict.fromkeys(_KINDS, EVERY),
        },
        "mounts": [
            {"destination": target, "type": "bind", "source": source, "options": ["rbind"]}
            for target, source in _SHOWN.items()
        ],
        "linux": {
            "namespaces": [{"type": "mount"}],
            "maskedPaths": [],
            "readonlyPaths": [],
            "resources": {"devices": [{"allow": True, "access": "rwm"}]},
        },
    }

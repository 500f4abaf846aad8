"""`ip` and `bridge` of Debian 13, the witness of the guest's network in VM tests.

The guest has neither: it asks the kernel itself. They come out of the image's build root,
with their libraries and the loader, and run in any container, busybox's too:

    async with iproute(guest, tmp_path) as ip:
        links = await ip("link")                      # `ip -j -d link`, in the sandbox's network
        stats = await ip("link", "show", "dev", "n2s0", options=("-s",))
        table = await ip("fdb", "show", program="bridge")
        finished = await guest.run(SCRIPT, storages=(ip.mount,))   # or /iproute/ip by hand

Each call is a container, which takes some seconds under emulation: ask for much at once.
`put_iproute` alone makes the directory, for disks that hold something else as well.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.iproute import put_iproute
from innkeeper.v1 import containers_pb2 as containers
from tests.vm.disks import mounted
from tests.vm.guest import PROBE, Guest

__all__ = ["PLACE", "IpRoute", "iproute", "put_iproute"]

PLACE = "/iproute"
"""Where a container finds the programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IpRoute:
    """The programs in one guest; `mount` puts them into a container at `PLACE`."""

    guest: Guest
    mount: containers.StorageMount

    async def __call__(
        self, *arguments: str, program: str = "ip", options: tuple[str, ...] = ("-d",)
    ) -> Any:
        """What the program says in JSON about the sandbox's own network."""
        command = shlex.join([f"{PLACE}/{program}", "-j", *options, *arguments])
        finished = await self.guest.run(command, **PROBE, storages=(self.mount,))
        assert finished.code == 0, finished
        return json.loads(finished.text or "[]")


@asynccontextmanager
async def iproute(guest: Guest, place: Path) -> AsyncIterator[IpRoute]:
    """A disk with the programs, plugged in for the length of a block; made in `place`."""
    tree = place / "iproute"
    put_iproute(tree)
    async with mounted(guest, "iproute", tree) as name:
        mount = containers.StorageMount(storage_id=name, destination=PLACE)
        yield IpRoute(guest=guest, mount=mount)

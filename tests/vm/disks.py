"""Disks with a file system: made on the host, plugged in, mounted in the guest, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from innkeeper.shim import commands
from innkeeper.shim.guest_disk import make_disk
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from tests.fakes.plugs import disk_plug
from tests.vm.guest import DEFAULT_ROOT, Guest

SIZE = 16 << 20


def copy_busybox(image: Path, target: Path) -> None:
    """The image's own static busybox, for roots that a test makes."""
    dump = f'dump -p "{DEFAULT_ROOT}/bin/busybox" "{target}"'
    commands.run(["/usr/sbin/debugfs", "-R", dump, str(image / "root.ext4")], deadline=60)
    assert target.stat().st_size > 100_000


@asynccontextmanager
async def plugged(guest: Guest, name: str, tree: Path) -> AsyncIterator[str]:
    """A disk with the tree as an ext4 file system; its device id is the name."""
    disk = make_disk(tree, tree.with_suffix(".img"), size=SIZE)
    await guest.host.Plug(disk_plug(name, disk.file))
    try:
        yield name
    finally:
        await guest.host.Unplug(host.UnplugRequest(id=name))


@asynccontextmanager
async def mounted(guest: Guest, name: str, tree: Path) -> AsyncIterator[str]:
    """The same as a storage of that name."""
    async with plugged(guest, name, tree) as device:
        await guest.storages.Attach(storages.AttachStorageRequest(storage=on_disk(name, device)))
        try:
            yield name
        finally:
            await guest.storages.Detach(storages.DetachStorageRequest(id=name))


def on_disk(name: str, device: str) -> storages.Storage:
    block = storages.BlockSource(device_id=device, fs_type="ext4")
    return storages.Storage(id=name, block=block)

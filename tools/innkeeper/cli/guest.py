"""What a command puts into a VM, and how it is taken away again in the reverse order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from innkeeper.cli import output, storages, workload
from innkeeper.cli.errors import explain
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.statedir import VmPaths, is_locked
from innkeeper.shim.streams import error_info
from innkeeper.v1 import (
    containers_pb2,
    containers_pb2_grpc,
    host_pb2,
    storages_pb2,
    storages_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AsyncExitStack

    from grpc import aio

    from innkeeper.cli.options import DiskOption, MountOption
    from innkeeper.shim.client import Vm
    from innkeeper.v1 import types_pb2

_GONE = grpc.StatusCode.NOT_FOUND
_STOPPED = frozenset({Reason.STOPPING, Reason.QEMU_GONE, Reason.UNKNOWN_VM})


async def plug(vm: Vm, device_id: str, disk: DiskOption) -> host_pb2.PlugResponse:
    return await vm.plug_disk(device_id, disk.file, format=disk.format, read_only=disk.read_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A VM in use; `undo` gets a step for everything that was put there."""

    vm: Vm
    channel: aio.Channel
    undo: AsyncExitStack

    async def plug(self, device_id: str, disk: DiskOption) -> None:
        await plug(self.vm, device_id, disk)
        self._later(f"disk {device_id}", lambda: self.vm.unplug(device_id))

    async def mount(self, storage_id: str, disk: DiskOption) -> None:
        await workload.attach_storage(self.channel, storage_id, disk)
        stub = storages_pb2_grpc.StoragesStub(self.channel)
        request = storages_pb2.DetachStorageRequest(id=storage_id)
        self._later(f"storage {storage_id}", lambda: stub.Detach(request))

    async def share(self, storage_id: str, share: MountOption) -> None:
        """Plugged and mounted, and both undone together."""
        storage = storages_pb2.Storage(id=storage_id, read_only=share.read_only)
        await storages.attach(self.vm, storages.share_of(storage, share.what))
        self._later(
            f"share {storage_id}",
            lambda: storages.detach(self.vm, storage_id, 0, unplug=True),
        )

    async def start_container(self, options: workload.ContainerOptions) -> types_pb2.ProcessRef:
        stub = containers_pb2_grpc.ContainersStub(self.channel)
        request = containers_pb2.RemoveContainerRequest(id=options.id)
        # Before the call: one that was created and did not start is there too.
        self._later(f"container {options.id}", lambda: stub.Remove(request))
        return await workload.start_container(self.channel, options)

    def _later(self, what: str, action: Callable[[], Awaitable[object]]) -> None:
        async def undo() -> None:
            try:
                await action()
            except (ShimError, grpc.aio.AioRpcError) as error:
                if not (_code(error) is _GONE or self._is_stopped(error)):
                    output.warn(f"{self.vm.name}: {what} is left there: {explain(error)}")

        self.undo.push_async_callback(undo)

    def _is_stopped(self, error: ShimError | grpc.aio.AioRpcError) -> bool:
        """With the VM went what was in it."""
        info = None if isinstance(error, ShimError) else error_info(error)
        reason = error.reason if isinstance(error, ShimError) else info.reason if info else ""
        return reason in _STOPPED or not is_locked(VmPaths(directory=self.vm.directory))


def _code(error: ShimError | grpc.aio.AioRpcError) -> grpc.StatusCode:
    return error.code if isinstance(error, ShimError) else error.code()

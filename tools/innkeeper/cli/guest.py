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
    devices_pb2,
    devices_pb2_grpc,
    host_pb2,
    storages_pb2,
    storages_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
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

    async def devices(self) -> Sequence[devices_pb2.AttachedDevice]:
        """Those that are attached in the guest."""
        stub = devices_pb2_grpc.DevicesStub(self.channel)
        return (await stub.List(devices_pb2.ListDevicesRequest())).devices

    async def attach(self, device: devices_pb2.Device) -> None:
        """One that is in the guest already; it stays plugged in when it is detached."""
        stub = devices_pb2_grpc.DevicesStub(self.channel)
        await stub.Attach(devices_pb2.AttachDevicesRequest(devices=[device]))
        request = devices_pb2.DetachDeviceRequest(
            id=device.id, phase=devices_pb2.DETACH_PHASE_RELEASE
        )
        self._later(f"device {device.id}", lambda: stub.Detach(request))

    async def is_read_only(self, storage_id: str) -> bool:
        """Whether the storage was attached so. Raises aio.AioRpcError."""
        stub = storages_pb2_grpc.StoragesStub(self.channel)
        return (await stub.Get(storages_pb2.GetStorageRequest(id=storage_id))).storage.read_only

    async def start_container(self, options: workload.ContainerOptions) -> types_pb2.ProcessRef:
        """Another's container of that id stays as it is."""
        stub = containers_pb2_grpc.ContainersStub(self.channel)
        request = containers_pb2.RemoveContainerRequest(id=options.id)
        others = False

        async def remove() -> None:
            if not others:
                await stub.Remove(request)

        # Before the call: one that was created and did not start is there too.
        self._later(f"container {options.id}", remove)
        try:
            return await workload.start_container(self.channel, options)
        except grpc.aio.AioRpcError as error:
            info = error_info(error)
            others = info is not None and info.reason == Reason.ID_IN_USE
            raise

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

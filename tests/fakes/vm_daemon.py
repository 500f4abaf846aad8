"""A VM's daemon and guest in one, for commands that need a VM to talk to.

It has what a real one has in the state directory (lock, vm.json, api.sock), and
serves just enough behind the socket: the host's service, one container, one
device, and one process (see processes_service.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from innkeeper.v1 import (
    containers_pb2,
    devices_pb2,
    host_pb2,
    network_pb2,
    processes_pb2,
    sandbox_pb2,
    storages_pb2,
)
from tests.fakes.container_lives import (
    FakeLives,
    LivingContainers,
    LivingProcesses,
    LivingSandbox,
)
from tests.fakes.network_service import FakeNetwork, NetworkService
from tests.fakes.processes_service import FakeProcess
from tests.fakes.refusing import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from google.protobuf.descriptor import ServiceDescriptor

ATTACHED = devices_pb2.AttachedDevice(
    device=devices_pb2.Device(id="data"),
    pci_path="02/00",
    pci_bdf="0000:01:00.0",
    nodes=[devices_pb2.DeviceNode(path="/dev/vdb", type="b", major=254, minor=16)],
    block=devices_pb2.BlockInfo(size=64 << 20, logical_block_size=512),
)


PLUGGED = host_pb2.PluggedDevice(
    id="data",
    pci_path="02/00",
    source="/disks/data.img",
    state="plugged",
    model="virtio-blk",
    port="port0",
)


@dataclass(slots=True, kw_only=True)
class FakeGuest:
    """What was asked of it, and what it is."""

    process: FakeProcess = field(default_factory=FakeProcess)
    containers: tuple[str, ...] = ("main",)
    """Ids of those that run; `lives` says more, when there is anything."""
    lives: FakeLives = field(default_factory=FakeLives)
    executed: list[processes_pb2.ExecRequest] = field(default_factory=list)
    signals: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    plugged: list[host_pb2.PlugRequest] = field(default_factory=list)
    unplugged: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    """Changes of containers, storages and devices, in their order."""
    hardware: list[host_pb2.PluggedDevice] = field(default_factory=lambda: [PLUGGED])
    attached: list[devices_pb2.AttachedDevice] = field(default_factory=lambda: [ATTACHED])
    storages: list[storages_pb2.Storage] = field(default_factory=list)
    """Those that an attach asked for."""
    refuses_mounts: bool = False
    in_use: bool = False
    """Whether file systems don't grow, and devices don't go."""
    frozen: set[str] = field(default_factory=set)
    """Ids of storages."""
    resized: list[tuple[str, int]] = field(default_factory=list)
    """Disks and sizes that the host was asked for."""
    stats: dict[str, storages_pb2.StorageStatsResponse] = field(default_factory=dict)
    answers: dict[str, object] = field(default_factory=dict)
    """QEMU's, by the question."""
    network: FakeNetwork = field(default_factory=FakeNetwork)
    away: str = ""
    """Why the agent is away, when it is."""
    stopped: bool = False


def _became(function: host_pb2.PlugFunction) -> devices_pb2.AttachedDevice:
    """A disk, unless it is an interface."""
    if function.hardware.WhichOneof("kind") != "nic":
        return ATTACHED
    device = devices_pb2.Device(id=function.id)
    nic = devices_pb2.NicInfo(name="eth0", mac="52:54:00:12:34:56", mtu=1500, ifindex=2)
    return devices_pb2.AttachedDevice(device=device, pci_path="02/00", nic=nic)


class _Processes(LivingProcesses):
    def __init__(self, guest: FakeGuest) -> None:
        super().__init__(guest.process, guest.lives)
        self._guest = guest

    async def Exec(  # noqa: N802 - gRPC's name
        self, request: processes_pb2.ExecRequest, context: aio.ServicerContext[Any, Any]
    ) -> processes_pb2.ExecResponse:
        self._guest.executed.append(request)
        argv = json.loads(request.process)["args"]
        if argv[0] == "break":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Stream removed")
        if argv[0] == "nosuch":
            text = "crun exec: executable file `nosuch` not found in $PATH"
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, text, "RUNTIME_REFUSED")
        return processes_pb2.ExecResponse(pid=100)

    async def Signal(  # noqa: N802 - gRPC's name
        self, request: processes_pb2.SignalRequest, context: object
    ) -> processes_pb2.SignalResponse:
        self._guest.signals.put_nowait(request.signal)
        self._guest.lives.calls.append(request)
        return processes_pb2.SignalResponse()


class _Containers(LivingContainers):
    def __init__(self, guest: FakeGuest) -> None:
        super().__init__(guest.lives)
        self._guest = guest

    async def List(  # noqa: N802 - gRPC's name
        self, request: containers_pb2.ListContainersRequest, context: object
    ) -> containers_pb2.ListContainersResponse:
        if self._guest.lives.statuses:
            return containers_pb2.ListContainersResponse(containers=self._guest.lives.statuses)
        running = containers_pb2.CONTAINER_STATE_RUNNING
        return containers_pb2.ListContainersResponse(
            containers=[
                containers_pb2.ContainerStatus(id=name, state=running)
                for name in self._guest.containers
            ]
        )

    async def Create(  # noqa: N802 - gRPC's name
        self,
        request: containers_pb2.CreateContainerRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> containers_pb2.ContainerStatus:
        self._guest.done.append("create")
        self._guest.lives.calls.append(request)
        if json.loads(request.spec)["process"]["args"] == ["nosuch"]:
            text = "executable file `nosuch` not found in $PATH"
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, text, "RUNTIME_REFUSED")
        return containers_pb2.ContainerStatus(id=request.id)

    async def Start(  # noqa: N802 - gRPC's name
        self, request: containers_pb2.StartContainerRequest, context: object
    ) -> containers_pb2.ContainerStatus:
        self._guest.done.append("start")
        return containers_pb2.ContainerStatus(id=request.id)

    async def Remove(  # noqa: N802 - gRPC's name
        self,
        request: containers_pb2.RemoveContainerRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> containers_pb2.RemoveContainerResponse:
        await self._guest.lives.note(request, context)
        self._guest.done.append("remove")
        return containers_pb2.RemoveContainerResponse()


class _Storages:
    def __init__(self, guest: FakeGuest) -> None:
        self._guest = guest

    async def Attach(  # noqa: N802 - gRPC's name
        self,
        request: storages_pb2.AttachStorageRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> storages_pb2.AttachedStorage:
        self._guest.done.append("mount")
        if self._guest.refuses_mounts:
            code = grpc.StatusCode.FAILED_PRECONDITION
            await refuse(context, code, "mount: wrong fs type", "MOUNT_REFUSED", errno="EINVAL")
        self._guest.storages.append(request.storage)
        return _attached(request.storage)

    async def Get(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.GetStorageRequest, context: object
    ) -> storages_pb2.AttachedStorage:
        found = next(_attached(s) for s in self._guest.storages if s.id == request.id)
        found.frozen = request.id in self._guest.frozen
        return found

    async def List(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.ListStoragesRequest, context: object
    ) -> storages_pb2.ListStoragesResponse:
        return storages_pb2.ListStoragesResponse(storages=map(_attached, self._guest.storages))

    async def Stats(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.StorageStatsRequest, context: object
    ) -> storages_pb2.StorageStatsResponse:
        return self._guest.stats[request.id]

    async def Resize(  # noqa: N802 - gRPC's name
        self,
        request: storages_pb2.ResizeStorageRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> storages_pb2.ResizeStorageResponse:
        self._guest.done.append("grow")
        if self._guest.in_use:
            code = grpc.StatusCode.FAILED_PRECONDITION
            await refuse(context, code, "it is on a partition", "RESIZE_REFUSED")
        return storages_pb2.ResizeStorageResponse(size=2 << 30, before=1 << 30)

    async def Trim(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.TrimStorageRequest, context: object
    ) -> storages_pb2.TrimStorageResponse:
        return storages_pb2.TrimStorageResponse(trimmed=64 << 20)

    async def Freeze(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.FreezeStorageRequest, context: object
    ) -> storages_pb2.FreezeStorageResponse:
        self._guest.done.append(f"freeze {request.timeout_seconds:g}")
        return storages_pb2.FreezeStorageResponse()

    async def Thaw(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.ThawStorageRequest, context: object
    ) -> storages_pb2.ThawStorageResponse:
        self._guest.done.append("thaw")
        return storages_pb2.ThawStorageResponse()

    async def Refresh(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.RefreshStorageRequest, context: object
    ) -> storages_pb2.RefreshStorageResponse:
        return storages_pb2.RefreshStorageResponse(changed=True)

    async def Detach(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.DetachStorageRequest, context: object
    ) -> storages_pb2.DetachStorageResponse:
        self._guest.done.append("unmount")
        return storages_pb2.DetachStorageResponse()


def _attached(storage: storages_pb2.Storage) -> storages_pb2.AttachedStorage:
    return storages_pb2.AttachedStorage(
        storage=storage,
        mount_point=f"/run/innkeeper/storages/{storage.id}",
        users=["main"],
        fs_type="ext4",
        source="/dev/vdb",
    )


class _Sandbox(LivingSandbox):
    def __init__(self, guest: FakeGuest) -> None:
        super().__init__(guest.lives)
        self._guest = guest

    async def Describe(  # noqa: N802 - gRPC's name
        self,
        request: sandbox_pb2.DescribeSandboxRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> sandbox_pb2.DescribeSandboxResponse:
        if self._guest.away:
            code = grpc.StatusCode.UNAVAILABLE
            await refuse(context, code, self._guest.away, "AGENT_AWAY")
        return sandbox_pb2.DescribeSandboxResponse()


class _Devices:
    def __init__(self, guest: FakeGuest) -> None:
        self._guest = guest

    async def List(  # noqa: N802 - gRPC's name
        self, request: devices_pb2.ListDevicesRequest, context: object
    ) -> devices_pb2.ListDevicesResponse:
        return devices_pb2.ListDevicesResponse(devices=self._guest.attached)

    async def Holders(  # noqa: N802 - gRPC's name
        self, request: devices_pb2.DeviceHoldersRequest, context: aio.ServicerContext[Any, Any]
    ) -> devices_pb2.DeviceHoldersResponse:
        if request.id not in {each.device.id for each in self._guest.attached}:
            code = grpc.StatusCode.NOT_FOUND
            await refuse(context, code, f"no device {request.id}", "UNKNOWN_DEVICE")
        return devices_pb2.DeviceHoldersResponse()

    async def Get(  # noqa: N802 - gRPC's name
        self, request: devices_pb2.GetDeviceRequest, context: aio.ServicerContext[Any, Any]
    ) -> devices_pb2.AttachedDevice:
        if request.id != "data":
            text = f"no device {request.id}"
            code = grpc.StatusCode.NOT_FOUND
            await refuse(context, code, text, "UNKNOWN_DEVICE", id=request.id, hint="list them")
        return ATTACHED


class _Host:
    def __init__(self, guest: FakeGuest) -> None:
        self._guest = guest

    async def Describe(  # noqa: N802 - gRPC's name
        self, request: host_pb2.DescribeVmRequest, context: object
    ) -> host_pb2.VmDescription:
        return host_pb2.VmDescription(
            name="web",
            state="running",
            qemu_pid=4242,
            accelerator="tcg",
            transport="serial",
            memory=512 << 20,
            cpus=1,
        )

    async def Plug(  # noqa: N802 - gRPC's name
        self, request: host_pb2.PlugRequest, context: object
    ) -> host_pb2.PlugResponse:
        self._guest.plugged.append(request)
        self._guest.done.append("plug")
        self._guest.hardware += [
            host_pb2.PluggedDevice(id=each.id, state="plugged") for each in request.functions
        ]
        attached = [_became(each) for each in request.functions]
        return host_pb2.PlugResponse(attached=attached, usable_micros=52_000)

    async def Unplug(  # noqa: N802 - gRPC's name
        self, request: host_pb2.UnplugRequest, context: aio.ServicerContext[Any, Any]
    ) -> host_pb2.UnplugResponse:
        if self._guest.in_use:
            code = grpc.StatusCode.FAILED_PRECONDITION
            await refuse(context, code, "used by storage y", "GUEST_REFUSED")
        self._guest.unplugged.append(request.id)
        self._guest.done.append("unplug")
        return host_pb2.UnplugResponse()

    async def Stop(  # noqa: N802 - gRPC's name
        self, request: host_pb2.StopVmRequest, context: object
    ) -> host_pb2.StopVmResponse:
        self._guest.stopped = True
        return host_pb2.StopVmResponse(clean=True)

    async def ListPlugged(  # noqa: N802 - gRPC's name
        self, request: host_pb2.ListPluggedRequest, context: object
    ) -> host_pb2.ListPluggedResponse:
        return host_pb2.ListPluggedResponse(devices=self._guest.hardware)

    async def ResizeDisk(  # noqa: N802 - gRPC's name
        self, request: host_pb2.ResizeDiskRequest, context: object
    ) -> host_pb2.ResizeDiskResponse:
        self._guest.done.append("resize")
        self._guest.resized.append((request.id, request.size))
        return host_pb2.ResizeDiskResponse(size=request.size)

    async def Query(  # noqa: N802 - gRPC's name
        self, request: host_pb2.QueryQemuRequest, context: object
    ) -> host_pb2.QueryQemuResponse:
        return host_pb2.QueryQemuResponse(answer=json.dumps(self._guest.answers[request.command]))


@contextlib.asynccontextmanager
async def running_vm(state: Path, guest: FakeGuest, name: str = "web") -> AsyncIterator[None]:
    """A VM in the state directory for as long as the block lasts."""
    directory = state / name
    directory.mkdir(parents=True)
    (directory / "vm.json").write_text(json.dumps({"daemon_pid": os.getpid()}))
    server = aio.server()
    for service, built in _services(guest):
        server.add_generic_rpc_handlers((_handler(service, built),))
    server.add_insecure_port(f"unix:{directory}/api.sock")
    with (directory / "lock").open("wb") as lock:
        whole = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, whole)
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)


def _services(guest: FakeGuest) -> list[tuple[ServiceDescriptor, object]]:
    """What is served; a method that the object has not answers UNIMPLEMENTED."""
    return [
        (processes_pb2.DESCRIPTOR.services_by_name["Processes"], _Processes(guest)),
        (containers_pb2.DESCRIPTOR.services_by_name["Containers"], _Containers(guest)),
        (storages_pb2.DESCRIPTOR.services_by_name["Storages"], _Storages(guest)),
        (sandbox_pb2.DESCRIPTOR.services_by_name["Sandbox"], _Sandbox(guest)),
        (devices_pb2.DESCRIPTOR.services_by_name["Devices"], _Devices(guest)),
        (host_pb2.DESCRIPTOR.services_by_name["Host"], _Host(guest)),
        (network_pb2.DESCRIPTOR.services_by_name["Network"], NetworkService(guest.network)),
    ]


_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def _handler(service: ServiceDescriptor, built: object) -> grpc.GenericRpcHandler:
    handlers = {}
    for method in service.methods:
        if behaviour := getattr(built, method.name, None):
            make = _MAKERS[method.client_streaming, method.server_streaming]
            handlers[method.name] = make(
                behaviour,
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)

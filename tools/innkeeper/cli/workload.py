"""A process in a container of a VM, as `run`, `exec` and `demo` start and follow one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
from grpc import aio

from innkeeper.cli import output, terminal
from innkeeper.cli.descriptors import FdSink, FdSource
from innkeeper.cli.errors import explain
from innkeeper.shim.streams import ProcessStreams, StreamEnds
from innkeeper.v1 import (
    containers_pb2,
    containers_pb2_grpc,
    processes_pb2,
    processes_pb2_grpc,
    storages_pb2,
    storages_pb2_grpc,
    types_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innkeeper.cli.interrupts import Interrupts
    from innkeeper.cli.options import DiskOption, GrantOption, MountOption

DEFAULT_ROOT = "/usr/lib/innkeeper/rootfs"
_ENDED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """A process as the command line asks for it."""

    argv: tuple[str, ...]
    environment: tuple[str, ...] = ()
    directory: str = ""
    user: tuple[int, int] | None = None
    terminal: bool = False
    stdin: bool = True

    def to_oci(self) -> dict[str, object]:
        """OCI's process object. What was not asked for is left out: the agent knows
        what a container usually has, and what the one of an exec has."""
        process: dict[str, object] = {"args": list(self.argv)}
        if self.environment:
            process["env"] = list(self.environment)
        if self.directory:
            process["cwd"] = self.directory
        if self.user is not None:
            process["user"] = {"uid": self.user[0], "gid": self.user[1]}
        if self.terminal:
            rows, columns = terminal.size()
            process |= {"terminal": True, "consoleSize": {"height": rows, "width": columns}}
        return process


def full_environment(given: tuple[str, ...], *, with_terminal: bool) -> tuple[str, ...]:
    """`given`, with a PATH and, for a terminal, our own TERM, where it has none."""
    defaults = [_PATH]
    if with_terminal:
        defaults.append(f"TERM={os.environ.get('TERM', 'xterm')}")
    names = {entry.partition("=")[0] for entry in given}
    return (*(entry for entry in defaults if entry.partition("=")[0] not in names), *given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """A container; without `root_storage` its root is the image's small default one."""

    id: str
    process: ProcessOptions
    root_storage: str = ""
    storages: dict[str, str] = field(default_factory=dict)
    """Destination by storage id."""
    mounts: tuple[MountOption, ...] = ()
    """Further storages, by their ids."""
    devices: tuple[GrantOption, ...] = ()

    def to_request(self) -> containers_pb2.CreateContainerRequest:
        spec = {"ociVersion": "1.1.0", "process": self.process.to_oci()}
        mounts = [
            containers_pb2.StorageMount(storage_id=storage_id, destination=destination)
            for storage_id, destination in self.storages.items()
        ]
        mounts += [
            containers_pb2.StorageMount(
                storage_id=each.what,
                destination=each.mount,
                options=("ro",) if each.read_only else (),
            )
            for each in self.mounts
        ]
        request = containers_pb2.CreateContainerRequest(
            id=self.id,
            spec=json.dumps(spec).encode(),
            storages=mounts,
            devices=[
                containers_pb2.DeviceGrant(
                    device_id=each.device, container_path=each.path, permissions=each.permissions
                )
                for each in self.devices
            ],
        )
        if self.root_storage:
            request.storage_id = self.root_storage
        else:
            request.path = DEFAULT_ROOT
            request.writable_layer = True
        return request


async def attach_storage(channel: aio.Channel, storage_id: str, disk: DiskOption) -> str:
    """Mounts the file system of an attached disk of the same id; the answer is where."""
    storage = storages_pb2.Storage(
        id=storage_id,
        read_only=disk.read_only,
        block=storages_pb2.BlockSource(device_id=storage_id, fs_type=disk.fs_type),
    )
    stub = storages_pb2_grpc.StoragesStub(channel)
    attached = await stub.Attach(storages_pb2.AttachStorageRequest(storage=storage))
    return attached.mount_point


async def start_container(channel: aio.Channel, options: ContainerOptions) -> types_pb2.ProcessRef:
    stub = containers_pb2_grpc.ContainersStub(channel)
    await stub.Create(options.to_request())
    await stub.Start(containers_pb2.StartContainerRequest(id=options.id))
    return types_pb2.ProcessRef(container_id=options.id)


async def start_exec(
    channel: aio.Channel, process: types_pb2.ProcessRef, options: ProcessOptions
) -> None:
    request = processes_pb2.ExecRequest(
        container_id=process.container_id,
        exec_id=process.exec_id,
        process=json.dumps(options.to_oci()).encode(),
    )
    await processes_pb2_grpc.ProcessesStub(channel).Exec(request)


async def follow(
    channel: aio.Channel,
    process: types_pb2.ProcessRef,
    options: ProcessOptions,
    interrupts: Interrupts,
) -> int:
    """Connects the process with our own standard streams until it ends; its exit code."""
    source = FdSource(0) if options.stdin else None
    ends = StreamEnds(stdout=FdSink(1, "stdout"), stderr=FdSink(2, "stderr"), source=source)
    streams = ProcessStreams(channel, process, ends)
    async with SignalSender(channel, process) as sender:
        interrupts.forward_to(sender.send)
        if options.terminal:
            with terminal.raw(streams.resize):
                return (await streams.run()).code
        return (await streams.run()).code


class SignalSender:
    """Passes signals on to a process, and waits for the answers at the end."""

    def __init__(self, channel: aio.Channel, process: types_pb2.ProcessRef) -> None:
        self._stub = processes_pb2_grpc.ProcessesStub(channel)
        self._process = process
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, number: int) -> None:
        task = asyncio.create_task(self._send(number))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def __aenter__(self) -> SignalSender:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._sending:
            task.cancel()

    async def _send(self, number: int) -> None:
        request = processes_pb2.SignalRequest(process=self._process, signal=number)
        try:
            await self._stub.Signal(request, timeout=10)
        except aio.AioRpcError as error:
            if error.code() not in _ENDED:
                output.warn(f"signal {number} did not reach the process: {explain(error)}")


async def kill(channel: aio.Channel, process: types_pb2.ProcessRef) -> None:
    """Ends a process that nobody follows any more; it may have ended by itself."""
    request = processes_pb2.SignalRequest(process=process, signal=signal.SIGKILL)
    try:
        await processes_pb2_grpc.ProcessesStub(channel).Signal(request, timeout=10)
    except aio.AioRpcError as error:
        if error.code() not in _ENDED:
            output.warn(f"the process could not be killed: {explain(error)}")


def container_ids(statuses: Iterable[containers_pb2.ContainerStatus]) -> list[str]:
    """Ids of the containers that run."""
    running = containers_pb2.CONTAINER_STATE_RUNNING
    return [status.id for status in statuses if status.state == running]

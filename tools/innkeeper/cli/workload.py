"""A process in a container of a VM, as `run`, `exec` and `demo` start and follow one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import grpc
from grpc import aio

from innkeeper.cli import output, terminal
from innkeeper.cli.descriptors import FdSink, FdSource, SilentSource
from innkeeper.cli.detach import DetachSource
from innkeeper.cli.errors import explain
from innkeeper.shim import writing
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
    from collections.abc import Callable, Iterator, Mapping

    from innkeeper.cli.interrupts import Interrupts
    from innkeeper.cli.options import DiskOption, GrantOption, MountOption, UserWord
    from innkeeper.shim.streams import Source

DEFAULT_ROOT = "/usr/lib/innkeeper/rootfs"
_CLOSING_LIMIT = 10.0
_ENDED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """A process as the command line asks for it."""

    argv: tuple[str, ...]
    environment: tuple[str, ...] = ()
    directory: str = ""
    user: UserWord | None = None
    terminal: bool = False
    stdin: bool = True
    more: Mapping[str, object] = field(default_factory=dict)
    """Further members of OCI's process object."""

    def to_oci(self) -> dict[str, object]:
        """OCI's process object. What was not asked for is left out: the agent knows
        what a container usually has, and what the one of an exec has."""
        process: dict[str, object] = {"args": list(self.argv), **self.more}
        if self.environment:
            process["env"] = list(self.environment)
        if self.directory:
            process["cwd"] = self.directory
        if self.user is not None:
            process["user"] = self.user.to_oci()
        if self.terminal:
            process["terminal"] = True
            if terminal.is_ours():
                rows, columns = terminal.size()
                process["consoleSize"] = {"height": rows, "width": columns}
        return process


def own_terminal(given: tuple[str, ...]) -> tuple[str, ...]:
    """`given`, with our own TERM where it has none."""
    if any(entry.startswith("TERM=") for entry in given):
        return given
    return (f"TERM={os.environ.get('TERM', 'xterm')}", *given)


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
    root_layer: bool = False
    """What is written goes to memory, and `root_storage` stays as it is."""
    storages: dict[str, str] = field(default_factory=dict)
    """Destination by storage id."""
    mounts: tuple[MountOption, ...] = ()
    """Further storages, by their ids."""
    devices: tuple[GrantOption, ...] = ()
    """Attached ones, by their ids."""
    grants: tuple[containers_pb2.DeviceGrant, ...] = ()
    spec: Mapping[str, object] = field(default_factory=dict)
    """Further members of the specification."""
    shared_namespaces: tuple[str, ...] = ()
    log: types_pb2.OutputLog | None = None

    def to_request(self) -> containers_pb2.CreateContainerRequest:
        spec = {"ociVersion": "1.1.0", **self.spec, "process": self.process.to_oci()}
        request = containers_pb2.CreateContainerRequest(
            id=self.id,
            spec=json.dumps(spec).encode(),
            storages=[*self._storages()],
            devices=[*(_grant(each) for each in self.devices), *self.grants],
            shared_namespaces=self.shared_namespaces,
        )
        if self.log is not None:
            request.streams.log.CopyFrom(self.log)
        if self.root_storage:
            request.storage_id = self.root_storage
            request.writable_layer = self.root_layer
        else:
            request.path = DEFAULT_ROOT
            request.writable_layer = True
        return request

    def _storages(self) -> Iterator[containers_pb2.StorageMount]:
        for storage_id, destination in self.storages.items():
            yield containers_pb2.StorageMount(storage_id=storage_id, destination=destination)
        for each in self.mounts:
            yield containers_pb2.StorageMount(
                storage_id=each.what,
                destination=each.mount,
                options=("ro",) if each.read_only else (),
            )


def _grant(option: GrantOption) -> containers_pb2.DeviceGrant:
    return containers_pb2.DeviceGrant(
        device_id=option.device,
        container_path=option.path,
        permissions=option.permissions,
    )


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
    channel: aio.Channel,
    process: types_pb2.ProcessRef,
    options: ProcessOptions,
    streams: types_pb2.StreamOptions | None = None,
) -> None:
    """Its variables are added to the container's own."""
    request = processes_pb2.ExecRequest(
        container_id=process.container_id,
        exec_id=process.exec_id,
        process=json.dumps(replace(options, environment=()).to_oci()).encode(),
        more_environment=options.environment,
        streams=streams,
    )
    await processes_pb2_grpc.ProcessesStub(channel).Exec(request)


async def follow(
    channel: aio.Channel,
    process: types_pb2.ProcessRef,
    options: ProcessOptions,
    interrupts: Interrupts,
    *,
    keys: bytes = b"",
) -> int:
    """Connects the process with our own standard streams until it ends; its exit code.
    Raises Detached when the keys for it were typed on a terminal."""
    view = View(
        terminal=options.terminal,
        stdin=options.stdin,
        keys=keys if options.terminal else b"",
    )
    return await show(channel, process, view, interrupts)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How our standard streams are connected with a process's."""

    terminal: bool = False
    """Ours and the process's are both a terminal."""
    stdin: bool = True
    keeps_input: bool = False
    """Without `stdin` the process's input stays open, for others."""
    keys: bytes = b""
    """Typed, they detach."""
    from_kept: bool = False
    """Output begins with what is kept of it, not necessarily at its beginning."""
    pass_signals: bool = True
    leaving: str = ""
    """Said on stderr when SIGTERM was passed on."""


async def show(
    channel: aio.Channel, process: types_pb2.ProcessRef, view: View, interrupts: Interrupts
) -> int:
    """The process's exit code, as `follow`."""
    streams: ProcessStreams
    source = _source(view)
    if source is not None and view.keys:
        source = DetachSource(source, view.keys, lambda: streams.input_taken())
    ends = StreamEnds(
        stdout=FdSink(1, "stdout"),
        stderr=FdSink(2, "stderr"),
        source=source,
        from_kept=view.from_kept,
        on_gap=_warn_of_gap if view.from_kept else None,
    )
    streams = ProcessStreams(channel, process, ends)
    async with SignalSender(channel, process) as sender:
        if view.pass_signals:
            interrupts.forward_to(_passing(sender.send, view.leaving))
        with terminal.raw(streams.resize) if view.terminal else contextlib.nullcontext():
            return (await streams.run()).code


def _passing(send: Callable[[int], None], leaving: str) -> Callable[[int], None]:
    """Scripts see no ^C, and know of a second signal only when they are told."""

    def send_and_tell(number: int) -> None:
        send(number)
        if leaving and number == signal.SIGTERM:
            output.note(leaving)

    return send_and_tell


def _warn_of_gap(stream: types_pb2.StreamKind.ValueType, start: int, end: int) -> None:
    """Where a process does not wait for its readers, a slow one misses something."""
    name = "stderr" if stream == types_pb2.STREAM_KIND_STDERR else "stdout"
    output.warn(f"bytes {start} to {end} of {name} are missing: they came too fast")


def _source(view: View) -> Source | None:
    if view.stdin:
        return FdSource(0)
    return SilentSource() if view.keeps_input else None


async def close_input(channel: aio.Channel, process: types_pb2.ProcessRef) -> None:
    """Gives the end of its input to a process that nobody writes to. Raises aio.AioRpcError;
    one that has ended is fine."""
    opened = processes_pb2.OpenStreams(process=process, input_only=True)
    call = processes_pb2_grpc.ProcessesStub(channel).Attach(timeout=_CLOSING_LIMIT)
    try:
        await writing.write(call, processes_pb2.AttachRequest(open=opened))
        close = processes_pb2.AttachRequest(close_input=processes_pb2.CloseInput())
        await writing.write(call, close)
        async for answer in call:
            if answer.WhichOneof("frame") in ("input_ack", "exit"):
                return
    except aio.AioRpcError as error:
        if error.code() not in _ENDED:
            raise
    finally:
        call.cancel()


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

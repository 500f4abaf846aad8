"""Managers without a kernel: what the services call, with the rules of the protocol.

Devices are usable when their address is in `present`; others are waited for.
Processes write what a test gives them (`FakeProcess`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from agent.core.errors import (
    AgentError,
    Code,
    Reason,
    already_exists,
    not_found,
    timed_out,
    wrong_state,
)
from agent.core.holding import Holder
from agent.core.kinds import BlockInfo, Mode
from agent.core.life import Until
from agent.core.model import (
    AttachedDevice,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    ContainerUpdate,
    Detached,
    DeviceNode,
    DeviceRequest,
    DeviceState,
    ExecRequest,
    MountedStorage,
    NodeType,
    OutputChunk,
    ProcessExit,
    ProcessRef,
    StorageRequest,
    Stream,
    WindowSize,
)
from agent.core.pci import PciPath

K = TypeVar("K")
V = TypeVar("V")


class FakeDevices:
    """A DeviceManager whose bus is a set of addresses."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.table: dict[str, AttachedDevice] = {}
        self.forgotten: list[str] = []
        self.users: tuple[Holder, ...] = ()
        self.modes: list[Mode] = []
        self.waiting = 0
        self.moved = asyncio.Condition()
        self.timeouts: list[float | None] = []
        self.changed = asyncio.Event()

    async def attach(self, request: DeviceRequest) -> AttachedDevice:
        self.timeouts.append(request.timeout)
        known = self.table.get(request.id)
        if known is not None and known.request != request:
            raise already_exists(
                f"device {request.id} is attached already", reason=Reason.ID_IN_USE, id=request.id
            )
        if known is None:
            await self._wait_for(request)
            known = self.table[request.id] = attached(request)
        return known

    async def _wait_for(self, request: DeviceRequest) -> None:
        await self._count(1)
        try:
            async with asyncio.timeout(request.timeout):
                while str(request.address) not in self.present:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise timed_out(
                f"device {request.id}: nothing at {request.address}",
                reason=Reason.DEVICE_NOT_READY,
                hint="is it plugged in?",
                evidence="slot 02 is empty",
            ) from None
        finally:
            await self._count(-1)

    async def _count(self, step: int) -> None:
        async with self.moved:
            self.waiting += step
            self.moved.notify_all()

    async def until_waiting(self, count: int) -> None:
        """Until so many calls wait for a device."""
        async with asyncio.timeout(10), self.moved:
            await self.moved.wait_for(lambda: self.waiting == count)

    async def until_forgotten(self, device_id: str) -> None:
        async with asyncio.timeout(10), self.moved:
            await self.moved.wait_for(lambda: device_id in self.forgotten)

    def plug(self, address: str) -> None:
        self.present.add(address)
        self.changed.set()

    async def prepare_detach(self, device_id: str) -> None:
        device = self.get(device_id)
        if device.users:
            raise wrong_state(f"device {device_id} is held", reason=Reason.STILL_IN_USE)
        self.table[device_id] = replace(device, state=DeviceState.LEAVING)

    async def cancel_detach(self, device_id: str) -> None:
        self.table[device_id] = replace(self.get(device_id), state=DeviceState.ATTACHED)

    async def detach(self, device_id: str, timeout: float | None) -> None:
        self.timeouts.append(timeout)
        if str(self.get(device_id).request.address) in self.present:
            raise timed_out(f"{device_id} is still there", reason=Reason.DEVICE_STILL_PRESENT)
        del self.table[device_id]

    async def release_device(self, device_id: str) -> None:
        del self.table[self.get(device_id).request.id]

    async def holders(self, device_id: str) -> tuple[Holder, ...]:
        self.get(device_id)
        return self.users

    async def reconfigure(
        self, device_id: str, mode: Mode, timeout: float | None
    ) -> AttachedDevice:
        self.timeouts.append(timeout)
        self.modes.append(mode)
        return self.get(device_id)

    async def forget(self, device_id: str) -> None:
        self.table.pop(device_id, None)
        async with self.moved:
            self.forgotten.append(device_id)
            self.moved.notify_all()

    def get(self, device_id: str) -> AttachedDevice:
        return _known(self.table, device_id, "device", Reason.UNKNOWN_DEVICE)

    def list(self) -> tuple[AttachedDevice, ...]:
        return tuple(self.table.values())


def attached(request: DeviceRequest) -> AttachedDevice:
    """What a disk of 1 GiB behind that address becomes."""
    return AttachedDevice(
        request=request,
        pci_path=PciPath.parse("02/00"),
        bdf="0000:01:00.0",
        sysfs_path="/sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0",
        driver="virtio-pci",
        numa_node=None,
        iommu_group=None,
        nodes=(DeviceNode(path="/dev/vda", type=NodeType.BLOCK, major=254, minor=0),),
        info=BlockInfo(size=1 << 30, logical_block_size=512, read_only=False, serial="s1"),
    )


class FakeStorages:
    """A StorageManager; `needs` says which storage rests on which."""

    def __init__(self) -> None:
        self.table: dict[str, MountedStorage] = {}
        self.needs: dict[str, str] = {}
        self.timeouts: list[float | None] = []
        self.went = Detached()
        self.refreshed: list[str] = []
        self.news = False

    async def attach(self, request: StorageRequest) -> MountedStorage:
        self.timeouts.append(request.timeout)
        known = self.table.get(request.id)
        if known is not None and known.request != request:
            raise already_exists(f"storage {request.id} is there", reason=Reason.ID_IN_USE)
        point = request.mount_point or f"/run/innkeeper/storages/{request.id}"
        self.table[request.id] = known or MountedStorage(request=request, mount_point=point)
        return self.table[request.id]

    async def detach(self, storage_id: str, timeout: float | None) -> Detached:
        storage = self.get(storage_id)
        above = {one for one, below in self.needs.items() if below == storage_id}
        users = storage.users | (above & set(self.table))
        if users:
            raise wrong_state(
                f"storage {storage_id} is used by {', '.join(sorted(users))}",
                reason=Reason.STILL_IN_USE,
                users=",".join(sorted(users)),
            )
        del self.table[storage_id]
        return self.went

    async def refresh(self, storage_id: str, timeout: float | None) -> bool:
        self.timeouts.append(timeout)
        self.get(storage_id)
        self.refreshed.append(storage_id)
        return self.news

    def get(self, storage_id: str) -> MountedStorage:
        return _known(self.table, storage_id, "storage", Reason.UNKNOWN_STORAGE)

    def list(self) -> tuple[MountedStorage, ...]:
        return tuple(self.table.values())


class FakeContainers:
    """A container manager whose containers do nothing; `stubborn` ones are not removed."""

    def __init__(self) -> None:
        self.table: dict[str, tuple[ContainerRequest, ContainerStatus]] = {}
        self.stubborn: dict[str, BaseException] = {}
        self.removals: list[tuple[str, float, float | None]] = []
        self.gone_with_sandbox: list[str] = []
        self.updates: list[ContainerUpdate] = []
        self.timeouts: list[float | None] = []
        """Of starts, pauses and resumptions."""

    async def create(self, request: ContainerRequest) -> ContainerStatus:
        known = self.table.get(request.id)
        if known is None:
            status = ContainerStatus(id=request.id, state=ContainerState.CREATED, pid=42)
            self.table[request.id] = (request, status)
        elif known[0] != request:
            raise already_exists(f"container {request.id} is there", reason=Reason.ID_IN_USE)
        return self.table[request.id][1]

    async def start(self, container_id: str, timeout: float | None) -> ContainerStatus:
        return self._now(container_id, timeout, ContainerState.RUNNING)

    async def pause(self, container_id: str, timeout: float | None) -> ContainerStatus:
        return self._now(container_id, timeout, ContainerState.PAUSED)

    async def resume(self, container_id: str, timeout: float | None) -> ContainerStatus:
        return self._now(container_id, timeout, ContainerState.RUNNING)

    def _now(
        self, container_id: str, timeout: float | None, state: ContainerState
    ) -> ContainerStatus:
        request, status = _known(self.table, container_id, "container", Reason.UNKNOWN_CONTAINER)
        if status.state is ContainerState.STOPPED:
            raise wrong_state(f"container {container_id} is stopped", state="stopped")
        self.timeouts.append(timeout)
        changed = replace(status, state=state)
        self.table[container_id] = (request, changed)
        return changed

    async def update(self, change: ContainerUpdate) -> ContainerStatus:
        request, status = _known(self.table, change.id, "container", Reason.UNKNOWN_CONTAINER)
        if status.state is ContainerState.STOPPED:
            raise wrong_state(f"container {change.id} is stopped", state="stopped")
        self.updates.append(change)
        devices = status.devices if change.devices is None else change.devices
        cpus = range(1, (change.exclusive_cpus or 0) + 1)
        updated = replace(status, devices=devices, exclusive_cpus=tuple(cpus))
        self.table[change.id] = (request, updated)
        return updated

    def stop(self, container_id: str, end: ProcessExit) -> None:
        request, status = self.table[container_id]
        stopped = replace(status, state=ContainerState.STOPPED, exit=end)
        self.table[container_id] = (request, stopped)

    async def remove(
        self,
        container_id: str,
        grace: float,
        timeout: float | None,
        *,
        sandbox_gone: bool = False,
    ) -> None:
        self.removals.append((container_id, grace, timeout))
        self.gone_with_sandbox += [container_id] if sandbox_gone else []
        _known(self.table, container_id, "container", Reason.UNKNOWN_CONTAINER)
        if container_id in self.stubborn:
            raise self.stubborn[container_id]
        del self.table[container_id]

    def being_created(self) -> tuple[str, ...]:
        return ()

    def closed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def list(self) -> tuple[ContainerStatus, ...]:
        return tuple(status for _, status in self.table.values())


@dataclass(slots=True, kw_only=True)
class FakeProcess:
    """What a process has written so far and has been given; `finish` ends it."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    dropped: int = 0
    """Bytes at the beginning of both that are no longer kept."""
    terminal: bool = False
    received: bytearray = field(default_factory=bytearray)
    input_end: int | None = None
    size: WindowSize | None = None
    acknowledged: dict[Stream, int] = field(default_factory=dict)
    acknowledging: set[str] = field(default_factory=set)
    asked: list[tuple[Until, bool, str]] = field(default_factory=list)
    """Of each reader until when, whether it may miss bytes, and its name."""
    signals: list[tuple[int, bool]] = field(default_factory=list)
    exit: ProcessExit | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set while it does not read, and its input is full."""

    def __post_init__(self) -> None:
        self.reads.set()

    async def write(self, stream: Stream, data: bytes) -> None:
        self.written(stream).extend(data)
        await self.notify()

    async def finish(self, end: ProcessExit) -> None:
        self.exit = end
        await self.notify()

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def written(self, stream: Stream) -> bytearray:
        return self.stdout if stream is Stream.STDOUT else self.stderr


class FakeProcesses:
    """A process manager; chunks are 4 KiB, so that offsets get to matter."""

    CHUNK = 4096

    def __init__(self) -> None:
        self.table: dict[ProcessRef, FakeProcess] = {}
        self.executed: list[ExecRequest] = []
        self.readers = 0

    def add(self, container_id: str, exec_id: str = "", *, terminal: bool = False) -> FakeProcess:
        process = FakeProcess(terminal=terminal)
        self.table[ProcessRef(container_id=container_id, exec_id=exec_id)] = process
        return process

    def _get(self, ref: ProcessRef) -> FakeProcess:
        return _known(self.table, ref, "process", Reason.UNKNOWN_PROCESS)

    async def exec(self, request: ExecRequest) -> int:
        ref = ProcessRef(container_id=request.container_id, exec_id=request.exec_id)
        if ref in self.table:
            raise already_exists(f"{request.exec_id} is there", reason=Reason.ID_IN_USE)
        self.executed.append(request)
        self.table[ref] = FakeProcess()
        return 77

    async def signal(self, ref: ProcessRef, signal: int, *, all_processes: bool) -> None:
        self._get(ref).signals.append((signal, all_processes))

    async def wait(self, ref: ProcessRef) -> ProcessExit:
        known = self._get(ref)
        async with known.changed:
            await known.changed.wait_for(lambda: known.exit is not None)
        assert known.exit is not None
        return known.exit

    def stderr_tail(self, ref: ProcessRef, count: int) -> bytes:
        return bytes(self._get(ref).stderr[-count:])

    async def resize(self, ref: ProcessRef, size: WindowSize) -> None:
        known = self._get(ref)
        if not known.terminal:
            raise wrong_state("the process has no terminal", reason=Reason.NO_TERMINAL)
        known.size = size
        await known.notify()

    async def output(
        self,
        ref: ProcessRef,
        offsets: Mapping[Stream, int],
        *,
        until: Until = Until.EXIT,
        may_miss: bool = False,
        reader: str = "",
    ) -> AsyncGenerator[OutputChunk, None]:
        known = self._get(ref)
        known.asked.append((until, may_miss, reader))
        at = dict(offsets)
        for stream, offset in at.items():
            _check_kept(known, stream, offset)
        self.readers += 1
        try:
            async for chunk in self._chunks(known, at):
                yield chunk
        finally:
            self.readers -= 1

    async def _chunks(
        self, known: FakeProcess, at: dict[Stream, int]
    ) -> AsyncGenerator[OutputChunk, None]:
        while True:
            for stream in at:
                while data := bytes(known.written(stream)[at[stream] : at[stream] + self.CHUNK]):
                    yield OutputChunk(stream=stream, offset=at[stream], data=data)
                    at[stream] += len(data)
            done = all(at[one] >= len(known.written(one)) for one in at)
            if known.exit is not None and done:
                break
            if done:
                async with known.changed:
                    await known.changed.wait()
        for stream in at:
            yield OutputChunk(stream=stream, offset=at[stream], data=b"", end=True)

    async def write_input(self, ref: ProcessRef, offset: int, data: bytes) -> int:
        known = self._get(ref)
        have = len(known.received)
        if offset > have:
            raise _out_of_range(f"input at {offset}, expected {have}", Reason.BAD_FIELD)
        await known.reads.wait()
        fresh = data[have - offset :]
        if fresh and (known.input_end is not None or known.exit is not None):
            raise wrong_state("the input is closed", reason=Reason.INPUT_CLOSED)
        known.received += fresh
        await known.notify()
        return len(known.received)

    async def close_input(self, ref: ProcessRef, offset: int) -> None:
        known = self._get(ref)
        if offset != len(known.received):
            raise _out_of_range(f"end at {offset}", Reason.BAD_FIELD)
        known.input_end = offset
        await known.notify()

    def acknowledge(self, ref: ProcessRef, stream: Stream, offset: int, reader: str = "") -> None:
        known = self._get(ref)
        known.acknowledged[stream] = offset
        known.acknowledging.add(reader)

    def has_terminal(self, ref: ProcessRef) -> bool:
        return self._get(ref).terminal

    def input_offset(self, ref: ProcessRef) -> int:
        return len(self._get(ref).received)


def _check_kept(process: FakeProcess, stream: Stream, offset: int) -> None:
    if not process.dropped <= offset <= len(process.written(stream)):
        raise AgentError(
            f"{stream}: offset {offset} is not kept, the oldest is {process.dropped}",
            code=Code.OUT_OF_RANGE,
            reason=Reason.OFFSET_NOT_KEPT,
            fields={"oldest": str(process.dropped)},
        )


def _out_of_range(message: str, reason: Reason) -> AgentError:
    return AgentError(message, code=Code.OUT_OF_RANGE, reason=reason)


def _known(table: Mapping[K, V], key: K, kind: str, reason: Reason) -> V:
    if key not in table:
        raise not_found(f"no {kind} {key}", reason=reason, id=str(key))
    return table[key]

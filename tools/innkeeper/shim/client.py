"""VMs from the outside: start one, find those that run, talk to them.

    vm = await start_vm(VmSpec(name="demo"), on_progress=print)
    async with vm.channel() as channel:
        sandbox = sandbox_pb2_grpc.SandboxStub(channel)
        ...
    await vm.stop()

One daemon per VM serves `api.sock`; `Vm.channel()` goes there, and reaches the
host's own service (`innkeeper.v1.Host`) and, through the daemon's proxy, every
service of the guest. Everything here raises `ShimError`; stubs made on the
channel raise `grpc.aio.AioRpcError` as usual (`ShimError.from_call` reads it).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from grpc import aio

from innkeeper.shim import commands
from innkeeper.shim.errors import Reason, ShimError, with_tail
from innkeeper.shim.images import find_image
from innkeeper.shim.logs import tail
from innkeeper.shim.progress import Phase, Progress, parse
from innkeeper.shim.proxy import CHANNEL_OPTIONS
from innkeeper.shim.spec import ColdDevice, ColdDisk, NinePShare, VmSpec
from innkeeper.shim.statedir import StateDir, VmPaths, is_locked
from innkeeper.shim.vm import DEFAULT_GRACE, check_grace
from innkeeper.v1 import host_pb2, host_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from innkeeper.shim.statedir import Claim

    Answer = TypeVar("Answer")

__all__ = [
    "ColdDevice",
    "ColdDisk",
    "Ending",
    "NinePShare",
    "Phase",
    "Progress",
    "ShimError",
    "StateDir",
    "Vm",
    "VmSpec",
    "find_vm",
    "list_vms",
    "start_vm",
]

# The daemon has its own limit for the boot; these are for a daemon that hangs.
_START_LIMIT = 60.0
_SLOWEST_BOOT = 120.0
_STOP_LIMIT = 30.0
_KILL_LIMIT = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a VM was stopped."""

    clean: bool
    """The guest powered itself off."""
    why: str = ""
    """Why QEMU was ended instead, as in "its agent was away for the 30 s of grace"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vm:
    """A VM whose daemon runs."""

    name: str
    directory: Path
    """api.sock, console.log, daemon.log, qemu.log and more."""
    daemon_pid: int
    leash: int = -1
    """The VM's daemon notices when this descriptor is closed (tied VMs)."""

    def channel(self) -> aio.Channel:
        """`async with vm.channel() as channel:`; messages up to 16 MiB."""
        return aio.insecure_channel(f"unix:{self._paths.api}", options=CHANNEL_OPTIONS)

    async def describe(self) -> host_pb2.VmDescription:
        async with self._host() as host:
            return await self._ask(host.Describe(host_pb2.DescribeVmRequest()))

    async def plug(self, request: host_pb2.PlugRequest) -> host_pb2.PlugResponse:
        """Raises what host.proto says, as `ShimError`."""
        async with self._host() as host:
            return await self._ask(host.Plug(request))

    async def plug_disk(
        self,
        device_id: str,
        file: Path,
        *,
        format: str = "",  # noqa: A002 - the field's name
        read_only: bool = False,
    ) -> host_pb2.PlugResponse:
        """A virtio-blk disk in the first free port."""
        content = host_pb2.DiskFile(file=str(file), format=format, read_only=read_only)
        hardware = host_pb2.Hardware(disk=host_pb2.Disk(content=content))
        function = host_pb2.PlugFunction(id=device_id, hardware=hardware)
        return await self.plug(host_pb2.PlugRequest(functions=[function]))

    async def unplug(self, device_id: str, timeout: float = 0) -> None:
        """`timeout` in seconds; 0 is the daemon's default."""
        request = host_pb2.UnplugRequest(id=device_id, timeout_seconds=timeout)
        async with self._host() as host:
            await self._ask(host.Unplug(request))

    async def plugged(self) -> tuple[host_pb2.PluggedDevice, ...]:
        """By id."""
        async with self._host() as host:
            answer = await self._ask(host.ListPlugged(host_pb2.ListPluggedRequest()))
        return tuple(answer.devices)

    async def ports(self) -> tuple[host_pb2.Port, ...]:
        """In the order in which they are taken."""
        async with self._host() as host:
            answer = await self._ask(host.ListPorts(host_pb2.ListPortsRequest()))
        return tuple(answer.ports)

    async def resize_disk(self, device_id: str, size: int = 0) -> int:
        """Bytes of the disk afterwards; 0 is what its raw file has now."""
        request = host_pb2.ResizeDiskRequest(id=device_id, size=size)
        async with self._host() as host:
            return (await self._ask(host.ResizeDisk(request))).size

    async def query(self, command: str) -> Any:
        """QEMU's answer to one of its own questions, as in "query-pci"."""
        async with self._host() as host:
            answer = await self._ask(host.Query(host_pb2.QueryQemuRequest(command=command)))
        return json.loads(answer.answer)

    async def stop(self, grace: float = DEFAULT_GRACE) -> bool:
        """True when the guest powered itself off; see `end`."""
        return (await self.end(grace)).clean

    async def end(self, grace: float = DEFAULT_GRACE) -> Ending:
        """Returns when daemon and QEMU are gone. QEMU is ended when the guest does
        not power itself off within `grace` seconds. A daemon that does not do it
        is killed, and QEMU with it. Raises BAD_FIELD, with nothing done."""
        # Here already: gRPC takes an impossible deadline for one that has passed, and a
        # daemon that has not answered is killed.
        check_grace(grace)
        gone = _Process(self.daemon_pid, self._paths)
        with gone:
            ending = await self._ask_to_stop(grace)
            await gone.wait()
        if self.leash >= 0:
            with contextlib.suppress(OSError):
                os.close(self.leash)
        return ending

    @property
    def _paths(self) -> VmPaths:
        return VmPaths(directory=self.directory)

    @contextlib.asynccontextmanager
    async def _host(self) -> AsyncIterator[host_pb2_grpc.HostAsyncStub]:
        async with self.channel() as channel:
            yield host_pb2_grpc.HostStub(channel)

    async def _ask_to_stop(self, grace: float) -> Ending:
        request = host_pb2.StopVmRequest(grace_seconds=grace)
        try:
            async with self._host() as host:
                answer = await self._ask(host.Stop(request, timeout=grace + _STOP_LIMIT))
                return Ending(clean=answer.clean, why=answer.ended_because)
        except ShimError as error:
            if error.reason is Reason.BAD_FIELD:
                raise
            return Ending(clean=False, why="its daemon did not answer")

    async def _ask(self, call: Awaitable[Answer]) -> Answer:
        try:
            return await call
        except aio.AioRpcError as error:
            told = ShimError.from_call(error)
            if told is not None:
                raise told from error
            message = f"VM {self.name}: its daemon does not answer: {error.details()}"
            raise ShimError(Reason.UNKNOWN_VM, message, hint="see: innkeeper vm list") from error


class _Process:
    """A daemon that is to end, watched through a descriptor: its pid may be reused."""

    def __init__(self, pid: int, paths: VmPaths) -> None:
        self._fd = -1
        with contextlib.suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)
        if self._fd >= 0 and not is_locked(paths):
            # The daemon is gone; the pid is somebody else's by now.
            self.__exit__()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def wait(self) -> None:
        """Until it has ended; it gets a bounded time to do so."""
        if not await self._ends_within(_STOP_LIMIT):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
            await self._ends_within(_KILL_LIMIT)

    async def _ends_within(self, limit: float) -> bool:
        if self._fd < 0:
            return True
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, ended.set)
        try:
            async with asyncio.timeout(limit):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._fd)
        return True


async def start_vm(
    spec: VmSpec,
    *,
    state: StateDir | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Vm:
    """Returns when the agent has answered.

    Raises BAD_FIELD, NAME_IN_USE, IMAGE_NOT_FOUND, HOST_LACKS, and BOOT_FAILED
    with the console's last lines and the directory of the logs. Cancelled, it
    leaves no VM behind.
    """
    spec.check()
    spec = replace(spec, image=str(find_image(spec.image).directory.resolve()))
    state = state or StateDir.default()
    with state.claim(spec.name) as claim:
        progress, leash = _spawn(spec, claim)
    try:
        await _follow(spec, state, progress, on_progress)
    except BaseException:
        # The other end's reader takes this for our end, and stops the VM.
        os.close(leash)
        raise
    if not spec.tied:
        os.close(leash)
        leash = -1
    found = find_vm(spec.name, state)
    return replace(found, leash=leash)


def list_vms(state: StateDir | None = None) -> tuple[Vm, ...]:
    """By name; what dead daemons left behind is removed on the way."""
    state = state or StateDir.default()
    read = (_read(name, paths) for name, paths in state.running())
    return tuple(vm for vm in read if vm is not None)


def find_vm(name: str, state: StateDir | None = None) -> Vm:
    """Raises UNKNOWN_VM, which names those that run."""
    state = state or StateDir.default()
    paths = state.paths(name)
    vm = _read(name, paths) if is_locked(paths) else None
    if vm is None:
        names = ", ".join(vm.name for vm in list_vms(state))
        hint = f"these run: {names}" if names else "none runs; see: innkeeper vm start --help"
        if (logs := state.failed(name)).is_dir():
            hint = f"logs of the last one of that name that failed: {logs}; {hint}"
        raise ShimError(
            Reason.UNKNOWN_VM,
            f"VM {name}: does not run",
            hint=hint,
            fields={"name": name},
        )
    return vm


def _read(name: str, paths: VmPaths) -> Vm | None:
    """None for a VM that is only starting."""
    try:
        record = json.loads(paths.record.read_text())
    except FileNotFoundError:
        return None
    return Vm(name=name, directory=paths.directory, daemon_pid=record["daemon_pid"])


def _spawn(spec: VmSpec, claim: Claim) -> tuple[int, int]:
    """Starts the daemon; the answer is our end of the progress pipe and of the leash."""
    try:
        claim.paths.spec.write_text(spec.to_json())
    except OSError as error:
        claim.remove()
        text = f"state directory of VM {spec.name}: {error.strerror}: {claim.paths.spec}"
        raise ShimError(Reason.HOST_LACKS, text) from error
    progress, told = os.pipe()
    leash_end, leash = os.pipe()
    try:
        with claim.paths.daemon_log.open("ab") as log:
            commands.spawn_detached(
                _daemon_argv(claim, told, leash_end),
                output=log.fileno(),
                pass_fds=(claim.fd, told, leash_end),
                cwd=Path("/"),
            )
    except BaseException as error:
        os.close(progress)
        os.close(leash)
        claim.remove()
        if isinstance(error, commands.CommandError):
            raise ShimError(Reason.HOST_LACKS, str(error)) from error
        raise
    finally:
        os.close(told)
        os.close(leash_end)
    return progress, leash


def _daemon_argv(claim: Claim, progress: int, leash: int) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "innkeeper.shim"),
        *("--directory", str(claim.paths.directory.absolute())),
        *("--lock", str(claim.fd), "--progress", str(progress), "--leash", str(leash)),
    )


async def _follow(
    spec: VmSpec,
    state: StateDir,
    progress: int,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    """Reads the daemon's progress until the agent has answered."""
    limit = (spec.boot_timeout or _SLOWEST_BOOT) + _START_LIMIT
    try:
        async with asyncio.timeout(limit), _lines(progress) as lines:
            try:
                if await _report(lines, on_progress):
                    return
            except ShimError:
                # Its last words; it ends when it has cleaned up behind itself.
                await lines.read()
                raise
    except TimeoutError:
        why = f"VM {spec.name}: its daemon said nothing for {limit:g} s"
        raise ShimError(Reason.BOOT_FAILED, why) from None
    raise _daemon_died(spec, state)


async def _report(
    lines: asyncio.StreamReader, on_progress: Callable[[Progress], None] | None
) -> bool:
    """Whether the agent has answered; raises what the daemon says that it failed with."""
    async for line in lines:
        step = parse(line)
        if on_progress is not None:
            on_progress(step)
        if step.phase is Phase.AGENT:
            return True
    return False


def _daemon_died(spec: VmSpec, state: StateDir) -> ShimError:
    """It closed the pipe without a word."""
    log = state.paths(spec.name).daemon_log
    message = with_tail(f"VM {spec.name}: its daemon died", "its log ends with", tail(log))
    return ShimError(Reason.BOOT_FAILED, message, hint=f"log: {log}")


@contextlib.asynccontextmanager
async def _lines(fd: int) -> AsyncIterator[asyncio.StreamReader]:
    reader = asyncio.StreamReader(limit=1 << 20)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        yield reader
    finally:
        transport.close()

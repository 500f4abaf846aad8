"""A running VM as the tests talk to it: the daemon's channel, stubs, and short scripts.

Scripts run in containers of the product itself; a `probe` is one that shares
the guest's pid namespace and may look at everything, as an operator would.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import aio
from grpc_health.v1 import health_pb2_grpc

from innkeeper.shim.client import Vm, VmSpec, start_vm
from innkeeper.v1 import (
    containers_pb2 as containers,
)
from innkeeper.v1 import (
    containers_pb2_grpc,
    devices_pb2_grpc,
    host_pb2_grpc,
    processes_pb2_grpc,
    sandbox_pb2_grpc,
    storages_pb2_grpc,
)
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import types_pb2 as types

DEFAULT_ROOT = "/usr/lib/innkeeper/rootfs"
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
T = TypeVar("T")
_NAMES = itertools.count(1)

ALL_CAPABILITIES = [
    *("CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_BPF"),
    *("CAP_CHECKPOINT_RESTORE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"),
    *("CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE"),
    *("CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN"),
    *("CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_PERFMON", "CAP_SETFCAP"),
    *("CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT"),
    *("CAP_SYS_CHROOT", "CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT", "CAP_SYS_PTRACE"),
    *("CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG"),
    "CAP_WAKE_ALARM",
]
EVERYTHING = dict.fromkeys(("bounding", "effective", "permitted", "inheritable"), ALL_CAPABILITIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a script ended and what it said."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode()


class Guest:
    """A VM that has booted, with a channel to its daemon."""

    def __init__(self, vm: Vm, channel: aio.Channel) -> None:
        self.vm = vm
        self.channel = channel
        self.host = host_pb2_grpc.HostStub(channel)
        self.sandbox = sandbox_pb2_grpc.SandboxStub(channel)
        self.devices = devices_pb2_grpc.DevicesStub(channel)
        self.storages = storages_pb2_grpc.StoragesStub(channel)
        self.containers = containers_pb2_grpc.ContainersStub(channel)
        self.processes = processes_pb2_grpc.ProcessesStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]

    async def describe(self) -> sandbox.DescribeSandboxResponse:
        return await self.when_serving(
            lambda: self.sandbox.Describe(sandbox.DescribeSandboxRequest(), timeout=60)
        )

    async def when_serving(self, call: Callable[[], Awaitable[T]], *, limit: float = 120) -> T:
        """The call's answer, asked again for as long as the agent is away.

        A host does the same: the relay refuses at once, so that nothing hangs.
        """
        async with asyncio.timeout(limit):
            while True:
                try:
                    return await call()
                except aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
                await asyncio.sleep(0.2)

    async def start(self, script: str, *, id: str = "", **parts: Any) -> str:  # noqa: A002
        """Creates and starts a container that runs `script`; its id."""
        name = id or f"c{next(_NAMES)}"
        create = create_request(name, script, **parts)
        start = containers.StartContainerRequest(id=name)
        await self.when_serving(lambda: self.containers.Create(create))
        await self.when_serving(lambda: self.containers.Start(start))
        return name

    async def run(self, script: str, **parts: Any) -> Finished:
        """Runs `script` in a fresh container and removes it."""
        name = await self.start(script, **parts)
        try:
            return await self.follow(types.ProcessRef(container_id=name))
        finally:
            await self.remove(name)

    async def probe(self, script: str) -> str:
        """Output of `script`, run with the guest's own processes in sight."""
        finished = await self.run(script, **PROBE)
        assert finished.code == 0, finished
        return finished.text

    async def remove(self, name: str) -> None:
        request = containers.RemoveContainerRequest(id=name)
        await self.when_serving(lambda: self.containers.Remove(request))

    async def follow(self, ref: types.ProcessRef, *, limit: float = 240) -> Finished:
        """All output from the beginning to the exit, which must come within `limit` seconds."""
        output = {types.STREAM_KIND_STDOUT: b"", types.STREAM_KIND_STDERR: b""}
        call = self.processes.Attach(timeout=limit)
        await call.write(processes.AttachRequest(open=processes.OpenStreams(process=ref)))
        try:
            code = await _collect(call, output)
        except aio.AioRpcError as error:
            for name, said in zip(("output", "errors"), output.values(), strict=True):
                error.add_note(f"{name} until then: {said[-4000:].decode(errors='replace')}")
            raise
        stdout, stderr = output.values()
        return Finished(code=code, stdout=stdout, stderr=stderr)

    async def wait(self, name: str, exec_id: str = "") -> types.ExitStatus:
        """The exit; asked for again when the agent dies meanwhile, as hosts do."""
        ref = types.ProcessRef(container_id=name, exec_id=exec_id)
        request = processes.WaitRequest(process=ref)
        answer = await self.when_serving(lambda: self.processes.Wait(request), limit=120)
        return answer.exit


async def _collect(call: Any, output: dict[Any, bytes]) -> int:
    """The exit code; what is said until then is added to `output`."""
    async for answer in call:
        match answer.WhichOneof("frame"):
            case "output":
                frame = answer.output
                assert frame.offset == len(output[frame.stream])
                output[frame.stream] += frame.data
            case "exit":
                return int(answer.exit.code)
    raise AssertionError("the stream ended without an exit")


def create_request(
    name: str,
    script: str,
    *,
    mounts: list[dict[str, Any]] | None = None,
    linux: dict[str, Any] | None = None,
    process: dict[str, Any] | None = None,
    storages: tuple[containers.StorageMount, ...] = (),
    devices: tuple[containers.DeviceGrant, ...] = (),
) -> containers.CreateContainerRequest:
    """A container that runs `script` with the image's default root under a writable layer."""
    spec: dict[str, Any] = {
        "ociVersion": "1.1.0",
        "process": {"args": ["sh", "-c", script], "cwd": "/", "env": [PATH], **(process or {})},
    }
    if mounts is not None:
        spec["mounts"] = mounts
    if linux is not None:
        spec["linux"] = linux
    return containers.CreateContainerRequest(
        id=name,
        spec=json.dumps(spec).encode(),
        path=DEFAULT_ROOT,
        writable_layer=True,
        storages=storages,
        devices=devices,
    )


PROBE: dict[str, Any] = {
    "process": {"capabilities": EVERYTHING},
    "linux": {
        "namespaces": [{"type": "mount"}],
        "maskedPaths": [],
        "readonlyPaths": [],
        "resources": {"devices": [{"allow": True, "access": "rwm"}]},
    },
    "mounts": [
        {"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"]},
        {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind"]},
        {"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"]},
        {"destination": "/guest", "type": "bind", "source": "/", "options": ["rbind"]},
    ],
}


@asynccontextmanager
async def booted(spec: VmSpec) -> AsyncIterator[Guest]:
    """A VM for the length of a block; it is stopped on the way out whatever happens."""
    vm = await start_vm(spec)
    try:
        async with vm.channel() as channel:
            yield Guest(vm, channel)
    finally:
        await vm.stop()


def reason(error: aio.AioRpcError) -> str:
    """The stable reason that a failed call carries.

    The host's own refusals of what the guest refused carry both, the guest's last.
    """
    found = [""]
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    assert info.domain == "innkeeper"
                    found.append(str(info.reason))
    return found[-1]


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """Code and reason of a call that must fail."""
    try:
        answer = await call
    except aio.AioRpcError as error:
        return error.code(), reason(error)
    raise AssertionError(f"it succeeded: {answer}")

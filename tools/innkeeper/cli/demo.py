"""`innkeeper demo`: the whole path, from the command line to a container and back.

What it claims is checked from outside: the guest has to give back the SHA-256
of a nonce that only the host knew, and after power-off no process of the VM may
be left. `demo: ok` is printed after that and never otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.cli import options, output, workload
from innkeeper.cli.attached import where
from innkeeper.cli.descriptors import Collector
from innkeeper.cli.errors import CliError, explain
from innkeeper.cli.guest import plug
from innkeeper.cli.loop import wait_for
from innkeeper.cli.options import DiskOption
from innkeeper.cli.steps import StepError, step
from innkeeper.shim import guest_disk
from innkeeper.shim.client import Phase, Vm, VmSpec, start_vm
from innkeeper.shim.images import find_image
from innkeeper.shim.statedir import VmPaths
from innkeeper.shim.streams import ProcessStreams, StreamEnds
from innkeeper.v1 import (
    containers_pb2,
    containers_pb2_grpc,
    host_pb2,
    sandbox_pb2,
    sandbox_pb2_grpc,
    storages_pb2,
    storages_pb2_grpc,
)

if TYPE_CHECKING:
    from grpc import aio

_INIT = ("/usr/bin/python3", "-IS", "/usr/lib/innkeeper/init")
_EXIT_CODE = 42
_DISK = "nonce"
_CONTAINER = "demo"
_DISK_SIZE = 64 << 20
_CONSOLE_LINES = 30


@dataclass(slots=True)
class Evidence:
    """What the guest said, and what the host knows of it."""

    nonce: bytes
    output: bytes = b""
    exit_code: int = -1
    init: tuple[str, ...] = ()
    qemu_pid: int = 0
    clean: bool = False


def demo(
    image: options.ImageOption = "cloud",
    accel: options.AccelOption = "auto",
    transport: options.TransportOption = "serial",
) -> None:
    """Boots a VM, plugs a disk in, runs a container from it, and checks every step.

    The last line is "demo: ok", or an error that names the step; the exit code
    is 0 or 1.

    \b
    Examples:
      innkeeper demo
      innkeeper demo --transport auto --image generic
    """
    name = f"demo-{secrets.token_hex(4)}"
    spec = VmSpec(name=name, image=image, accel=accel, transport=transport, tied=True)
    try:
        wait_for(_demo(options.vm_spec(spec)))
    except StepError as failure:
        output.fail(f'demo failed at "{failure.step}": {explain(failure.__cause__ or failure)}')
        for note in getattr(failure, "__notes__", ()):
            output.fail(note)
        sys.exit(1)
    output.say("demo: ok")


async def _demo(spec: VmSpec) -> None:
    evidence = Evidence(nonce=secrets.token_bytes(32))
    with tempfile.TemporaryDirectory(prefix="innkeeper-demo-") as folder:
        _show_image(spec.image)
        disk = _make_disk(Path(folder), evidence.nonce)
        vm = await _boot(spec)
        try:
            await _use(vm, disk, evidence)
            await _power_off(vm, evidence)
        except BaseException as failure:
            failure.add_note(console_tail(vm))
            with contextlib.suppress(Exception):
                await vm.stop()
            raise
    with step("checked") as running:
        check(evidence, vm.directory)
        running.result = "SHA-256, exit code and PID 1 are right, no QEMU is left"


def _show_image(name: str) -> None:
    with step("image") as running:
        image = find_image(name)
        running.result = f"{name}, Linux {image.kernel_version}, {image.size / 1e6:.0f} MB"


def _make_disk(folder: Path, nonce: bytes) -> DiskOption:
    with step("disk made") as running:
        tree = folder / "tree"
        tree.mkdir()
        (tree / "nonce").write_bytes(nonce)
        made = guest_disk.make_disk(tree, folder / "disk.img", size=_DISK_SIZE, label=_DISK)
        running.result = f"{output.size(made.size)} ext4 with a fresh nonce of {len(nonce)} bytes"
    return DiskOption(file=made.file, mount="/data")


async def _boot(spec: VmSpec) -> Vm:
    """Two steps of one call: what comes before PID 1, and what comes after."""
    early = asyncio.Event()
    starting = asyncio.create_task(
        start_vm(spec, on_progress=lambda at: early.set() if at.phase is Phase.PID1 else None)
    )
    starting.add_done_callback(lambda _: early.set())
    try:
        with step("boot") as running:
            await early.wait()
            running.result = "QEMU, kernel, our PID 1"
            if starting.done():
                starting.result()
        with step("agent ready") as running:
            vm = await starting
            found = await vm.describe()
            running.result = (
                f"first answer {found.first_answer_micros / 1e6:.2f} s after QEMU's start"
                f" ({found.accelerator}, {found.transport})"
            )
    finally:
        starting.cancel()
    return vm


async def _use(vm: Vm, disk: DiskOption, evidence: Evidence) -> None:
    async with vm.channel() as channel:
        await _describe(vm, channel, evidence)
        with step("disk plugged") as running:
            plugged = await plug(vm, _DISK, disk)
            running.result = where(plugged.attached[0])
        with step("mounted") as running:
            mount_point = await workload.attach_storage(channel, _DISK, disk)
            running.result = f"{disk.fs_type} at {mount_point}"
        with step("container ran") as running:
            await _run_container(channel, disk, evidence)
            said = evidence.output.decode(errors="replace").strip()
            running.result = f"exit code {evidence.exit_code}, output: {said}"
        with step("unplugged"):
            await _release(channel)
            await vm.unplug(_DISK)


async def _describe(vm: Vm, channel: aio.Channel, evidence: Evidence) -> None:
    with step("guest") as running:
        found: host_pb2.VmDescription = await vm.describe()
        evidence.qemu_pid = found.qemu_pid
        stub = sandbox_pb2_grpc.SandboxStub(channel)
        guest = await stub.Describe(sandbox_pb2.DescribeSandboxRequest())
        evidence.init = tuple(guest.init_command_line)
        running.result = (
            f"agent {guest.agent_version} on Linux {guest.kernel}, PID 1: {' '.join(evidence.init)}"
        )


async def _run_container(channel: aio.Channel, disk: DiskOption, evidence: Evidence) -> None:
    script = f"sha256sum {disk.mount}/nonce; exit {_EXIT_CODE}"
    container = workload.ContainerOptions(
        id=_CONTAINER,
        process=workload.ProcessOptions(argv=("sh", "-c", script)),
        storages={_DISK: disk.mount},
    )
    process = await workload.start_container(channel, container)
    stdout, stderr = Collector(), Collector()
    ends = StreamEnds(stdout=stdout, stderr=stderr)
    ended = await ProcessStreams(channel, process, ends).run()
    evidence.output, evidence.exit_code = stdout.data + stderr.data, ended.code


async def _release(channel: aio.Channel) -> None:
    """The disk can go when nobody uses it: container first, then the mount."""
    containers = containers_pb2_grpc.ContainersStub(channel)
    await containers.Remove(containers_pb2.RemoveContainerRequest(id=_CONTAINER))
    storages = storages_pb2_grpc.StoragesStub(channel)
    await storages.Detach(storages_pb2.DetachStorageRequest(id=_DISK))


async def _power_off(vm: Vm, evidence: Evidence) -> None:
    with step("powered off") as running:
        evidence.clean = await vm.stop()
        running.result = "by the guest itself" if evidence.clean else "by force"


def check(evidence: Evidence, directory: Path) -> None:
    """Raises CliError for the first thing that is not as it must be; `directory` was the VM's."""
    expected = hashlib.sha256(evidence.nonce).hexdigest()
    words = evidence.output.decode(errors="replace").split()
    _require(words[:1] == [expected], f"SHA-256 of the nonce is {expected}, not {words[:1]}")
    code = evidence.exit_code
    _require(code == _EXIT_CODE, f"exit code {code} instead of {_EXIT_CODE}")
    _require(evidence.init[:3] == _INIT, f"PID 1 of the guest is {' '.join(evidence.init)!r}")
    _require(evidence.clean, "the guest did not power itself off")
    left = left_processes(directory, evidence.qemu_pid)
    _require(not left, f"processes of the VM are left: {left}")


def _require(good: bool, otherwise: str) -> None:  # noqa: FBT001 - a condition is the subject here
    if not good:
        raise CliError(otherwise)


def left_processes(directory: Path, qemu_pid: int, proc: Path = Path("/proc")) -> dict[int, str]:
    """Processes that are QEMU's old one, or have the VM's directory in their command line."""
    found = {}
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        command = _command_line(entry)
        if str(directory) in command or (int(entry.name) == qemu_pid and "qemu" in command):
            found[int(entry.name)] = command
    return found


def _command_line(process: Path) -> str:
    """Empty for a process that has ended, waited for or not."""
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def console_tail(vm: Vm) -> str:
    path = VmPaths(directory=vm.directory).console_log
    try:
        lines = path.read_text(errors="replace").splitlines()[-_CONSOLE_LINES:]
    except OSError as error:
        return f"the console can't be shown: {error}"
    return "\n".join(["the console's last lines:", *(f"  {line}" for line in lines)])

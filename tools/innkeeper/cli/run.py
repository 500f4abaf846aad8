"""`innkeeper run`: a VM for one command."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from innkeeper.cli import options, output, terminal, workload
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.loop import wait_for
from innkeeper.cli.options import DiskOption
from innkeeper.shim import guest_disk
from innkeeper.shim.client import Vm, VmSpec, start_vm
from innkeeper.v1 import host_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpc import aio

CONTAINER = "main"
_ROOT_DISK = "root"
_STOP_GRACE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """All that `innkeeper run` is asked for."""

    spec: VmSpec
    process: workload.ProcessOptions
    disks: tuple[DiskOption, ...] = ()
    rootfs: Path | None = None
    keep: bool = False


def run(  # noqa: PLR0913 - typer makes each parameter an option
    command: options.CommandArgument,
    name: options.NewNameOption = "",
    rootfs: options.RootOption = "",
    disk: options.DisksOption = None,
    *,
    tty: options.TerminalOption = False,
    stdin: options.StdinOption = True,
    env: options.EnvironmentOption = None,
    workdir: options.DirectoryOption = "/",
    user: options.UserOption = "0:0",
    memory: options.MemoryOption = "512M",
    cpus: options.CpusOption = 1,
    image: options.ImageOption = "cloud",
    accel: options.AccelOption = "auto",
    transport: options.TransportOption = "auto",
    keep: options.KeepOption = False,
) -> None:
    """Boots a VM, runs a command in a container there, and takes everything down again.

    The command's output is all that goes to stdout, byte for byte, and its exit
    code is ours (128+n when signal n ended it; 125 when we failed, 126 and 127
    when the command could not be run or was not found).

    Ctrl-C goes to the command; a second one ends the VM.

    \b
    Examples:
      innkeeper run -- sha256sum /etc/passwd
      echo hello | innkeeper run -- tr a-z A-Z
      innkeeper run -t -- sh
      innkeeper run --disk data.img:/data:ro -- ls -l /data
      innkeeper run --rootfs ./debian-root --memory 1G -- /usr/bin/make -C /src
      innkeeper run --rootfs alpine.tar.gz --env HOME=/root -- apk info
    """
    process = _process(command, env or [], workdir, user, terminal=tty, stdin=stdin)
    spec = VmSpec(
        name=name or f"run-{secrets.token_hex(4)}",
        image=image,
        memory=options.parse_size(memory),
        cpus=cpus,
        accel=accel,
        transport=transport,
        tied=not keep,
    )
    request = RunRequest(
        spec=options.vm_spec(spec),
        process=process,
        disks=tuple(options.parse_disk(text) for text in disk or []),
        rootfs=options.existing_file(rootfs) if rootfs else None,
        keep=keep,
    )
    raise typer.Exit(wait_for(run_request(request)))


def _process(
    command: list[str],
    env: list[str],
    workdir: str,
    user: str,
    *,
    terminal: bool,
    stdin: bool,
) -> workload.ProcessOptions:
    given = options.parse_environment(env)
    return workload.ProcessOptions(
        argv=tuple(command),
        environment=workload.full_environment(given, with_terminal=terminal),
        directory=workdir,
        user=options.parse_user(user),
        terminal=terminal,
        stdin=stdin,
    )


async def run_request(request: RunRequest) -> int:
    """The exit code; raises what is in errors.EXPECTED, with the VM gone."""
    if request.process.terminal:
        terminal.require()
    async with Interrupts() as interrupts:
        try:
            return await _boot_and_run(request, interrupts)
        except (asyncio.CancelledError, BrokenPipeError) as error:
            return interrupts.code_of(error)


async def _boot_and_run(request: RunRequest, interrupts: Interrupts) -> int:
    vm = await boot(request.spec)
    try:
        async with vm.channel() as channel:
            with output.busy(f"{vm.name}: starting the container") as show:
                await _plug_all(vm, channel, request, show)
                process = await workload.start_container(channel, _container(request))
            return await workload.follow(channel, process, request.process, interrupts)
    finally:
        await _take_down(vm, request)


async def boot(spec: VmSpec) -> Vm:
    """Starts a VM, with a display of its progress on a terminal."""
    with output.busy(f"{spec.name}: starting") as show:
        return await start_vm(
            spec, on_progress=lambda at: show(f"{spec.name}: {at.text} ({at.seconds:.1f} s)")
        )


async def _plug_all(
    vm: Vm, channel: aio.Channel, request: RunRequest, show: Callable[[str], None]
) -> None:
    if request.rootfs is not None:
        show(f"{vm.name}: making a disk from {request.rootfs}")
        await _plug_root(vm, channel, request.rootfs)
    for storage_id, disk in _named(request.disks).items():
        show(f"{vm.name}: plugging in {disk.file}")
        await plug(vm, storage_id, disk)
        await workload.attach_storage(channel, storage_id, disk)


async def _plug_root(vm: Vm, channel: aio.Channel, source: Path) -> None:
    """The image file is nameless once QEMU has it open, so nothing has to clean it up."""
    with tempfile.TemporaryDirectory(prefix="innkeeper-", dir=_large_temporary()) as folder:
        target = Path(folder, "root.img")
        made = await asyncio.to_thread(guest_disk.make_disk, source, target, label="root")
        if made.left_out:
            output.warn(f"{source}: {made.left_out} device nodes left out; only root can make them")
        disk = DiskOption(file=target, mount="/")
        await plug(vm, _ROOT_DISK, disk)
    await workload.attach_storage(channel, _ROOT_DISK, disk)


async def plug(vm: Vm, device_id: str, disk: DiskOption) -> host_pb2.PlugDiskResponse:
    request = host_pb2.PlugDiskRequest(
        id=device_id, file=str(disk.file), format=disk.format, read_only=disk.read_only
    )
    return await vm.plug_disk(request)


def _container(request: RunRequest) -> workload.ContainerOptions:
    return workload.ContainerOptions(
        id=CONTAINER,
        process=request.process,
        root_storage=_ROOT_DISK if request.rootfs is not None else "",
        storages={name: disk.mount for name, disk in _named(request.disks).items()},
    )


def _named(disks: tuple[DiskOption, ...]) -> dict[str, DiskOption]:
    return {f"disk{number}": disk for number, disk in enumerate(disks, 1)}


def _large_temporary() -> str | None:
    """/tmp may be memory; a root file system is too large for that."""
    return None if "TMPDIR" in os.environ or not Path("/var/tmp").is_dir() else "/var/tmp"


async def _take_down(vm: Vm, request: RunRequest) -> None:
    if request.keep:
        output.note(f"{vm.name}: left running; stop it with: innkeeper vm stop {vm.name}")
        return
    clean = await vm.stop(_STOP_GRACE)
    if not clean and any(not disk.read_only for disk in request.disks):
        output.warn(
            f"{vm.name}: did not power off within {_STOP_GRACE:g} s and was ended;"
            " what was written last to its disks may be lost"
        )

"""`innkeeper run`: a VM for one command, or a container in one that runs."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from innkeeper.cli import (
    broken,
    forward_specs,
    nics,
    options,
    output,
    terminal,
    workload,
)
from innkeeper.cli.disk import copy, made_of
from innkeeper.cli.errors import CliError
from innkeeper.cli.forward import tell_chosen
from innkeeper.cli.guest import Guest
from innkeeper.cli.hardware import parse_cold
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.loop import wait_for
from innkeeper.cli.options import DiskOption, GrantOption, MountOption
from innkeeper.image.model import Flavour
from innkeeper.shim import guest_disk
from innkeeper.shim.client import Vm, VmSpec, find_vm, start_vm
from innkeeper.shim.disks import DiskFile
from innkeeper.shim.filling import oci
from innkeeper.shim.images import find_image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grpc import aio

CONTAINER = "main"


# Of no use in a VM that runs already, by parameter.
_OF_A_NEW_VM = (
    *("name", "memory", "cpus", "image", "accel", "transport", "keep", "bridge", "switch"),
    *("second_root", "iommu", "nvdimm", "max_memory", "max_cpus", "private_memory", "share_9p"),
    *("cold", "net", "publish", "forward", "reverse"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """All that `innkeeper run` is asked for."""

    spec: VmSpec | None
    """The VM to boot; None to use the one that runs under the name `vm`."""
    process: workload.ProcessOptions
    disks: tuple[DiskOption, ...] = ()
    shares: tuple[MountOption, ...] = ()
    storages: tuple[MountOption, ...] = ()
    """Those that are in the VM already."""
    interfaces: tuple[nics.Nic, ...] = ()
    """Those that a new VM has from the start."""
    devices: tuple[GrantOption, ...] = ()
    rootfs: Path | None = None
    image: str = ""
    """Of a root that is an OCI layout with several: its name."""
    keep: bool = False
    vm: str = ""
    container: str = CONTAINER

    @property
    def root_disk(self) -> str:
        return self._named("root")

    @property
    def named_disks(self) -> dict[str, DiskOption]:
        """By the id of device and storage."""
        return {self._named(f"disk{at}"): disk for at, disk in enumerate(self.disks, 1)}

    @property
    def named_shares(self) -> dict[str, MountOption]:
        return {self._named(f"share{at}"): share for at, share in enumerate(self.shares, 1)}

    def _named(self, name: str) -> str:
        """In a VM of its own the plain name; others may have that one in a shared VM."""
        return name if self.spec is not None else f"{self.container}-{name}"


def run(  # noqa: PLR0913 - typer makes each parameter an option
    context: typer.Context,
    command: options.CommandArgument,
    vm: options.RunningOption = "",
    name: options.NewNameOption = "",
    rootfs: options.RootOption = "",
    disk: options.DisksOption = None,
    share: options.SharesOption = None,
    storage: options.StoragesOption = None,
    device: options.DevicesOption = None,
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
    bridge: options.BridgeOption = False,
    switch: options.SwitchOption = False,
    second_root: options.SecondRootOption = False,
    iommu: options.IommuOption = False,
    nvdimm: options.NvdimmOption = False,
    max_memory: options.MaxMemoryOption = "",
    max_cpus: options.MaxCpusOption = 0,
    share_9p: options.NinePOption = None,
    private_memory: options.PrivateMemoryOption = False,
    cold: options.ColdOption = None,
    net: options.NetsOption = None,
    publish: forward_specs.PublishOption = None,
    forward: forward_specs.ForwardOption = None,
    reverse: forward_specs.ReverseOption = None,
) -> None:
    """Boots a VM, runs a command in a container there, and takes everything down again.

    The command's output is all that goes to stdout, byte for byte, and its exit
    code is ours (128+n when signal n ended it; 125 when we failed, 126 and 127
    when the command could not be run or was not found).

    Ctrl-C goes to the command; a second one ends the VM.

    With --vm the VM is one of `innkeeper vm start`, and stays: only the container
    and its disks are taken away again.

    \b
    Examples:
      innkeeper run -- sha256sum /etc/passwd
      echo hello | innkeeper run -- tr a-z A-Z
      innkeeper run -t -- sh
      innkeeper run --disk data.img:/data:ro -- ls -l /data
      innkeeper run --share .:/src:ro -- ls -l /src
      innkeeper run --rootfs ./debian-root --memory 1G -- /usr/bin/make -C /src
      innkeeper run --rootfs alpine.tar.gz --env HOME=/root -- apk info
      innkeeper run -p 8080:80 -- httpd -f -h /srv
      innkeeper run --net user -- wget -qO- http://10.0.2.2:8000/
      innkeeper run --vm web --disk data.img:/data -- ls -l /data
      innkeeper run --vm web --storage conf:/etc/app:ro --device gpu0 -- app
    """
    process = _process(command, env or [], workdir, user, terminal=tty, stdin=stdin)
    fresh = f"run-{secrets.token_hex(4)}"
    _check_words_of(context, vm)
    interfaces = tuple(nics.parse_net(text) for text in net or [])
    spec = VmSpec(
        name=name or fresh,
        image=image,
        memory=options.parse_memory(memory),
        cpus=cpus,
        accel=accel,
        transport=transport,
        tied=not keep,
        bridge=bridge,
        switch=switch,
        second_root=second_root,
        iommu=iommu,
        nvdimm=nvdimm,
        max_memory=options.parse_max_memory(max_memory),
        max_cpus=max_cpus,
        private_memory=private_memory,
        shares_9p=tuple(options.parse_9p(text) for text in share_9p or []),
        cold=parse_cold(cold or []) + nics.cold_devices(interfaces),
        forwards=forward_specs.parse_all(publish, forward, reverse),
    )
    root, image = oci.split(rootfs)
    request = RunRequest(
        spec=None if vm else options.vm_spec(spec),
        process=process,
        disks=tuple(options.parse_disk(text) for text in disk or []),
        shares=tuple(options.parse_share(text) for text in share or []),
        storages=tuple(options.parse_mount("--storage", text) for text in storage or []),
        interfaces=interfaces,
        devices=tuple(options.parse_grant(text) for text in device or []),
        rootfs=options.existing_file(str(root)) if rootfs else None,
        image=image,
        keep=keep,
        vm=vm,
        container=fresh if vm else CONTAINER,
    )
    raise typer.Exit(wait_for(run_request(request)))


def _check_words_of(context: typer.Context, vm: str) -> None:
    """Raises typer.BadParameter for what means nothing to a VM that is new, or is not."""
    if not vm and (context.params["storage"] or context.params["device"]):
        raise typer.BadParameter("--storage and --device want --vm: a new VM has none yet")
    for parameter in _OF_A_NEW_VM if vm else ():
        source = context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE":
            word = parameter.replace("_", "-")
            raise typer.BadParameter(
                f"--{word} is for a new VM, and --vm takes one that runs already"
            )


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
        directory=options.parse_directory(workdir),
        user=options.parse_user(user),
        terminal=terminal,
        stdin=stdin,
    )


async def run_request(request: RunRequest) -> int:
    """The exit code; raises what is in errors.EXPECTED, with all gone that came for it."""
    if request.process.terminal:
        terminal.require()
    check_files(request)
    async with Interrupts() as interrupts:
        try:
            if request.spec is None:
                return await _use(find_vm(request.vm), request, interrupts)
            return await _boot_and_run(request.spec, request, interrupts)
        except (asyncio.CancelledError, BrokenPipeError) as error:
            return interrupts.code_of(error)


def check_files(request: RunRequest) -> None:
    """What can be known to fail before there is a VM. Raises ShimError, DiskError, CliError."""
    if request.rootfs is not None:
        guest_disk.check_source(request.rootfs)
        if oci.is_layout(request.rootfs):
            oci.Layout(request.rootfs, request.image)
    seen: list[DiskOption] = []
    for disk in request.disks:
        DiskFile.check(str(disk.file), disk.format, read_only=disk.read_only)
        for other in seen:
            if disk.file.samefile(other.file) and not (disk.read_only and other.read_only):
                raise CliError(
                    f"--disk {disk.file}: given twice, and the guest would write to it",
                    hint="give it once, or with :ro each time",
                )
        seen.append(disk)


async def _boot_and_run(spec: VmSpec, request: RunRequest, interrupts: Interrupts) -> int:
    vm = await boot(spec, request.interfaces)
    try:
        tell_chosen(vm, spec.forwards)
        async with vm.channel() as channel, broken.explained(vm, channel):
            # What would have to be taken away again goes with the VM.
            return await _run_in(vm, channel, request, interrupts, AsyncExitStack())
    finally:
        await _take_down(vm, request)


async def _use(vm: Vm, request: RunRequest, interrupts: Interrupts) -> int:
    async with (
        vm.channel() as channel,
        broken.explained(vm, channel),
        AsyncExitStack() as undo,
    ):
        return await _run_in(vm, channel, request, interrupts, undo)


async def _run_in(
    vm: Vm,
    channel: aio.Channel,
    request: RunRequest,
    interrupts: Interrupts,
    undo: AsyncExitStack,
) -> int:
    with output.busy(f"{vm.name}: starting the container") as show:
        guest = Guest(vm=vm, channel=channel, undo=undo)
        await _plug_all(guest, request, show)
        process = await guest.start_container(_container(request))
    return await workload.follow(channel, process, request.process, interrupts)


async def boot(spec: VmSpec, interfaces: Sequence[nics.Nic] = ()) -> Vm:
    """Starts a VM, with a display of its progress on a terminal, and sets its interfaces
    up; where that fails, no VM is left."""
    if spec.shares_9p and find_image(spec.image).flavour is Flavour.CLOUD:
        output.warn("the kernel of the image cloud has no 9p: take --image generic, or --share")
    with output.busy(f"{spec.name}: starting") as show:
        vm = await start_vm(
            spec, on_progress=lambda at: show(f"{spec.name}: {at.text} ({at.seconds:.1f} s)")
        )
        try:
            await nics.set_up(vm, interfaces)
        except BaseException:
            await vm.end()
            raise
        return vm


async def _plug_all(guest: Guest, request: RunRequest, show: Callable[[str], None]) -> None:
    name = guest.vm.name
    if request.rootfs is not None:
        show(f"{name}: making a disk from {request.rootfs}")
        await _plug_root(guest, request.root_disk, request.rootfs, request.image)
    for storage_id, disk in request.named_disks.items():
        show(f"{name}: plugging in {disk.file}")
        await guest.plug(storage_id, disk)
        await guest.mount(storage_id, disk)
    for storage_id, share in request.named_shares.items():
        show(f"{name}: sharing {share.what}")
        await guest.share(storage_id, share)


async def _plug_root(guest: Guest, storage_id: str, source: Path, image: str) -> None:
    """The image file is nameless once QEMU has it open, so nothing has to clean it up."""
    with tempfile.TemporaryDirectory(prefix="innkeeper-", dir=_large_temporary()) as folder:
        target = Path(folder, "root.img")
        if oci.is_layout(source):
            await asyncio.to_thread(_copy_of_image, source, image, target)
        else:
            await asyncio.to_thread(_fill, source, target)
        disk = DiskOption(file=target, mount="/")
        await guest.plug(storage_id, disk)
    await guest.mount(storage_id, disk)


def _copy_of_image(layout: Path, image: str, target: Path) -> None:
    """Made once; each container writes to a copy of its own."""
    text = f"{layout}:{image}" if image else str(layout)
    copy(made_of(text, "ext4", writable=True), target)


def _fill(source: Path, target: Path) -> None:
    made = guest_disk.make_disk(source, target, label="root")
    if made.left_out:
        output.warn(f"{source}: {made.left_out} device nodes left out; only root can make them")


def _container(request: RunRequest) -> workload.ContainerOptions:
    own = {name: disk.mount for name, disk in request.named_disks.items()}
    own |= {name: share.mount for name, share in request.named_shares.items()}
    return workload.ContainerOptions(
        id=request.container,
        process=request.process,
        root_storage=request.root_disk if request.rootfs is not None else "",
        storages=own,
        mounts=request.storages,
        devices=request.devices,
    )


def _large_temporary() -> str | None:
    """/tmp may be memory; a root file system is too large for that."""
    return None if "TMPDIR" in os.environ or not Path("/var/tmp").is_dir() else "/var/tmp"


async def _take_down(vm: Vm, request: RunRequest) -> None:
    if request.keep:
        output.note(f"{vm.name}: left running; stop it with: innkeeper vm stop {vm.name}")
        return
    ending = await vm.end()
    if not ending.clean and any(not disk.read_only for disk in request.disks):
        output.warn(
            f"{vm.name}: {ending.why}, so it was ended;"
            " what was written last to its disks may be lost"
        )

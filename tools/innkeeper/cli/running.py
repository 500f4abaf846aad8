"""What `innkeeper run` does once it is known what is asked for."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.cli import broken, detach, grants, nics, output, refs, retold, terminal, workload
from innkeeper.cli.booting import boot
from innkeeper.cli.disk import copy, made_of
from innkeeper.cli.errors import CliError
from innkeeper.cli.forward import tell_chosen
from innkeeper.cli.guest import Guest
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.options import DiskOption, GrantOption, MountOption
from innkeeper.shim import guest_disk
from innkeeper.shim.client import Vm, VmSpec, find_vm
from innkeeper.shim.disks import DiskFile
from innkeeper.shim.filling import oci

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innkeeper.cli.netdns import Change
    from innkeeper.cli.stopping import Stop
    from innkeeper.v1 import types_pb2

CONTAINER = "main"


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
    dns: Change | None = None
    """Of a new VM."""
    devices: tuple[GrantOption, ...] = ()
    all_devices: bool = False
    rootfs: Path | None = None
    image: str = ""
    """Of a root that is an OCI layout with several: its name."""
    root_storage: str = ""
    """A storage of the VM's as root."""
    oci: Mapping[str, object] = field(default_factory=dict)
    """Members of the container's specification, but for its process."""
    shared_namespaces: tuple[str, ...] = ()
    log: types_pb2.OutputLog | None = None
    detached: bool = False
    keep: bool = False
    stop: Stop | None = None
    keys: bytes = b""
    """Typed in a terminal, they detach."""
    vm: str = ""
    container: str = CONTAINER

    @property
    def stays(self) -> bool:
        """What was made for it is there afterwards."""
        return self.keep or self.detached

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


async def run_request(request: RunRequest) -> int:
    """The exit code; raises what is in errors.EXPECTED, with all gone that came for it."""
    if request.process.terminal and not request.detached:
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
    vm = await boot(spec, request.interfaces, request.dns)
    started = False
    try:
        tell_chosen(vm, spec.forwards)
        async with vm.channel() as channel, broken.explained(vm, channel):
            # What would have to be taken away again goes with the VM.
            guest = Guest(vm=vm, channel=channel, undo=AsyncExitStack())
            process = await _start(guest, request)
            started = True
            return await _follow(guest, process, request, interrupts)
    finally:
        if not (request.detached and started):
            await _take_down(vm, request)


async def _use(vm: Vm, request: RunRequest, interrupts: Interrupts) -> int:
    async with (
        vm.channel() as channel,
        broken.explained(vm, channel),
        AsyncExitStack() as undo,
    ):
        guest = Guest(vm=vm, channel=channel, undo=undo)
        process = await _start(guest, request)
        if request.stays:
            undo.pop_all()
        return await _follow(guest, process, request, interrupts)


async def _start(guest: Guest, request: RunRequest) -> types_pb2.ProcessRef:
    with output.busy(f"{guest.vm.name}: starting the container") as show:
        # Before our own disks are there, which are not among its devices.
        wanted = await _devices(guest, request)
        await _plug_all(guest, request, show)
        layer = await _needs_layer(guest, request)
        with retold.taken_name(guest.vm.name, request.container):
            return await guest.start_container(container_options(request, wanted, layer=layer))


async def _follow(
    guest: Guest, process: types_pb2.ProcessRef, request: RunRequest, interrupts: Interrupts
) -> int:
    if request.detached:
        if not request.process.stdin:
            await workload.close_input(guest.channel, process)
        name = f"{guest.vm.name} " if request.spec is not None else ""
        output.say(f"{name}{refs.text(process)}")
        return 0
    try:
        return await workload.follow(
            guest.channel, process, request.process, interrupts, keys=request.keys
        )
    except detach.Detached:
        guest.undo.pop_all()
        detach.tell(guest.vm.name, process)
        return 0
    except (asyncio.CancelledError, BrokenPipeError, CliError):
        if request.stop is not None:
            await request.stop.ask(guest.channel, process)
        raise


async def _devices(guest: Guest, request: RunRequest) -> grants.Wanted:
    """Attached, where they were not yet."""
    if not (request.devices or request.all_devices):
        return grants.Wanted(grants=())
    wanted = grants.resolve(
        request.devices,
        await guest.devices(),
        request.container,
        everything=request.all_devices,
    )
    for device in wanted.attach:
        with retold.missing_node(guest.vm.name, device):
            await guest.attach(device)
    return wanted


async def _needs_layer(guest: Guest, request: RunRequest) -> bool:
    """A storage that can't be written to gets a layer in memory, as a root needs one: what
    is mounted below it wants directories."""
    if not request.root_storage:
        return False
    return await guest.is_read_only(request.root_storage)


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


def container_options(
    request: RunRequest, wanted: grants.Wanted, *, layer: bool
) -> workload.ContainerOptions:
    own = {name: disk.mount for name, disk in request.named_disks.items()}
    own |= {name: share.mount for name, share in request.named_shares.items()}
    made = request.root_disk if request.rootfs is not None else ""
    return workload.ContainerOptions(
        id=request.container,
        process=request.process,
        root_storage=request.root_storage or made,
        root_layer=layer,
        storages=own,
        mounts=request.storages,
        grants=wanted.grants,
        spec=request.oci,
        shared_namespaces=request.shared_namespaces,
        log=request.log,
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

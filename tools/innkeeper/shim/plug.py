"""Plugging and unplugging a disk: one transaction over QEMU and the guest.

Plug: open the file in QEMU (`blockdev-add`), put the device into a free port
(`device_add`) while the guest's agent already waits for it, take the agent's
answer. Unplug: the agent lets go (PREPARE), the guest's kernel is asked to
release the device (`device_del`), QEMU tells that it did (DEVICE_DELETED), the
agent forgets it (COMPLETE), the file is closed (`blockdev-del`). On any failure
the steps that were done are undone in reverse.

Removal is the guest kernel's to grant. When it takes longer than the caller
wants to wait, the device is `LEAVING`: its id, port and file stay taken until
the event comes, however late, because until then the guest can still use them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Any

import grpc

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.plugged import DeviceState, Fate, PluggedDisk, Usable, new_fate, settle
from innkeeper.shim.qmp import QemuRefusedError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from innkeeper.shim.disks import DiskFile
    from innkeeper.shim.plugged import GuestDevices, GuestDisk
    from innkeeper.shim.qmp import Monitor
    from innkeeper.shim.topology import PortPool
    from innkeeper.v1 import devices_pb2

DEFAULT_TIMEOUT = 30.0
LONGEST_TIMEOUT = 3600.0

# How long undoing waits for the guest's kernel before the rest of it waits for
# the event, and how long for each answer of the agent's.
_UNDO_LIMIT = 10.0
_AGENT_LIMIT = 3.0
# A second plug after a removal nobody asked for; a third would fight the guest.
_ATTEMPTS = 2

_log = logging.getLogger(__name__)


class Plugger:
    """The table of plugged devices of one VM."""

    def __init__(self, monitor: Monitor, guest: GuestDevices, ports: PortPool) -> None:
        self._monitor = monitor
        self._guest = guest
        self._ports = ports
        self._table: dict[str, PluggedDisk] = {}
        self._unforgotten: dict[str, GuestDisk] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        monitor.on_event(self._on_event)
        self._run_in_background(self._watch_monitor())

    def list(self) -> tuple[PluggedDisk, ...]:
        """By id; what is only coming is not in it."""
        found = (disk for disk in self._table.values() if disk.state is not DeviceState.PLUGGING)
        return tuple(sorted(found, key=lambda disk: disk.id))

    async def plug(self, device_id: str, file: DiskFile, timeout: float) -> Usable:
        """Returns when the guest can use the disk; `timeout` in seconds for the whole.

        Raises ID_IN_USE, PORT_POOL_EMPTY, FILE_IN_USE, QEMU_REFUSED,
        GUEST_REFUSED, AGENT_AWAY, DEVICE_LOST, OPERATION_TIMED_OUT, QEMU_GONE;
        then, and when it is cancelled, both sides are as before.
        """
        disk = self._admit(device_id, file)
        try:
            async with asyncio.timeout(timeout):
                usable = await self._bring_in(disk, time.monotonic() + timeout)
        except BaseException as error:
            late = _late(f"plug of disk {disk.id}", disk, timeout)
            await self._protect(self._undo(disk))
            if isinstance(error, TimeoutError):
                raise late from None
            raise
        disk.state = DeviceState.PLUGGED
        return usable

    async def unplug(self, device_id: str, timeout: float) -> None:
        """Returns when the device is gone on both sides.

        Raises UNKNOWN_DEVICE, BUSY, GUEST_REFUSED, AGENT_AWAY and QEMU_REFUSED
        with nothing changed; OPERATION_TIMED_OUT and REMOVAL_PENDING while the
        guest has not let go.
        """
        disk = self._pluggable_out(device_id)
        disk.state = DeviceState.UNPLUGGING
        try:
            async with asyncio.timeout(timeout):
                await self._prepare(disk)
                await self._bring_out(disk)
        except TimeoutError:
            raise _late(f"unplug of device {disk.id}", disk, timeout) from None
        await self._protect(self._forget(disk))

    async def close(self) -> None:
        """Ends what runs in the background."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Admission: synchronous, so that two calls never get the same id or port.

    def _admit(self, device_id: str, file: DiskFile) -> PluggedDisk:
        known = self._table.get(device_id)
        if known is not None:
            raise ShimError(
                Reason.ID_IN_USE,
                f"device {device_id}: already {known.state}, at {known.port.pci_path}",
                fields={"id": device_id, "state": known.state},
            )
        port = self._ports.take()
        self._count += 1
        disk = PluggedDisk(id=device_id, file=file, port=port, node=f"disk{self._count}")
        self._table[device_id] = disk
        return disk

    def _pluggable_out(self, device_id: str) -> PluggedDisk:
        disk = self._table.get(device_id)
        fields: dict[str, object] = {"id": device_id}
        if disk is None:
            message = f"device {device_id}: not plugged in"
            raise ShimError(Reason.UNKNOWN_DEVICE, message, fields=fields)
        match disk.state:
            case DeviceState.PLUGGED:
                return disk
            case DeviceState.LEAVING | DeviceState.UNPLUGGING:
                message = f"device {device_id}: removal pending, the guest has not let go yet"
                raise ShimError(Reason.REMOVAL_PENDING, message, fields=fields)
            case DeviceState.PLUGGING:
                message = f"device {device_id}: is being plugged in"
                raise ShimError(Reason.BUSY, message, fields=fields)

    # In.

    async def _bring_in(self, disk: PluggedDisk, deadline: float) -> Usable:
        await self._settle_with_guest()
        disk.step = "opening the file in QEMU"
        await self._open(disk)
        for _ in range(_ATTEMPTS):
            usable = await self._plug_once(disk, deadline)
            if usable is not None:
                return usable
            _log.warning("device %s was removed though nobody asked for it", disk.id)
            disk.step = "waiting for the agent, after a removal nobody asked for"
            await self._guest.ready()
            await self._make_guest_forget(disk.guest)
        raise ShimError(
            Reason.DEVICE_LOST,
            f"device {disk.id}: QEMU removed it from {disk.port.pci_path} {_ATTEMPTS} times"
            " though nobody asked for it",
            hint="the guest may still be scanning its PCI buses; try again",
            fields={"id": disk.id, "pci_path": disk.port.pci_path},
        )

    async def _open(self, disk: PluggedDisk) -> None:
        try:
            await self._monitor.execute("blockdev-add", disk.file.blockdev(disk.node))
        except QemuRefusedError as error:
            raise _file_error(disk, error) from error

    async def _plug_once(self, disk: PluggedDisk, deadline: float) -> Usable | None:
        """None when the device was removed before the guest had answered.

        The agent is asked first: one that waits already sees the device 30 ms
        sooner than one that has to look.
        """
        disk.fate = new_fate()
        disk.asked_for = True
        begun = time.monotonic()
        attach = asyncio.create_task(self._guest.attach_disk(disk.guest, deadline - begun))
        try:
            disk.step = f"plugging it into {disk.port.name}"
            await self._add_frontend(disk)
            disk.step = f"waiting for the guest to find it at {disk.port.pci_path}"
            ends: set[asyncio.Future[Any]] = {attach, disk.fate}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not disk.fate.done():
                return await self._confirm(disk, await attach, begun)
        finally:
            await _end(attach)
        return self._if_removed(disk)

    async def _add_frontend(self, disk: PluggedDisk) -> None:
        try:
            await self._monitor.execute("device_add", disk.frontend())
        except QemuRefusedError as error:
            # QEMU takes the file's lock when somebody begins to use the node.
            if _is_about_lock(error):
                raise _file_error(disk, error) from error
            error.message = f"{error.message} (bus {disk.port.bus})"
            error.fields["bus"] = disk.port.bus
            raise

    async def _confirm(
        self, disk: PluggedDisk, attached: devices_pb2.AttachedDevice, begun: float
    ) -> Usable | None:
        """One more exchange with QEMU: a removal that it told of before is known after it."""
        micros = round((time.monotonic() - begun) * 1e6)
        await self._monitor.execute("query-status")
        if disk.fate.done():
            return self._if_removed(disk)
        return Usable(attached=attached, micros=micros)

    @staticmethod
    def _if_removed(disk: PluggedDisk) -> None:
        if disk.fate.result() is Fate.QEMU_GONE:
            raise _qemu_gone()

    async def _undo(self, disk: PluggedDisk) -> None:
        """Takes everything out again, or leaves the rest to the guest's late event."""
        if disk.asked_for:
            await self._ignore_refusal(self._prepare_if_there(disk.guest))
            try:
                async with asyncio.timeout(_UNDO_LIMIT):
                    await self._bring_out(disk)
            except (ShimError, TimeoutError) as error:
                _log.warning("undo of plug of %s: still in, %s", disk.id, error or disk.step)
                return
        await self._forget(disk)

    async def _prepare_if_there(self, disk: GuestDisk) -> None:
        """Another device may have the id in the guest, which is why it refused ours."""
        if await self._guest.has(disk):
            await self._guest.prepare_detach(disk.id)

    # Out.

    async def _prepare(self, disk: PluggedDisk) -> None:
        disk.step = "waiting for the guest's agent to let go of it"
        try:
            await self._guest.prepare_detach(disk.id)
        except ShimError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                # Somebody made the agent forget it before; nobody there uses it.
                return
            if _is_away(error):
                self._run_in_background(self._keep(disk))
            else:
                await self._protect(self._stay(disk))
            raise
        except asyncio.CancelledError:
            # Not known whether the agent has let go; the caller waits no longer.
            self._run_in_background(self._keep(disk))
            raise

    async def _bring_out(self, disk: PluggedDisk) -> None:
        """`device_del` until QEMU says that it is gone.

        Ended from outside, the device is LEAVING and its late event is
        followed; refused, it is PLUGGED as before.
        """
        disk.step = "waiting for the guest's kernel to release it"
        try:
            await self._ask_removal(disk)
            fate = await asyncio.shield(disk.fate)
        except (ShimError, asyncio.CancelledError) as error:
            if isinstance(error, ShimError):
                await self._protect(self._keep(disk))
            else:
                self._leave(disk)
            raise
        if fate is Fate.QEMU_GONE:
            raise _qemu_gone()
        if fate is Fate.KEPT:
            await self._protect(self._keep(disk))
            message = f"device {disk.id}: the guest's kernel refused to release it"
            raise ShimError(Reason.GUEST_REFUSED, message, fields={"id": disk.id})

    async def _ask_removal(self, disk: PluggedDisk) -> None:
        try:
            await self._monitor.execute("device_del", {"id": disk.qemu_id})
        except QemuRefusedError as error:
            # Not there: never added, or already removed by itself.
            if not error.is_unknown_device:
                raise
            settle(disk.fate, Fate.REMOVED)

    def _leave(self, disk: PluggedDisk) -> None:
        disk.state = DeviceState.LEAVING
        self._run_in_background(self._finish_leaving(disk))

    async def _finish_leaving(self, disk: PluggedDisk) -> None:
        match await asyncio.shield(disk.fate):
            case Fate.REMOVED:
                _log.info("device %s has left, late", disk.id)
                await self._forget(disk)
            case Fate.KEPT:
                await self._keep(disk)
            case Fate.QEMU_GONE:
                pass

    async def _keep(self, disk: PluggedDisk) -> None:
        """The device stays: the agent may use it again."""
        if disk.fate.done() and disk.fate.result() is Fate.KEPT:
            disk.fate = new_fate()
        await self._ignore_refusal(self._guest.cancel_detach(disk.id))
        await self._stay(disk)

    async def _stay(self, disk: PluggedDisk) -> None:
        """Usable as before, unless it was removed meanwhile."""
        disk.state = DeviceState.PLUGGED
        if disk.fate.done() and disk.fate.result() is Fate.REMOVED:
            await self._lose(disk)

    async def _forget(self, disk: PluggedDisk) -> None:
        """The device is out: closes its file and frees its id and port."""
        if disk.asked_for:
            await self._make_guest_forget(disk.guest)
        await self._ignore_refusal(self._monitor.execute("blockdev-del", {"node-name": disk.node}))
        self._ports.give_back(disk.port)
        del self._table[disk.id]

    async def _make_guest_forget(self, disk: GuestDisk) -> None:
        """A guest that can't be told now is told before the next plug."""
        self._unforgotten.pop(disk.id, None)
        try:
            async with asyncio.timeout(_AGENT_LIMIT):
                if await self._guest.has(disk):
                    await self._guest.complete_detach(disk.id)
        except (ShimError, TimeoutError) as error:
            _log.info("guest can't be told that %s is gone: %s", disk.id, error)
            if _is_away(error):
                self._unforgotten[disk.id] = disk

    async def _settle_with_guest(self) -> None:
        """What the guest still takes for attached may be in the way of what comes."""
        for disk in tuple(self._unforgotten.values()):
            await self._make_guest_forget(disk)
            if disk.id in self._unforgotten:
                message = f"the guest can't be told that device {disk.id} is gone"
                raise ShimError(Reason.AGENT_AWAY, message, fields={"id": disk.id})

    # Events.

    def _on_event(self, name: str, data: Mapping[str, Any]) -> None:
        # A virtio device has a second event, of its inner half, without an id.
        disk = self._by_qemu_id(data.get("device"))
        if disk is None:
            return
        if name == "DEVICE_DELETED":
            settle(disk.fate, Fate.REMOVED)
            if disk.state is DeviceState.PLUGGED:
                self._run_in_background(self._lose(disk))
        elif name == "DEVICE_UNPLUG_GUEST_ERROR" and disk.state is not DeviceState.PLUGGING:
            settle(disk.fate, Fate.KEPT)

    def _by_qemu_id(self, qemu_id: object) -> PluggedDisk | None:
        return next((disk for disk in self._table.values() if disk.qemu_id == qemu_id), None)

    async def _lose(self, disk: PluggedDisk) -> None:
        """A device that worked was removed by the guest itself."""
        _log.warning("device %s was removed though nobody asked for it", disk.id)
        disk.state = DeviceState.LEAVING
        await self._ignore_refusal(self._guest.prepare_detach(disk.id))
        await self._forget(disk)

    async def _watch_monitor(self) -> None:
        await self._monitor.closed.wait()
        for disk in self._table.values():
            settle(disk.fate, Fate.QEMU_GONE)

    # Tasks.

    async def _protect(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` to its end, also when the caller is cancelled meanwhile."""
        await asyncio.shield(self._run_in_background(work))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _ignore_refusal(work: Coroutine[Any, Any, object]) -> None:
        """On the way back a refusal changes nothing: the next step is due anyway."""
        try:
            async with asyncio.timeout(_AGENT_LIMIT):
                await work
        except (ShimError, TimeoutError) as error:
            _log.info("on the way back: %s", error)


def check_timeout(seconds: float) -> float:
    """A request's timeout: 0 is the default; raises BAD_FIELD."""
    if not (math.isfinite(seconds) and 0 <= seconds <= LONGEST_TIMEOUT):
        raise ShimError(
            Reason.BAD_FIELD,
            f"timeout_seconds {seconds}: not possible",
            hint=f"0 (for {DEFAULT_TIMEOUT:g}) to {LONGEST_TIMEOUT:g}",
            fields={"field": "timeout_seconds"},
        )
    return seconds or DEFAULT_TIMEOUT


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancels, and waits, so that its call does not outlive ours."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


def _is_away(error: ShimError | TimeoutError) -> bool:
    away = (Reason.AGENT_AWAY, Reason.OPERATION_TIMED_OUT)
    return isinstance(error, TimeoutError) or error.reason in away


def _late(doing: str, disk: PluggedDisk, timeout: float) -> ShimError:
    return ShimError(
        Reason.OPERATION_TIMED_OUT,
        f"{doing}: not done within {timeout:g} s, {disk.step}",
        fields={"id": disk.id, "pci_path": disk.port.pci_path},
    )


def _qemu_gone() -> ShimError:
    return ShimError(Reason.QEMU_GONE, "QEMU has ended")


def _is_about_lock(error: QemuRefusedError) -> bool:
    return "lock" in error.text and "Failed to get" in error.text


def _file_error(disk: PluggedDisk, error: QemuRefusedError) -> ShimError:
    """QEMU has one class for all errors; its words are all there is to tell them apart."""
    fields: dict[str, object] = {"id": disk.id, "file": disk.file.path, "error": error.text}
    if _is_about_lock(error):
        return ShimError(
            Reason.FILE_IN_USE,
            f"disk file {disk.file.path}: in use by somebody else: {error.text}",
            hint="stop who uses it, or plug it read-only in every VM",
            fields=fields,
        )
    if "No such file" in error.text:
        message = f"disk file {disk.file.path}: {error.text}"
        return ShimError(Reason.FILE_NOT_FOUND, message, fields=fields)
    return ShimError(
        Reason.QEMU_REFUSED,
        f"disk file {disk.file.path}: QEMU refused it: {error.text}",
        fields=fields,
    )

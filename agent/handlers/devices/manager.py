"""The table of devices: attach, hold, detach, and what survives a restart.

A device enters the table once it is usable and its state is saved, and leaves it
once sysfs no longer has it. Detach has two steps, because the host unplugs in
between: `prepare_detach` refuses while someone holds the device and lets no new
holder in, `detach` waits until it is gone and forgets it, `cancel_detach` takes
the first step back. A device that goes by itself stays in the table as VANISHED.

Who holds a device is not saved: storages and containers hold theirs again in
their own `restore`, which must come after this one's.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.core.deadlines import Deadline
from agent.core.errors import (
    AgentError,
    Reason,
    already_exists,
    exhausted,
    invalid,
    not_found,
    wrong_state,
)
from agent.core.hotplug import HotplugBoard, Wish
from agent.core.inflight import InFlight
from agent.core.model import AttachedDevice, DeviceRequest, DeviceState
from agent.core.names import check_id
from agent.core.pci import PciAddress, PciPath
from agent.core.tree import PciFunction, SysfsTree, locate
from agent.core.verdict import NotYet, Ready, Verdict
from agent.handlers.devices import CLASSES
from agent.handlers.devices.base import DeviceClass, Found, iommu_group, numa_node
from agent.handlers.devices.records import from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.events import EventLog
    from agent.core.state import StateStore
    from agent.linux.uevents import Uevent

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 10.0

DEVICE_LIMIT = 1024
"""Devices in the table; a PCI tree of a VM ends long before."""

_KIND = "devices"

# The kernel announces a removal a moment before sysfs shows it.
_CONFIRM_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    device: AttachedDevice
    instance: str
    taken_out: bool = False


class DeviceManager:
    """The devices of the sandbox, by id."""

    def __init__(
        self,
        *,
        board: HotplugBoard,
        state: StateStore,
        events: EventLog,
        default_timeout: float = DEFAULT_TIMEOUT,
        classes: Iterable[DeviceClass[Any]] = CLASSES,
    ) -> None:
        self._board = board
        self._tree = board.tree
        self._state = state
        self._events = events
        self._default_timeout = default_timeout
        self._classes = _by_expectation(classes)
        self._table: dict[str, _Entry] = {}
        self._calls: InFlight[DeviceRequest, AttachedDevice] = InFlight("device")
        self._checks: dict[str, asyncio.Task[None]] = {}
        board.listen(self._on_event)

    def get(self, device_id: str) -> AttachedDevice:
        """Raises UNKNOWN_DEVICE."""
        return self._entry(device_id).device

    def list(self) -> tuple[AttachedDevice, ...]:
        """All devices, those of an earlier agent first."""
        return tuple(entry.device for entry in self._table.values())

    async def attach(self, request: DeviceRequest) -> AttachedDevice:
        """Wait until the device is usable, and enter it in the table.

        The same request again gives the same answer, also while the first waits. Raises
        ID_IN_USE, ADDRESS_IN_USE, DEVICE_NOT_READY (with what was seen and what is missing),
        UNEXPECTED_DEVICE, DEVICE_FAILED; after an error nothing is left of the request.
        """
        check_id("device", request.id)
        known = self._table.get(request.id)
        if known is not None and (answer := _repeated(known.device, request)):
            return answer
        return await self._calls.run(request.id, request, lambda: self._attach(request))

    async def prepare_detach(self, device_id: str) -> None:
        """Refuse while someone holds the device (STILL_IN_USE); let no one hold it from now on.

        Where the platform gives no hot-plug notice, the kernel lets go of the device here.
        """
        entry = self._entry(device_id)
        _refuse_held(entry.device)
        if entry.device.state is DeviceState.ATTACHED:
            entry = self._put(entry, state=DeviceState.LEAVING)
        if not self._board.gives_notice and self._is_there(entry):
            self._table[device_id] = replace(entry, taken_out=True)
            deadline = Deadline.after(self._default_timeout)
            await self._board.take_out(Path(entry.device.sysfs_path), deadline)

    async def detach(self, device_id: str, timeout: float | None) -> None:
        """Wait until sysfs no longer has the device, and forget it.

        Raises STILL_IN_USE; DEVICE_STILL_PRESENT at the deadline, and then the device
        stays as it is after `prepare_detach`: the host may unplug it late, or cancel.
        """
        deadline = Deadline.of_request(timeout, self._default_timeout)
        entry = self._entry(device_id)
        _refuse_held(entry.device)
        if entry.device.state is DeviceState.ATTACHED:
            entry = self._put(entry, state=DeviceState.LEAVING)
        await self._board.wait(self._gone(entry), deadline)
        current = self._table.get(device_id)
        if current is None or current.instance != entry.instance:
            return  # another call was first
        if current.device.state is DeviceState.ATTACHED:
            raise wrong_state(f"the detachment of {device_id} was cancelled", id=device_id)
        self._drop(entry)

    async def cancel_detach(self, device_id: str) -> None:
        """Take `prepare_detach` back: the host could not or did not unplug the device."""
        entry = self._entry(device_id)
        if entry.device.state is not DeviceState.LEAVING:
            return
        if self._is_there(entry):
            self._put(entry, state=DeviceState.ATTACHED)
        elif entry.taken_out:
            await self._bring_back(entry)
        else:
            self._mark_vanished(entry)

    async def forget(self, device_id: str) -> None:
        """Take an attach back, the device staying where it is; fine when there is none.

        Raises STILL_IN_USE.
        """
        entry = self._table.get(device_id)
        if entry is not None:
            _refuse_held(entry.device)
            self._drop(entry)

    def hold(self, device_id: str, user: str) -> AttachedDevice:
        """Note that `user` (e.g. "storage data") needs the device; holding twice is once.

        Raises UNKNOWN_DEVICE, WRONG_STATE for a device that leaves or has vanished.
        """
        entry = self._entry(device_id)
        if entry.device.state is not DeviceState.ATTACHED:
            raise wrong_state(
                f"device {device_id} is {entry.device.state}: {user} cannot use it",
                id=device_id,
                state=entry.device.state,
            )
        return self._set_users(entry, entry.device.users | {user})

    def release(self, device_id: str, user: str) -> None:
        """Take a hold back; fine when there is none, so that clean-up never fails here."""
        entry = self._table.get(device_id)
        if entry is not None:
            self._set_users(entry, entry.device.users - {user})

    async def restore(self) -> None:
        """Take over what an earlier agent saved; devices that are gone since are dropped."""
        for device_id, record in self._state.load_all(_KIND).items():
            entry = _read_record(device_id, record)
            if entry is not None and self._is_there(entry):
                self._table[device_id] = entry
                continue
            self._state.delete(_KIND, device_id)
            place = _place(entry.device) if entry else {}
            self._events.publish("device-lost", device_id, place)

    async def close(self) -> None:
        """Stop the checks that are under way."""
        for task in list(self._checks.values()):
            task.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)

    async def _attach(self, request: DeviceRequest) -> AttachedDevice:
        self._refuse_taken(request.id, request.address)
        self._refuse_awaited(request)
        if len(self._table) >= DEVICE_LIMIT:
            raise exhausted(f"{DEVICE_LIMIT} devices are attached", reason=Reason.LIMIT_REACHED)
        deadline = Deadline.of_request(request.timeout, self._default_timeout)
        entry = await self._board.wait(self._usable(request), deadline)
        self._refuse_taken(request.id, entry.device.pci_path)
        self._state.save(_KIND, request.id, to_record(entry.device, entry.instance))
        self._table[request.id] = entry
        self._events.publish("device-attached", request.id, _place(entry.device))
        return entry.device

    def _usable(self, request: DeviceRequest) -> Wish[_Entry]:
        device_class = self._classes.get(type(request.kind))
        if device_class is None:
            known = ", ".join(sorted(each.name for each in self._classes.values()))
            raise invalid(f"no device class serves {type(request.kind).__name__}: known: {known}")
        return Wish(
            what=f"{device_class.name} device {request.id} at {request.address}",
            probe=partial(_probe, device_class, request),
            rescan=True,
        )

    def _gone(self, entry: _Entry) -> Wish[None]:
        return Wish(
            what=f"removal of device {entry.device.request.id} at {entry.device.bdf}",
            probe=partial(_probe_gone, entry),
        )

    def _refuse_taken(self, device_id: str, address: PciAddress) -> None:
        for other, entry in self._table.items():
            device = entry.device
            held = device.state is not DeviceState.VANISHED
            if other != device_id and held and _is_at(device, address):
                raise _address_in_use(address, other)

    def _refuse_awaited(self, request: DeviceRequest) -> None:
        for other, awaited in self._calls.requests().items():
            if other != request.id and awaited.address == request.address:
                raise _address_in_use(request.address, other)

    async def _bring_back(self, entry: _Entry) -> None:
        """The kernel was told to let go of the device: have it look again."""
        deadline = Deadline.after(self._default_timeout)
        await self._board.rescan(deadline)
        found = await self._board.wait(self._usable(entry.device.request), deadline)
        self._put(found, state=DeviceState.ATTACHED)

    def _entry(self, device_id: str) -> _Entry:
        try:
            return self._table[device_id]
        except KeyError:
            raise not_found(
                f"no device {device_id!r} is attached",
                reason=Reason.UNKNOWN_DEVICE,
                hint="Devices.List shows those that are",
                id=device_id,
            ) from None

    def _drop(self, entry: _Entry) -> None:
        device_id = entry.device.request.id
        del self._table[device_id]
        self._state.delete(_KIND, device_id)
        self._events.publish("device-detached", device_id, _place(entry.device))

    def _put(self, entry: _Entry, *, state: DeviceState) -> _Entry:
        changed = replace(entry, device=replace(entry.device, state=state))
        device_id = entry.device.request.id
        self._state.save(_KIND, device_id, to_record(changed.device, changed.instance))
        self._table[device_id] = changed
        return changed

    def _set_users(self, entry: _Entry, users: frozenset[str]) -> AttachedDevice:
        changed = replace(entry, device=replace(entry.device, users=users))
        self._table[entry.device.request.id] = changed
        return changed.device

    def _is_there(self, entry: _Entry) -> bool:
        return self._tree.instance(Path(entry.device.sysfs_path)) == entry.instance

    def _on_event(self, event: Uevent | None) -> None:
        """Look after devices that an event may have taken away; None: events were lost."""
        if event is not None and event.action != "remove":
            return
        for device_id, entry in self._table.items():
            if entry.device.state is not DeviceState.ATTACHED or device_id in self._checks:
                continue
            devpath = self._tree.devpath(Path(entry.device.sysfs_path)).strip("/").split("/")
            parts = event.components if event else ()
            if tuple(devpath[: len(parts)]) == parts:
                self._check(device_id, entry)

    def _check(self, device_id: str, entry: _Entry) -> None:
        task = asyncio.get_running_loop().create_task(self._confirm_gone(entry))
        self._checks[device_id] = task
        task.add_done_callback(lambda _: self._checks.pop(device_id, None))

    async def _confirm_gone(self, entry: _Entry) -> None:
        try:
            await self._board.wait(self._gone(entry), Deadline.after(_CONFIRM_SECONDS))
        except AgentError:
            return
        current = self._table.get(entry.device.request.id)
        if current is not None and current.device.state is DeviceState.ATTACHED:
            self._mark_vanished(current)

    def _mark_vanished(self, entry: _Entry) -> None:
        device = entry.device
        log.warning("device %s at %s has vanished", device.request.id, device.bdf)
        # Not saved: it is a fact of sysfs, which restore looks at itself.
        gone = replace(device, state=DeviceState.VANISHED)
        self._table[device.request.id] = replace(entry, device=gone)
        users = ", ".join(sorted(device.users))
        self._events.publish(
            "device-vanished", device.request.id, {**_place(device), "users": users}
        )


def _by_expectation(classes: Iterable[DeviceClass[Any]]) -> dict[type, DeviceClass[Any]]:
    table: dict[type, DeviceClass[Any]] = {}
    for each in classes:
        if each.expectation in table:
            raise ValueError(f"two device classes serve {each.expectation.__name__}")
        table[each.expectation] = each
    return table


def _probe(
    device_class: DeviceClass[Any], request: DeviceRequest, tree: SysfsTree
) -> Verdict[_Entry]:
    located = locate(tree, request.address)
    if not isinstance(located, Ready):
        return located
    function = located.result
    # Taken before the class looks: a device that is replaced meanwhile shows as gone later.
    instance = tree.instance(function.directory)
    verdict = device_class.probe(tree, function, request.kind)
    if not isinstance(verdict, Ready):
        return verdict
    if instance is None:
        return NotYet(evidence=f"{function.bdf} went away while it was looked at")
    device = _attached(tree, request, function, verdict.result)
    return Ready(_Entry(device=device, instance=instance))


def _attached(
    tree: SysfsTree, request: DeviceRequest, function: PciFunction, found: Found
) -> AttachedDevice:
    return AttachedDevice(
        request=request,
        pci_path=function.path,
        bdf=str(function.bdf),
        sysfs_path=str(function.directory),
        driver=tree.link_name(function.directory / "driver") or "",
        numa_node=numa_node(tree, function),
        iommu_group=iommu_group(tree, function),
        nodes=found.nodes,
        info=found.info,
    )


def _probe_gone(entry: _Entry, tree: SysfsTree) -> Verdict[None]:
    directory = Path(entry.device.sysfs_path)
    if tree.instance(directory) != entry.instance:
        return Ready(None)
    driver = tree.link_name(directory / "driver")
    return NotYet(
        evidence=(
            f"sysfs still has {entry.device.bdf}, "
            f"{f'bound to {driver}' if driver else 'without a driver'}"
        ),
        near=(tree.devpath(directory),),
        reason=Reason.DEVICE_STILL_PRESENT,
    )


def _repeated(device: AttachedDevice, request: DeviceRequest) -> AttachedDevice | None:
    """The answer to a request for a known id; None when the device has to be found anew."""
    if device.request != request:
        raise already_exists(
            f"device {request.id} is attached already, at {device.request.address}",
            reason=Reason.ID_IN_USE,
            hint="detach it first, or choose another id",
            id=request.id,
        )
    match device.state:
        case DeviceState.ATTACHED:
            return device
        case DeviceState.LEAVING:
            raise wrong_state(f"device {request.id} is being detached", id=request.id)
        case DeviceState.VANISHED:
            _refuse_held(device)
            return None


def _refuse_held(device: AttachedDevice) -> None:
    if device.users:
        users = ", ".join(sorted(device.users))
        raise wrong_state(
            f"device {device.request.id} is still used by {users}",
            reason=Reason.STILL_IN_USE,
            hint="detach what uses it first",
            id=device.request.id,
            users=users,
        )


def _address_in_use(address: PciAddress, other: str) -> AgentError:
    return already_exists(
        f"the address {address} belongs to device {other}",
        reason=Reason.ADDRESS_IN_USE,
        address=address,
        id=other,
    )


def _is_at(device: AttachedDevice, address: PciAddress) -> bool:
    if isinstance(address, PciPath):
        return device.pci_path == address
    return device.bdf == str(address)


def _place(device: AttachedDevice) -> dict[str, str]:
    nodes = ",".join(node.path for node in device.nodes)
    return {"pci_path": str(device.pci_path), "bdf": device.bdf, "nodes": nodes}


def _read_record(device_id: str, record: dict[str, Any]) -> _Entry | None:
    try:
        device, instance = from_record(record)
    except (KeyError, TypeError, ValueError, AgentError) as error:
        log.warning("the saved state of device %s is of another shape: %r", device_id, error)
        return None
    return _Entry(device=device, instance=instance)

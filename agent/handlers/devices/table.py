"""The table of devices: what is attached, by id, and what of it survives the agent.

A device enters the table once it is usable and its state is saved, and leaves it
once it is gone or given back. Who holds a device is not saved: storages and
containers hold theirs again in their own `restore`, which must come after this one's.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.core.addresses import Address, kind_of
from agent.core.errors import AgentError, Reason, already_exists, not_found, wrong_state
from agent.core.kinds import NicInfo
from agent.core.model import AttachedDevice, DeviceRequest, DeviceState, NodeType
from agent.core.pci import Bdf, PciPath
from agent.handlers.devices.records import from_record, mode_of, mode_record, to_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.core.kinds import Mode
    from agent.core.state import StateStore
    from agent.core.tree import SysfsTree

log = logging.getLogger(__name__)

_KIND = "devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One device. `served_by` is the class that has it now, `kept` what that class has to
    know to give it back; `mode` is what it was switched to since it was attached;
    `taken_out` means that the kernel was told to let go of it."""

    device: AttachedDevice
    instance: str
    served_by: str
    kept: Mapping[str, str] = field(default_factory=dict)
    mode: Mode | None = None
    taken_out: bool = False

    @property
    def id(self) -> str:
        return self.device.request.id

    @property
    def directory(self) -> Path:
        return Path(self.device.sysfs_path)

    @property
    def is_function(self) -> bool:
        """Whether it is a PCI function itself, not something behind one."""
        return self.directory.name == self.device.bdf

    @property
    def physical_function(self) -> Path | None:
        """Directory of the function that a virtual one belongs to (sysfs-bus-pci: physfn)."""
        link = self.directory / "physfn"
        return link.resolve() if link.is_symlink() else None

    def goes_with(self, other: Entry) -> bool:
        """Whether it goes when the other one does: it is below it, or a virtual function of it."""
        if self.id == other.id:
            return False
        below = self.directory.is_relative_to(other.directory)
        return below or self.physical_function == other.directory

    def is_there(self, tree: SysfsTree) -> bool:
        return tree.instance(self.directory) == self.instance

    def place(self) -> dict[str, str]:
        """Where it is, for events."""
        device = self.device
        nodes = ",".join(node.path for node in device.nodes)
        return {
            "address": str(device.request.address),
            "pci_path": str(device.pci_path or ""),
            "bdf": device.bdf,
            "nodes": nodes,
        }


class Table:
    """Entries by id, saved as they change."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._entries: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, device_id: str) -> Entry | None:
        return self._entries.get(device_id)

    def entry(self, device_id: str) -> Entry:
        """Raises UNKNOWN_DEVICE."""
        try:
            return self._entries[device_id]
        except KeyError:
            raise not_found(
                f"no device {device_id!r} is attached",
                reason=Reason.UNKNOWN_DEVICE,
                hint="Devices.List shows those that are",
                id=device_id,
            ) from None

    def put(self, entry: Entry) -> Entry:
        """Enter or replace, saved first; raises NO_SPACE with nothing changed."""
        record = {
            "device": to_record(entry.device),
            "instance": entry.instance,
            "served_by": entry.served_by,
            "kept": dict(entry.kept),
            "mode": mode_record(entry.mode),
            "taken_out": entry.taken_out,
        }
        self._state.save(_KIND, entry.id, record)
        self._entries[entry.id] = entry
        return entry

    def mark(self, entry: Entry, state: DeviceState, **changes: Any) -> Entry:
        """Replace with another state."""
        device = replace(entry.device, state=state)
        return self.put(replace(entry, device=device, **changes))

    def mark_vanished(self, entry: Entry) -> Entry:
        """Not saved: that it is gone is a fact of sysfs, which `load` looks at itself."""
        gone = replace(entry, device=replace(entry.device, state=DeviceState.VANISHED))
        self._entries[entry.id] = gone
        return gone

    def set_users(self, entry: Entry, users: frozenset[str]) -> AttachedDevice:
        changed = replace(entry, device=replace(entry.device, users=users))
        self._entries[entry.id] = changed
        return changed.device

    def drop(self, entry: Entry) -> None:
        del self._entries[entry.id]
        self._state.delete(_KIND, entry.id)

    def load(self, tree: SysfsTree) -> Iterator[tuple[str, Entry | None]]:
        """Take over what an earlier agent saved; yields what is gone since, with its entry
        where that could be read. One that is on its way out is gone on purpose."""
        for device_id, record in self._state.load_all(_KIND).items():
            entry = _read(device_id, record)
            if entry is not None and (entry.taken_out or entry.is_there(tree)):
                self._entries[device_id] = entry
            else:
                self._state.delete(_KIND, device_id)
                yield device_id, entry

    def refuse_taken(self, device_id: str, address: Address) -> None:
        """Raises ADDRESS_IN_USE when another device was attached at that address."""
        for other in self:
            if other.id != device_id and _holds(other) and _is_at(other, address):
                raise address_in_use(address, other.id)

    def refuse_at(self, request: DeviceRequest, directory: Path) -> None:
        """Raises ADDRESS_IN_USE when another id has what is in that directory, or below it."""
        for other in self:
            if other.id == request.id or not _holds(other):
                continue
            if other.directory.is_relative_to(directory):
                raise address_in_use(request.address, other.id)

    def refuse_same(self, found: Entry) -> None:
        """Raises ADDRESS_IN_USE when another id has this very device, by whatever address."""
        for other in self:
            if other.id != found.id and _holds(other) and _is_same(other.device, found.device):
                raise address_in_use(found.device.request.address, other.id)


def repeated(device: AttachedDevice, request: DeviceRequest) -> AttachedDevice | None:
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
            refuse_held(device)
            return None


def refuse_held(device: AttachedDevice) -> None:
    """Raises STILL_IN_USE when the agent itself gave it to somebody."""
    if device.users:
        users = ", ".join(sorted(device.users))
        raise wrong_state(
            f"device {device.request.id} is still used by {users}",
            reason=Reason.STILL_IN_USE,
            hint="detach what uses it first",
            id=device.request.id,
            users=users,
        )


def address_in_use(address: Address, other: str) -> AgentError:
    return already_exists(
        f"the address {address} belongs to device {other}",
        reason=Reason.ADDRESS_IN_USE,
        address=address,
        id=other,
    )


def _holds(entry: Entry) -> bool:
    return entry.device.state is not DeviceState.VANISHED


def _is_at(entry: Entry, address: Address) -> bool:
    match address:
        case PciPath():
            return entry.is_function and entry.device.pci_path == address
        case Bdf():
            return entry.is_function and entry.device.bdf == str(address)
        case _:
            known = entry.device.request.address
            return (kind_of(known), str(known)) == (kind_of(address), str(address))


def _is_same(one: AttachedDevice, other: AttachedDevice) -> bool:
    disks = {node.path for node in one.nodes if node.type is NodeType.BLOCK}
    if disks & {node.path for node in other.nodes}:
        return True
    if one.sysfs_path != other.sysfs_path:
        return False
    # Some functions have several interfaces, each a device of its own.
    ports = (one.info, other.info)
    nics = [info.ifindex for info in ports if isinstance(info, NicInfo)]
    return len(nics) < 2 or nics[0] == nics[1]


def _read(device_id: str, record: dict[str, Any]) -> Entry | None:
    try:
        return Entry(
            device=from_record(record["device"]),
            instance=record["instance"],
            served_by=record["served_by"],
            kept=record["kept"],
            mode=mode_of(record["mode"]),
            taken_out=record["taken_out"],
        )
    except (KeyError, TypeError, ValueError, AgentError) as error:
        log.warning("the saved state of device %s is of another shape: %r", device_id, error)
        return None

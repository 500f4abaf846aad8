"""The table of what is plugged into one VM: who has which id, port and unit.

All of it is synchronous, so two calls at once never get the same one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware import Growth, Names, Place
from innkeeper.shim.hardware.base import bad_field
from innkeeper.shim.hardware.pmem import Nvdimm, VirtioPmem
from innkeeper.shim.hardware.scsi import ScsiController, ScsiDisk
from innkeeper.shim.plugged import DeviceState, Function, Plug
from innkeeper.shim.topology import Needs
from innkeeper.v1 import devices_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innkeeper.shim.hardware import Hardware
    from innkeeper.shim.plugged import Part, Wanted
    from innkeeper.shim.topology import Port, PortPool

MOST_FUNCTIONS = 8


class Table:
    """Records by id; a plug of several functions is there under each of their ids."""

    def __init__(self, ports: PortPool, *, iommu: bool = False) -> None:
        self.ports = ports
        self._iommu = iommu
        self._by_id: dict[str, Plug] = {}
        self._count = 0

    @property
    def plugs(self) -> tuple[Plug, ...]:
        return tuple(dict.fromkeys(self._by_id.values()))

    @property
    def growth(self) -> Growth:
        """What the guest got by hot-plug, and has now."""
        there = (plug for plug in self.plugs if plug.state is DeviceState.PLUGGED)
        return sum((plug.growth for plug in there), Growth())

    def admit(self, wanted: Sequence[Wanted], port: str = "") -> Plug:
        """Takes ids and a place. Raises BAD_FIELD, ID_IN_USE, PORT_POOL_EMPTY,
        UNKNOWN_PORT, PORT_IN_USE, UNKNOWN_CONTROLLER, ADDRESS_IN_USE, NOT_PLUGGABLE."""
        _check_together(wanted, port)
        for each in wanted:
            self._require_free(each.id)
            self._require_tag_free(each)
        made = self._place(wanted, port)
        for function in made.functions:
            self._by_id[function.id] = made
        return made

    def adopt(self, plug: Plug) -> None:
        """Notes that QEMU has it from the start."""
        plug.renew_parts()
        for part in plug.parts:
            part.asked = True
        plug.asked_for = True
        plug.state = DeviceState.PLUGGED

    def remove(self, plug: Plug) -> None:
        """Frees everything that `admit` took."""
        if plug.port is not None:
            self.ports.give_back(plug.port, spent=any(part.is_held for part in plug.parts))
        for function in plug.functions:
            del self._by_id[function.id]

    def release(self) -> None:
        """Gives back what all of it has of the host, once QEMU has ended."""
        for plug in self.plugs:
            for function in plug.functions:
                function.hardware.release()

    def find(self, device_id: str) -> Plug:
        """Raises UNKNOWN_DEVICE."""
        plug = self._by_id.get(device_id)
        if plug is None:
            message = f"device {device_id}: not plugged in"
            raise ShimError(Reason.UNKNOWN_DEVICE, message, fields={"id": device_id})
        return plug

    def part(self, qemu_id: object) -> tuple[Plug, Part] | None:
        for plug in self.plugs:
            part = plug.part(qemu_id)
            if part is not None:
                return plug, part
        return None

    def disks_on(self, plug: Plug) -> tuple[str, ...]:
        """Ids of what is on the controllers of a plug, coming and leaving ones too."""
        ids = {function.id for function in plug.functions}
        return tuple(
            each.id
            for other in self.plugs
            for each in other.functions
            if isinstance(each.hardware, ScsiDisk) and each.hardware.controller in ids
        )

    def owner_of(self, function: Function) -> str:
        """Id of another device that is made of the same file; empty when there is none."""
        file = os.path.realpath(function.hardware.source)
        for plug in self.plugs:
            for other in plug.functions:
                source = other.hardware.source
                if other is not function and source and os.path.realpath(source) == file:
                    return other.id
        return ""

    def number_pmem(self, plug: Plug) -> None:
        """The guest numbers persistent memory as it comes, and it never goes.

        To be called when no other is on its way.
        """
        number = sum(
            isinstance(each.hardware, (Nvdimm, VirtioPmem))
            for other in self.plugs
            for each in other.functions
            if other is not plug and other.state is not DeviceState.PLUGGING
        )
        for each in plug.functions:
            if isinstance(each.hardware, Nvdimm) and each.device is not None:
                each.device.address.path = f"/dev/pmem{number}"

    def _require_free(self, device_id: str) -> None:
        known = self._by_id.get(device_id)
        if known is not None:
            raise ShimError(
                Reason.ID_IN_USE,
                f"device {device_id}: already {known.state}, at {known.where}",
                fields={"id": device_id, "state": known.state},
            )

    def _require_tag_free(self, wanted: Wanted) -> None:
        """The guest's kernel takes no second file system of one tag."""
        tag = wanted.hardware.share_tag
        for plug in self.plugs:
            for other in plug.functions:
                if tag and other.hardware.share_tag == tag:
                    raise ShimError(
                        Reason.ADDRESS_IN_USE,
                        f"device {wanted.id}: share {other.id} has the tag {tag}",
                        hint="give it another tag",
                        fields={"id": wanted.id, "tag": tag, "by": other.id},
                    )

    def _place(self, wanted: Sequence[Wanted], port: str) -> Plug:
        match wanted[0].hardware:
            case ScsiDisk() as disk:
                return Plug(functions=(self._on_controller(wanted[0], disk),))
            case hardware if hardware.place is Place.MACHINE:
                return Plug(functions=(self._function(wanted[0], {}),))
        needs = Needs(
            express=any(each.hardware.express for each in wanted),
            roomy=any(each.hardware.roomy for each in wanted),
            unspent=any(each.hardware.silent for each in wanted),
        )
        taken = self.ports.take(port, needs)
        try:
            return Plug(functions=self._in_port(wanted, taken), port=taken)
        except ShimError:
            self.ports.give_back(taken)
            raise

    def _in_port(self, wanted: Sequence[Wanted], port: Port) -> tuple[Function, ...]:
        functions = []
        for index, each in enumerate(wanted):
            suffix = f".{index}" if index else ""
            place: dict[str, object] = {"bus": port.bus, "addr": f"{port.slot:02x}.{index}"}
            if len(wanted) > 1:
                place["multifunction"] = True
            place |= self._behind_iommu(each.hardware)
            function = self._function(each, place)
            function.pci_path = f"{port.pci_path}{suffix}"
            if function.device is not None:
                function.device.address.pci_path = function.pci_path
            functions.append(function)
        return tuple(functions)

    def _on_controller(self, wanted: Wanted, disk: ScsiDisk) -> Function:
        controller = self._controller(disk)
        for other in self.plugs:
            for each in other.functions:
                if _is_same_unit(each.hardware, disk):
                    raise _unit_in_use(disk, each.id)
        function = self._function(wanted, {"bus": f"{controller.names.device}.0"})
        if function.device is not None:
            address = devices_pb2.ScsiAddress(
                adapter_pci_path=controller.pci_path, target=disk.target, lun=disk.lun
            )
            function.device.address.scsi.CopyFrom(address)
        return function

    def _controller(self, disk: ScsiDisk) -> Function:
        plug = self._by_id.get(disk.controller)
        if plug is not None and plug.state is DeviceState.PLUGGED:
            for function in plug.functions:
                is_it = function.id == disk.controller
                if is_it and isinstance(function.hardware, ScsiController):
                    return function
        raise ShimError(
            Reason.UNKNOWN_CONTROLLER,
            f"SCSI controller {disk.controller}: not plugged in",
            hint="plug one in first, as in: innkeeper device attach VM scsi-controller --id ID",
            fields={"id": disk.controller},
        )

    def _function(self, wanted: Wanted, place: dict[str, object]) -> Function:
        self._count += 1
        return Function(
            id=wanted.id,
            hardware=wanted.hardware,
            names=Names(id=wanted.id, number=self._count),
            place=place,
            device=_device(wanted),
        )

    def _behind_iommu(self, hardware: Hardware) -> dict[str, object]:
        """Without it virtio goes past the IOMMU, and VFIO in the guest would be told
        that a function is contained which is not. Only modern devices have it."""
        if not (self._iommu and hardware.driver.startswith("virtio-")):
            return {}
        return {"iommu_platform": True, "disable-legacy": "on"}


def _check_together(wanted: Sequence[Wanted], port: str) -> None:
    if not 1 <= len(wanted) <= MOST_FUNCTIONS:
        raise bad_field("functions", f"{len(wanted)} functions: one to {MOST_FUNCTIONS}")
    ids = [each.id for each in wanted]
    if len(set(ids)) != len(ids):
        raise bad_field("functions", f"functions {', '.join(ids)}: an id is there twice")
    for each in wanted:
        if each.hardware.place is Place.PORT:
            continue
        model = each.hardware.model
        if len(wanted) > 1:
            text = f"device {each.id}: {model} is no PCI function, and can't be one of several"
            raise bad_field("functions", text)
        if port:
            raise bad_field("port", f"device {each.id}: {model} goes into no port")


def _device(wanted: Wanted) -> devices_pb2.Device | None:
    """What the agent is asked for: the hardware's own where the caller left it open."""
    own, given = wanted.hardware.guest(), wanted.guest
    if own is None:
        if given is not None and given.WhichOneof("kind"):
            text = f"device {wanted.id}: {wanted.hardware.model} is no device in the guest"
            raise bad_field("guest", text)
        return None
    own.id = wanted.id
    if given is None:
        return own
    if given.HasField("address"):
        raise bad_field("guest", f"device {wanted.id}: its address is the host's to say")
    if given.id not in ("", wanted.id):
        raise bad_field("guest", f"device {wanted.id}: has another id, {given.id}, for the guest")
    made = devices_pb2.Device()
    made.CopyFrom(given)
    made.id = wanted.id
    if not made.host:
        made.host.extend(own.host)
    kind = own.WhichOneof("kind")
    if made.WhichOneof("kind") is None and kind is not None:
        getattr(made, kind).CopyFrom(getattr(own, kind))
    return made


def _is_same_unit(hardware: Hardware, disk: ScsiDisk) -> bool:
    return (
        isinstance(hardware, ScsiDisk)
        and hardware.controller == disk.controller
        and hardware.unit == disk.unit
    )


def _unit_in_use(disk: ScsiDisk, other: str) -> ShimError:
    return ShimError(
        Reason.ADDRESS_IN_USE,
        f"target {disk.target} lun {disk.lun} of controller {disk.controller}: is {other}",
        fields={"controller": disk.controller, "target": disk.target, "lun": disk.lun, "by": other},
    )

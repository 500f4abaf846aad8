"""What a class has made usable, as an entry of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.model import AttachedDevice, DeviceRequest
from agent.handlers.devices.base import (
    Taken,
    iommu_group,
    numa_node,
    pci_class_of,
    pci_id_of,
)
from agent.handlers.devices.table import Entry

if TYPE_CHECKING:
    from agent.core.places import Place
    from agent.core.tree import SysfsTree


def entry_of(tree: SysfsTree, request: DeviceRequest, served_by: str, taken: Taken) -> Entry:
    """The entry of a device that has just become usable."""
    sighting = taken.sighting
    place, function = sighting.place, sighting.place.function
    device = AttachedDevice(
        request=request,
        pci_path=function.path if function else None,
        bdf=str(function.bdf) if function else "",
        sysfs_path=str(place.directory),
        driver=tree.link_name((function or place).directory / "driver") or "",
        numa_node=numa_node(tree, function) if function else None,
        iommu_group=iommu_group(tree, function) if function else None,
        nodes=sighting.found.nodes,
        info=sighting.found.info,
        pci_id=pci_id_of(tree, function) if function else "",
        pci_class=pci_class_of(tree, function) if function else "",
        bus_address=place.name if _is_on_another_bus(tree, place) else "",
    )
    return Entry(
        device=device, instance=sighting.instance, served_by=served_by, kept=dict(taken.kept)
    )


def _is_on_another_bus(tree: SysfsTree, place: Place) -> bool:
    """Not so a disk or an interface: those are of a class, and have no address."""
    subsystem = tree.link_name(place.directory / "subsystem")
    on_bus = subsystem is not None and (tree.roots.sys / "bus" / subsystem).is_dir()
    return on_bus and not place.is_function

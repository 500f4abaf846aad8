"""Any other device: ready when its driver is done with it and its nodes are there.

Its nodes are found by the generic walk, so a class that nobody has thought of works too:
uio, infiniband, tpm, tty, media, what a vendor's driver makes. Only what is on a bus has
a driver; a class device (a `/dev/loop0` by its path) is what a driver has made, and has
none itself (Documentation/driver-api/driver-model).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.kinds import CommonExpectation, CommonInfo
from agent.core.verdict import NotYet, Ready, Verdict
from agent.handlers.devices import base, nodes
from agent.handlers.devices.base import DeviceClass, Found

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.places import Place
    from agent.core.tree import SysfsTree


class CommonDevices(DeviceClass[CommonExpectation]):
    """One device of whatever class, with all its nodes."""

    name = "common"
    expectation = CommonExpectation

    def probe(self, tree: SysfsTree, place: Place, expected: CommonExpectation) -> Verdict[Found]:
        other = base.unexpected(tree, place, pci_id=expected.pci_id, driver=expected.driver)
        if other is not None:
            return other
        if idle := _driverless(tree, place):
            what = f"driver of {idle.name}" if idle != place.directory else "driver"
            return base.refusal(tree, place) or base.absent(tree, place, what)
        read = base.settled(tree, place)
        if read is not None:
            return NotYet(
                evidence=f"{base.describe(tree, place)}; the driver is still at work",
                near=(tree.devpath(place.directory),),
                needs=(read,),
            )
        return base.refusal(tree, place) or _nodes(tree, place, expected)


def _driverless(tree: SysfsTree, place: Place) -> Path | None:
    """The device itself, or the virtio device that it only carries, when it has no driver."""
    on_bus = place.is_function or _is_on_bus(place.directory)
    if on_bus and not _is_bound(tree, place.directory):
        return place.directory
    carried = (path for path in nodes.children(tree, place.directory) if _is_virtio(tree, path))
    return next((path for path in carried if not _is_bound(tree, path)), None)


def _nodes(tree: SysfsTree, place: Place, expected: CommonExpectation) -> Verdict[Found]:
    found, missing = nodes.nodes_below(tree, place.directory)
    if missing:
        why = "; ".join(each.why for each in missing)
        return NotYet(evidence=why, near=(tree.devpath(place.directory),))
    if len(found) < expected.nodes:
        paths = ", ".join(node.path for node in found) or "none"
        return base.absent(tree, place, f"{expected.nodes} nodes in /dev but {len(found)}: {paths}")
    return Ready(Found(nodes=found, info=CommonInfo()))


def _is_on_bus(directory: Path) -> bool:
    """/sys/bus/BUS or /sys/class/CLASS is what its `subsystem` leads to."""
    try:
        return (directory / "subsystem").readlink().parent.name == "bus"
    except OSError:
        return False


def _is_virtio(tree: SysfsTree, directory: Path) -> bool:
    return tree.link_name(directory / "subsystem") == "virtio"


def _is_bound(tree: SysfsTree, directory: Path) -> bool:
    return tree.link_name(directory / "driver") is not None

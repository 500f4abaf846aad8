"""FPGAs: management engines, ports with their accelerator functions, regions, managers.

Cards that follow Intel's device feature list (driver dfl-pci, and intel-fpga-pci of
OPAE before it) have an engine `dfl-fme.N`, only on the physical function, and ports
`dfl-port.N` whose `afu_id` says what is in them (Documentation/fpga/dfl.rst,
Documentation/ABI/testing/sysfs-platform-dfl-port). A node of theirs is there before
the driver behind it, so the drivers are waited for as well. Xilinx's drivers have one
function for management (xclmgmt, named by `instance`) and one for users (xocl, with a
DRM render node, which comes after its probe). All other cards: whatever has a node
below the function. Regions and managers have no nodes (class/fpga_region, class/fpga_manager).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.core.errors import Reason
from agent.core.kinds import FpgaExpectation, FpgaInfo
from agent.core.model import DeviceNode
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.base import (
    DeviceClass,
    Found,
    absent,
    refusal,
    settled,
    unexpected,
)
from agent.handlers.devices.nodes import NoNode, node_of, nodes_below, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.places import Place
    from agent.core.tree import SysfsTree

_ENGINE = re.compile(r"(dfl|intel-fpga)-fme\.\d+")
_PORT = re.compile(r"(dfl|intel-fpga)-port\.\d+")
_AFU_ID = re.compile(r"[0-9a-f]{32}")

_FEATURE_LIST_DRIVERS = frozenset({"dfl-pci", "intel-fpga-pci"})
_MANAGEMENT = "xclmgmt"
_USER = "xocl"


class FpgaDevices(DeviceClass[FpgaExpectation]):
    """One function of an FPGA card."""

    name = "fpga"
    expectation = FpgaExpectation

    def probe(self, tree: SysfsTree, place: Place, expected: FpgaExpectation) -> Verdict[Found]:
        place = _whole(place)
        other = unexpected(tree, place, pci_id=expected.pci_id, driver=None)
        if other is not None:
            return other
        read = settled(tree, place)
        if read is not None:
            waiting = absent(tree, place, "FPGA yet, as its driver is still at it")
            return replace(waiting, needs=(read,))
        lacking = _lacking(tree, place)
        if lacking is not None:
            return lacking
        return _judge(tree, place, expected)


def _whole(place: Place) -> Place:
    """A card that was addressed by one of its nodes is the function that the node belongs to."""
    if place.function is None or place.is_function:
        return place
    return replace(place, directory=place.function.directory)


def _lacking(tree: SysfsTree, place: Place) -> NotYet | Failed | None:
    """What a card whose driver has finished does not have yet."""
    driver = tree.link_name(place.directory / "driver")
    if driver is None:
        return refusal(tree, place) or absent(tree, place, "FPGA")
    nodes, missing = nodes_below(tree, place.directory)
    if missing:
        return _without(tree, place, "; ".join(each.why for each in missing))
    if driver in _FEATURE_LIST_DRIVERS:
        return _unfinished(tree, place)
    if driver == _MANAGEMENT:
        return _without_management(tree, place)
    if driver == _USER and not _render_nodes(nodes):
        return absent(tree, place, "render node")
    if not nodes and not _manager(tree, place) and not _regions(tree, place):
        return absent(tree, place, "node, FPGA region or FPGA manager")
    return None


def _without(tree: SysfsTree, place: Place, evidence: str) -> NotYet:
    return replace(absent(tree, place, "FPGA"), evidence=evidence)


def _unfinished(tree: SysfsTree, place: Place) -> NotYet | None:
    """Engines and ports have drivers of their own, in modules of their own."""
    parts = [*_devices(tree, place, _ENGINE), *_devices(tree, place, _PORT)]
    if not parts:
        return absent(tree, place, "engine or port")
    for part in parts:
        if tree.link_name(part / "driver") is None:
            return absent(tree, place, f"driver for {part.name}")
    for port in _devices(tree, place, _PORT):
        # Made after the port's driver is through; a port that is disabled refuses the read.
        if not (port / "afu_id").exists():
            return absent(tree, place, f"AFU id of {port.name}")
    return None


def _without_management(tree: SysfsTree, place: Place) -> NotYet | None:
    node = _management_node(tree, place)
    if isinstance(node, DeviceNode):
        return None
    return _without(tree, place, node.why) if node else absent(tree, place, "management node")


def _judge(tree: SysfsTree, place: Place, expected: FpgaExpectation) -> Ready[Found] | NotYet:
    nodes, _ = nodes_below(tree, place.directory)
    info = _info(tree, place, nodes)
    missing = [each for each in expected.afu_ids if each not in info.afu_ids]
    if missing:
        present = ", ".join(info.afu_ids) or "none"
        waiting = _without(
            tree, place, f"{place.name} has no AFU {', '.join(missing)}: there are {present}"
        )
        return replace(waiting, reason=Reason.UNEXPECTED_DEVICE)
    management = _management_node(tree, place)
    more = (management,) if isinstance(management, DeviceNode) else ()
    return Ready(Found(nodes=tuple(dict.fromkeys((*more, *nodes))), info=info))


def _info(tree: SysfsTree, place: Place, nodes: tuple[DeviceNode, ...]) -> FpgaInfo:
    ports = _devices(tree, place, _PORT)
    texts = [(tree.text(port / "afu_id") or "").lower() for port in ports]
    manager = _manager(tree, place)
    return FpgaInfo(
        fme=next(iter(_paths(tree, _devices(tree, place, _ENGINE))), "")
        or _path_of(_management_node(tree, place)),
        ports=(*_paths(tree, ports), *_render_nodes(nodes)),
        afu_ids=tuple(text for text in texts if _AFU_ID.fullmatch(text)),
        regions=_regions(tree, place),
        manager_name=tree.text(manager / "name") or "" if manager else "",
        manager_state=tree.text(manager / "state") or "" if manager else "",
    )


def _devices(tree: SysfsTree, place: Place, pattern: re.Pattern[str]) -> list[Path]:
    """In the order of their numbers: port 2 before port 10."""
    found = [path for path in walk(tree, place.directory) if pattern.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition(".")[2]))


def _paths(tree: SysfsTree, devices: list[Path]) -> Iterator[str]:
    for device in devices:
        yield _path_of(node_of(tree, device))


def _path_of(node: DeviceNode | NoNode | None) -> str:
    return node.path if isinstance(node, DeviceNode) else ""


def _render_nodes(nodes: tuple[DeviceNode, ...]) -> tuple[str, ...]:
    return tuple(node.path for node in nodes if Path(node.path).name.startswith("renderD"))


def _management_node(tree: SysfsTree, place: Place) -> DeviceNode | NoNode | None:
    """The node of xclmgmt, whose number is the card's `instance`; None for any other driver."""
    if tree.link_name(place.directory / "driver") != _MANAGEMENT:
        return None
    name = f"{_MANAGEMENT}{tree.text(place.directory / 'instance') or '?'}"
    for device in walk(tree, place.directory):
        if device.name == name:
            return node_of(tree, device)
    return NoNode(f"{place.name} has no device {name} yet")


def _regions(tree: SysfsTree, place: Place) -> tuple[str, ...]:
    return tuple(path.name for path in _of_class(tree, place, "fpga_region"))


def _manager(tree: SysfsTree, place: Place) -> Path | None:
    return next(iter(_of_class(tree, place, "fpga_manager")), None)


def _of_class(tree: SysfsTree, place: Place, name: str) -> list[Path]:
    """The devices of a class that belong to the card; regions lie within regions."""
    listing = tree.roots.sys / "class" / name
    found = [tree.real(listing / each) for each in tree.names(listing)]
    return [path for path in found if path and path.is_relative_to(place.directory)]

"""GPUs and accelerators of any driver: nodes of DRM, and of the vendors' own interfaces.

Ready means that the driver's probe is over and every node is there with the numbers
that the driver tells. Where devtmpfs makes no nodes (NVIDIA) `take` makes them, and it
makes the links of /dev/dri/by-path, which udev would make elsewhere; `give_back` takes
away what no other device needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from agent.core.kinds import GpuExpectation, GpuInfo
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.base import (
    DeviceClass,
    Found,
    Taken,
    absent,
    pci_id_of,
    refusal,
    settled,
    unexpected,
)
from agent.handlers.devices.gpus import amd, drm, nvidia
from agent.handlers.devices.gpus.parts import DevFile, Parts, content_of
from agent.handlers.devices.gpus.placed import KernelNodes, NodeMaker, PlacedFiles
from agent.handlers.devices.nodes import children

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.core.model import AttachedDevice, DeviceNode
    from agent.core.places import Place
    from agent.core.tree import PciFunction, SysfsTree
    from agent.handlers.devices.gpus.drm import DrmNodes
    from agent.handlers.devices.job import Hands, Job

_VENDORS = {nvidia.VENDOR: nvidia.NAME, amd.VENDOR: amd.NAME, "8086": "intel"}
_KERNEL = KernelNodes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Found):
    """A GPU whose driver has told all; `files` are what should be in /dev for it."""

    files: tuple[DevFile, ...]


class GpuDevices(DeviceClass[GpuExpectation]):
    """One GPU, accelerator or NVSwitch."""

    name = "gpu"
    expectation = GpuExpectation

    def __init__(self, nodes: NodeMaker = _KERNEL) -> None:
        self._nodes = nodes

    def probe(self, tree: SysfsTree, place: Place, expected: GpuExpectation) -> Verdict[Found]:
        planned = plan(tree, place, expected)
        if not isinstance(planned, Ready):
            return planned
        return _as_placed(tree, _whole(place), planned.result)

    async def take(self, job: Job[GpuExpectation]) -> Taken:
        """Make what should be in /dev; raises KERNEL_REFUSED with the errno of what failed."""
        planned = (await job.until(plan)).found
        placed = PlacedFiles(job.hands.tree, self._nodes)
        owner = job.request.id
        before = tuple(placed.listed(owner))
        job.undo.push(
            f"remove the device files made for {owner}",
            partial(placed.release, owner, partial(_is_known, job.hands), before),
        )
        if isinstance(planned, Planned):
            # What is made is listed elsewhere; this has the next agent look at that list.
            job.note({"files": owner})
            placed.place(owner, planned.files)
        return Taken(sighting=await job.until(self.probe))

    def own_nodes(self, device: AttachedDevice) -> tuple[DeviceNode, ...]:
        """Without those that all GPUs of the driver share."""
        shared = device.info.shared_nodes if isinstance(device.info, GpuInfo) else ()
        return tuple(node for node in device.nodes if node.path not in shared)

    async def give_back(
        self,
        hands: Hands,
        device: AttachedDevice,
        kept: Mapping[str, str],  # noqa: ARG002 - what was made is listed where others see it
    ) -> None:
        placed = PlacedFiles(hands.tree, self._nodes)
        placed.release(device.request.id, partial(_is_known, hands))


def plan(tree: SysfsTree, place: Place, expected: GpuExpectation) -> Verdict[Found]:
    """What the GPU is and has, whether or not its files in /dev are there: Ready(Planned)."""
    place = _whole(place)
    other = unexpected(tree, place, pci_id=expected.pci_id, driver=None) or _other_driver(
        tree, place, expected.driver
    )
    if other is not None:
        return other
    read = settled(tree, place)
    if read is not None:
        waiting = absent(tree, place, "GPU yet, as its driver is still at it")
        return replace(waiting, needs=(read,))
    found = drm.look(tree, place.directory)
    parts = _parts(tree, place.function)
    if not isinstance(parts, Parts):
        return parts
    return _lacking(tree, place, found, parts, expected) or Ready(
        _planned(tree, place, found, parts)
    )


def _is_known(hands: Hands, device_id: str) -> bool:
    return hands.peer(device_id) is not None


def _whole(place: Place) -> Place:
    """A GPU that was addressed by one of its nodes is the function that the node belongs to."""
    if place.function is None or place.is_function:
        return place
    return replace(place, directory=place.function.directory)


def _other_driver(tree: SysfsTree, place: Place, driver: str | None) -> NotYet | None:
    """The driver that counts may be that of the virtio device behind the function."""
    inner = [tree.link_name(path / "driver") for path in _virtio(tree, place)]
    if driver is None or driver in inner or None in inner:
        return None
    return unexpected(tree, place, pci_id=None, driver=driver)


def _virtio(tree: SysfsTree, place: Place) -> list[Path]:
    return [path for path in children(tree, place.directory) if path.name.startswith("virtio")]


def _parts(tree: SysfsTree, function: PciFunction | None) -> Parts | NotYet | Failed:
    """What the vendor's driver has beyond DRM."""
    driver = tree.link_name(function.directory / "driver") if function else None
    if function is None:
        return Parts()
    if driver in (nvidia.GPU_DRIVER, nvidia.SWITCH_DRIVER):
        return nvidia.look(tree, function)
    if driver == "amdgpu":
        return amd.look(tree, function)
    if driver is None and _vendor_id(tree, function) == nvidia.VENDOR:
        return nvidia.refusal(tree, function) or Parts()
    return Parts()


def _lacking(
    tree: SysfsTree, place: Place, found: DrmNodes, parts: Parts, expected: GpuExpectation
) -> NotYet | Failed | None:
    """What is not there of a GPU whose driver has finished; None when it is complete."""
    if found.missing:
        return replace(
            absent(tree, place, "more of it"),
            evidence="; ".join(missing.why for missing in found.missing),
        )
    if not found.nodes and not parts.own:
        return refusal(tree, place) or absent(tree, place, "DRM or accelerator node")
    # The function's driver is through, the virtio device's maybe not: DRM makes the render
    # node first, so that the card, which every driver has, is the sign that it is.
    if found.render and not found.card and _virtio(tree, place):
        return absent(tree, place, "card node yet")
    if expected.render_node and not found.render:
        return absent(tree, place, "render node (its driver may be for displays alone)")
    return None


def _planned(tree: SysfsTree, place: Place, found: DrmNodes, parts: Parts) -> Planned:
    bdf = str(place.function.bdf) if place.function else ""
    links = drm.by_path(tree, bdf, found) if bdf else ()
    own = tuple(node.node for node in parts.own)
    others = tuple(node.node for node in (*parts.shared, *parts.mig))
    return Planned(
        nodes=tuple(dict.fromkeys((*own, *found.nodes, *parts.kernels, *others))),
        files=(*parts.files, *links),
        info=GpuInfo(
            vendor=_vendor(tree, place.function),
            model=parts.model,
            minor=parts.minor,
            uuid=parts.uuid,
            render_node=found.render,
            card_node=found.card,
            shared_nodes=(*(str(node.path) for node in parts.shared), *parts.shared_paths),
            mig_nodes=tuple(str(node.path) for node in parts.mig),
            links=tuple(str(link.path) for link in links),
        ),
    )


def _as_placed(tree: SysfsTree, place: Place, planned: Found) -> Verdict[Found]:
    """Ready once the files are there; a link that another device has is not told as ours."""
    if not isinstance(planned, Planned) or not isinstance(planned.info, GpuInfo):
        return Ready(planned)
    there = {str(file.path): content_of(tree, file.path) for file in planned.files}
    wanted = {str(file.path): file.content for file in planned.files}
    links = planned.info.links
    for path, content in wanted.items():
        if path not in links and there[path] != content:
            now = there[path] or "not there"
            evidence = f"the node {path} should be {content}, and is {now}"
            return replace(absent(tree, place, "usable node"), evidence=evidence)
    right = tuple(path for path in links if there[path] == wanted[path])
    return Ready(Found(nodes=planned.nodes, info=replace(planned.info, links=right)))


def _vendor_id(tree: SysfsTree, function: PciFunction) -> str:
    return pci_id_of(tree, function).partition(":")[0]


def _vendor(tree: SysfsTree, function: PciFunction | None) -> str:
    """A short name; the PCI id for a vendor without one."""
    if function is None:
        return ""
    return _VENDORS.get(_vendor_id(tree, function), pci_id_of(tree, function))

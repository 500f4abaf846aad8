"""AMD GPUs: the compute interface /dev/kfd, and the nodes of partitions.

All GPUs share /dev/kfd; which of them a process may use is decided by the render
nodes that it can open. A partitioned GPU has further DRM devices, which are platform
devices and so not below the function; KFD's topology tells whose they are
(drivers/gpu/drm/amd/amdkfd/kfd_topology.c: `location_id` is bus, device and function
with the partition in its highest bits, `domain` the PCI domain).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.verdict import NotYet
from agent.handlers.devices.gpus.parts import Parts
from agent.handlers.devices.nodes import NoNode, below, node_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.core.model import DeviceNode
    from agent.core.pci import Bdf
    from agent.core.tree import PciFunction, SysfsTree

VENDOR = "1002"
NAME = "amd"

_KFD = "/devices/virtual/kfd"
_PLATFORM = "/devices/platform"


def look(tree: SysfsTree, function: PciFunction) -> Parts | NotYet:
    """What amdgpu and KFD tell of the function; NotYet while a node is missing."""
    minors = list(_render_minors(tree, function.bdf))
    extra = [path for minor in minors for path in _siblings(tree, function.directory, minor)]
    wanted = [tree.real(tree.roots.sys / "class/kfd/kfd"), *extra] if minors else extra
    found = [node_of(tree, path) for path in dict.fromkeys(wanted) if path is not None]
    missing = [each.why for each in found if isinstance(each, NoNode)]
    if missing:
        near = (tree.devpath(function.directory), _KFD, _PLATFORM)
        return NotYet(evidence="; ".join(missing), near=near, names=(str(function.bdf),))
    nodes: tuple[DeviceNode, ...] = tuple(each for each in found if not isinstance(each, NoNode))
    return Parts(
        model=tree.text(function.directory / "product_name") or "",
        uuid=_uuid(tree.text(function.directory / "unique_id") or ""),
        kernels=nodes,
        shared_paths=tuple(node.path for node in nodes if node.path.endswith("/kfd")),
    )


def _render_minors(tree: SysfsTree, bdf: Bdf) -> Iterator[int]:
    """Of all of KFD's nodes that are this function or a partition of it."""
    listing = tree.roots.sys / "class/kfd/kfd/topology/nodes"
    for name in tree.names(listing):
        facts = _facts(tree.text(listing / name / "properties") or "")
        place = bdf.bus.number << 8 | bdf.slot.slot << 3 | bdf.slot.function
        here = (facts.get("domain", 0), facts.get("location_id", 0) & 0xFFFF)
        minor = facts.get("drm_render_minor", -1)
        # CPUs are nodes too, all at location 0 and without a render node.
        if minor > 0 and here == (bdf.bus.domain, place):
            yield minor


def _facts(text: str) -> dict[str, int]:
    pairs = [line.split() for line in text.splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _siblings(tree: SysfsTree, directory: Path, minor: int) -> Iterator[Path]:
    """The card and render devices of a partition, which is not below the function itself."""
    render = tree.real(tree.roots.sys / "class/drm" / f"renderD{minor}")
    if render is not None and not render.is_relative_to(directory):
        yield from below(tree, render.parent, "drm")


def _uuid(unique_id: str) -> str:
    """In the form of HSA_AMD_AGENT_INFO_UUID."""
    return f"GPU-{unique_id.removeprefix('0x').rjust(16, '0')}" if unique_id else ""

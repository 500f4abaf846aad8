"""Nodes of the kernel's graphics and accelerator subsystems, for any driver.

A function has `drm/cardN` and, unless its driver only displays, `drm/renderDN`, in its
own directory or in that of its virtio device (older kernels); accelerators have
`accel/accelN` instead (Documentation/gpu/drm-uapi.rst, Documentation/accel). devtmpfs
makes the nodes. The links in /dev/dri/by-path are udev's elsewhere (60-drm.rules of
systemd), and programs look for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.core.model import DeviceNode
from agent.handlers.devices.gpus.parts import Link
from agent.handlers.devices.nodes import NoNode, below, node_of

if TYPE_CHECKING:
    from agent.core.tree import SysfsTree

_DRI = "dri"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrmNodes:
    """Usable nodes, and what is wrong with others; `card` and `render` are paths, "" for none."""

    nodes: tuple[DeviceNode, ...] = ()
    missing: tuple[NoNode, ...] = ()
    card: str = ""
    render: str = ""


def look(tree: SysfsTree, directory: Path) -> DrmNodes:
    """What a device's directory holds now."""
    devices = [path for kind in ("drm", "accel") for path in below(tree, directory, kind)]
    found = [node_of(tree, path) for path in devices if (path / "dev").exists()]
    nodes = tuple(each for each in found if isinstance(each, DeviceNode))
    return DrmNodes(
        nodes=nodes,
        missing=tuple(each for each in found if isinstance(each, NoNode)),
        card=_first(nodes, "card"),
        render=_first(nodes, "renderD"),
    )


def by_path(tree: SysfsTree, bdf: str, drm: DrmNodes) -> tuple[Link, ...]:
    """The links that should lead to the nodes."""
    dri = tree.roots.dev / _DRI
    return tuple(
        Link(path=dri / "by-path" / f"pci-{bdf}-{suffix}", target=f"../{Path(path).name}")
        for suffix, path in (("card", drm.card), ("render", drm.render))
        if path and Path(path).parent == dri
    )


def _first(nodes: tuple[DeviceNode, ...], prefix: str) -> str:
    return next((node.path for node in nodes if Path(node.path).name.startswith(prefix)), "")

"""The block devices behind a storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.model import NodeType

if TYPE_CHECKING:
    from agent.core.model import AttachedDevice, DeviceNode


def block_node(device: AttachedDevice, field: str) -> DeviceNode:
    """The disk's own node; raises BAD_FIELD for a device that has none."""
    for node in device.nodes:
        if node.type is NodeType.BLOCK:
            return node
    raise invalid(
        f"device {device.request.id} has no block device: nothing can be mounted from it",
        field=field,
        hint="Devices.Get shows what it is, and in which mode",
    )

"""A disk that has got another size while it is attached.

The kernel tells it by a `change` event with RESIZE=1 (block/genhd.c,
set_capacity_and_notify); the answer of Devices.Get goes along.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.core.errors import AgentError
from agent.core.kinds import BlockInfo
from agent.handlers.devices.block import SECTOR

if TYPE_CHECKING:
    from agent.core.tree import SysfsTree
    from agent.handlers.devices.table import Table
    from agent.linux.uevents import Uevent

log = logging.getLogger(__name__)


def is_resize(event: Uevent) -> bool:
    return event.action == "change" and "RESIZE" in event.properties


def note_size(tree: SysfsTree, table: Table, event: Uevent) -> None:
    """Enter the disk's new size; fine when it is nobody's disk, or gone."""
    sectors = tree.text(tree.roots.sys / event.devpath.lstrip("/") / "size")
    if not sectors or not event.node:
        return
    path = str(tree.roots.dev / event.node)
    for entry in tuple(table):
        device = entry.device
        if isinstance(device.info, BlockInfo) and any(node.path == path for node in device.nodes):
            info = replace(device.info, size=int(sectors) * SECTOR)
            try:
                table.put(replace(entry, device=replace(device, info=info)))
            except AgentError as error:
                log.warning("the new size of device %s is not saved: %s", entry.id, error)

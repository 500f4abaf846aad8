"""Who uses a device of the table: its parts, looked for by `holders.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.core.holding import DeviceParts, Holder
from agent.core.model import AttachedDevice, DeviceNode, NodeType
from agent.handlers.devices import holders

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.deadlines import Deadline
    from agent.core.tree import SysfsTree


class Usage:
    """Looks for the users of devices in a guest."""

    def __init__(self, searchers: holders.Searchers, tree: SysfsTree) -> None:
        self._searchers = searchers
        self._tree = tree

    async def of(
        self, device: AttachedDevice, nodes: Iterable[DeviceNode], deadline: Deadline
    ) -> tuple[Holder, ...]:
        """Who uses it; `nodes` are those that are this device's alone.

        Raises OPERATION_TIMED_OUT: it is not known then.
        """
        own = tuple(nodes)
        parts = DeviceParts(
            directory=Path(device.sysfs_path), nodes=own, blocks=tuple(self._disks(own))
        )
        return await holders.find(self._searchers, self._tree.roots, parts, deadline)

    def _disks(self, nodes: Iterable[DeviceNode]) -> Iterable[str]:
        for node in nodes:
            if node.type is NodeType.BLOCK:
                listed = self._tree.roots.sys / "dev/block" / f"{node.major}:{node.minor}"
                real = self._tree.real(listed)
                yield real.name if real else Path(node.path).name

"""Who uses a device of the table: its parts, looked for by `holders.py`, and how that is told."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, Reason, wrong_state
from agent.core.holding import DeviceParts, Holder, HolderKind
from agent.core.model import AttachedDevice, DeviceNode, DeviceState, NodeType
from agent.handlers.devices import holders

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.deadlines import Deadline
    from agent.core.tree import SysfsTree
    from agent.handlers.devices.table import Entry

# What the server lets through of one field is 800 bytes.
_HOLDERS_BYTES = 780


class HolderScan(Protocol):
    """Who uses a device, as the kernel shows it (`usage.py`)."""

    async def of(
        self, device: AttachedDevice, nodes: Iterable[DeviceNode], deadline: Deadline
    ) -> tuple[Holder, ...]: ...


class NobodyHolds:
    """For a guest in which nothing can hold a device."""

    async def of(
        self,
        device: AttachedDevice,  # noqa: ARG002 - a Protocol's
        nodes: Iterable[DeviceNode],  # noqa: ARG002 - a Protocol's
        deadline: Deadline,  # noqa: ARG002 - a Protocol's
    ) -> tuple[Holder, ...]:
        return ()


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


def own_holder(user: str) -> Holder:
    """Users are noted as "storage ID" and "container ID"."""
    kind, _, name = user.partition(" ")
    return Holder(kind=HolderKind(kind), name=name)


def stacked(other: Entry, entry: Entry) -> tuple[Holder, ...]:
    """A device that lies behind the other one, as its user: a disk behind its adapter. A
    virtual function is none: it goes with its card, when nobody uses it."""
    behind = other.directory.is_relative_to(entry.directory)
    if not behind or other.device.state is not DeviceState.ATTACHED:
        return ()
    return (Holder(kind=HolderKind.STACKED, name=other.id),)


def still_used(device: AttachedDevice, holders: tuple[Holder, ...]) -> AgentError:
    """STILL_IN_USE, with who uses it."""
    first = ", ".join(map(str, holders[:3]))
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    given = {"users": ", ".join(sorted(device.users))} if device.users else {}
    return wrong_state(
        f"device {device.request.id} is still used: {first}{more}",
        reason=Reason.STILL_IN_USE,
        hint="end what uses it first; nothing has changed. Devices.Holders has the whole list",
        id=device.request.id,
        holders=_as_json(holders),
        holders_in_all=len(holders),
        **given,
    )


def _as_json(holders: tuple[Holder, ...]) -> str:
    """As many as fit into one field of an error, which would be cut in the middle else."""
    texts: list[str] = []
    room = _HOLDERS_BYTES
    for holder in holders:
        text = json.dumps({name: value for name, value in asdict(holder).items() if value})
        room -= len(text) + 1
        if room < 0:
            break
        texts.append(text)
    return f"[{','.join(texts)}]"

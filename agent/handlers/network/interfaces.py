"""Interfaces of one network namespace: found, made what they shall be, removed, listed.

`find` waits for hardware and takes no turn; `apply` changes, and its caller sees to it that
nobody else does meanwhile.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, kernel_refused, wrong_state
from agent.core.netlink import NetlinkRefusal, refused
from agent.core.network import InterfaceWish
from agent.core.rtnl import links
from agent.handlers.network import wishes as wish_rules
from agent.handlers.network.application import apply
from agent.handlers.network.finding import Finder, Found
from agent.handlers.network.interface_records import InterfaceRecords
from agent.handlers.network.interface_sysctls import LinkSysctls
from agent.handlers.network.listing import hardware_of, look, queues_of, state_of
from agent.handlers.network.memory import Ways
from agent.handlers.network.names import is_unborn

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any, TypeVar

    from agent.core.hotplug import HotplugBoard
    from agent.core.netlink import Netlink
    from agent.core.network import InterfaceState, Link
    from agent.core.rtnl.ethtool import Ethtool
    from agent.core.state import StateStore

    T = TypeVar("T")

_GONE = frozenset({errno.ENODEV})
_HARDWARE = frozenset({errno.EOPNOTSUPP})

log = logging.getLogger(__name__)

CHANGE_SECONDS = 20.0
"""What changes may take at least, however long the wait for hardware was."""


class Interfaces:
    """`namespace`: the descriptor of the namespace that netlink and ethtool are of; None for
    our own. Only there hardware is known, as sysfs shows our own."""

    def __init__(
        self,
        *,
        netlink: Netlink,
        ethtool: Ethtool,
        board: HotplugBoard,
        state: StateStore,
        namespace: int | None = None,
    ) -> None:
        self._tree = board.tree
        records = InterfaceRecords(state)
        self._ways = Ways(
            netlink=netlink,
            ethtool=ethtool,
            sysctls=LinkSysctls(board.tree.roots, namespace),
            records=records,
        )
        self._finder = Finder(netlink=netlink, board=board, records=records)

    async def find(self, wishes: Sequence[InterfaceWish], deadline: Deadline) -> tuple[Found, ...]:
        """Check the wishes, and wait until the interfaces that they mean are there.

        Raises BAD_FIELD, BAD_ADDRESS, UNKNOWN_INTERFACE, WRONG_STATE, and for a PCI address
        what `HotplugBoard.wait` does.
        """
        checked = tuple(map(wish_rules.canonical, wishes))
        wish_rules.check(checked)
        return await _told(self._finder.find(checked, deadline))

    async def apply(self, found: Sequence[Found], deadline: Deadline) -> tuple[InterfaceState, ...]:
        """Make them what they shall be, all or none; the states now, in their order.

        Raises BAD_FIELD, UNKNOWN_INTERFACE, WRONG_STATE, NAME_IN_USE, OFFLOAD_REFUSED,
        KERNEL_REFUSED, OPERATION_TIMED_OUT.
        """
        limit = max(deadline, Deadline.after(CHANGE_SECONDS), key=lambda each: each.at)
        return await _told(apply(found, ways=self._ways, tree=self._tree, deadline=limit))

    async def remove(self, name: str, deadline: Deadline) -> None:
        """Remove a virtual interface; one that is not there is fine. Raises NOT_REMOVABLE,
        KERNEL_REFUSED."""
        link = await _told(links.one_link(self._ways.netlink, deadline, name=name))
        if link is None:
            return
        if not link.kind:
            raise wrong_state(
                f"{link.name} is no virtual interface: hardware goes when it is unplugged",
                reason=Reason.NOT_REMOVABLE,
                interface=link.name,
            )
        change = replace(links.removed(link.index, f"remove {link.name}"), fine=_GONE)
        await _told(self._ways.netlink.change(change, deadline=deadline))

    async def list(self, deadline: Deadline) -> tuple[InterfaceState, ...]:
        """All there are, by index."""
        world = await _told(look(self._ways.netlink, deadline))
        states = []
        for link in sorted(world.links.values(), key=lambda link: link.index):
            state = state_of(world, link, hardware_of(self._tree, link))
            queues = await queues_of(self._ways.ethtool, link.index, deadline)
            states.append(replace(state, queues=queues))
        return tuple(states)

    async def restore(self, deadline: Deadline) -> None:
        """Take back what an agent that died in the middle of a change left: interfaces that
        were only half made, and names: all are what they were, so that the same request finds
        its interfaces again, or no temporary ones at least. Goes on where it can't, and says
        so."""
        for part in (self._unmake, self._former_names, self._no_temporary_names):
            try:
                await part(deadline)
            except (NetlinkRefusal, AgentError) as error:
                log.warning("what an earlier agent began is not all taken back: %s", error)

    async def _unmake(self, deadline: Deadline) -> None:
        """A veth takes its other end along, and what only looks like it may not be removed."""
        world = await look(self._ways.netlink, deadline)
        for index, link in world.links.items():
            if is_unborn(link.name):
                change = links.removed(index, f"remove {link.name}, which was never named")
                change = replace(change, fine=_GONE | _HARDWARE)
                await self._ways.netlink.change(change, deadline=deadline)

    async def _former_names(self, deadline: Deadline) -> None:
        former = dict(self._ways.records.former)
        there = (await look(self._ways.netlink, deadline)).links
        found = [_named(there[index], name) for index, name in former.items() if index in there]
        try:
            await apply(found, ways=self._ways, tree=self._tree, deadline=deadline)
        except (NetlinkRefusal, AgentError):
            # For those that have a temporary one.
            self._ways.records.former = former
            raise

    async def _no_temporary_names(self, deadline: Deadline) -> None:
        await apply((), ways=self._ways, tree=self._tree, deadline=deadline)


def _named(link: Link, name: str) -> Found:
    """A name, and everything else as it is."""
    wish = InterfaceWish(name=name, keep_addresses=True, up=link.up)
    return Found(wish=wish, index=link.index)


async def _told(work: Coroutine[Any, Any, T]) -> T:
    """What netlink raises, as answers to a request."""
    try:
        return await work
    except NetlinkRefusal as error:
        raise refused(error) from error
    except OSError as error:
        raise kernel_refused(error, doing="speak with the kernel's network") from error

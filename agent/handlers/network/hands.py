"""Changes of interfaces as one request makes them: the first refusal ends it.

Before the first change what can be lost by it is read (`remember`), and so is what an
interface has that goes down for a moment: a request that has nothing to change costs
nothing, and one that fails gives everything back.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from agent.core.netlink import NetlinkRefusal, refused
from agent.core.rtnl import links

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.core.deadlines import Deadline
    from agent.core.netlink import Change, Netlink
    from agent.core.network import Link

WANTS_IT_DOWN: Final = frozenset({errno.EBUSY, errno.EPERM})
"""Refusals of an interface that is up: names before Linux 6.2, some drivers' MAC address and
MTU (EBUSY), becoming a member of a bond (EPERM)."""


class Hands:
    """Strict hands: what the kernel refuses is raised as KERNEL_REFUSED."""

    def __init__(
        self,
        netlink: Netlink,
        deadline: Deadline,
        remember: Callable[[Sequence[int]], Awaitable[None]],
    ) -> None:
        self.netlink = netlink
        self.deadline = deadline
        self.changed = False
        self._remember = remember

    async def begin(self) -> None:
        """Something is about to change."""
        if not self.changed:
            await self._remember(())
            self.changed = True

    async def do(self, *changes: Change) -> None:
        """All of them, in order."""
        if not changes:
            return
        await self.begin()
        try:
            await self.netlink.change(*changes, deadline=self.deadline)
        except NetlinkRefusal as error:
            raise refused(error) from error

    async def do_to(self, link: Link, change: Change) -> bool:
        """One change of a link, with the link down where it is to be; returns whether it is
        down now for that."""
        await self.begin()
        try:
            await self.netlink.change(change, deadline=self.deadline)
        except NetlinkRefusal as error:
            if not (link.up and error.errno in WANTS_IT_DOWN):
                raise refused(error) from error
        else:
            return False
        await self._remember((link.index,))
        down = links.changed(link.index, f"{change.what}, for which it goes down", up=False)
        await self.do(down, change)
        return True

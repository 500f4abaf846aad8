"""Routes and policy rules that shall be, in one transaction.

Looked at, planned, done, looked at again. When something is refused, or the caller leaves,
it is looked at once more and planned back: the kernel's changes have no inverse of their
own (see routegroups and rules for what it does with routes and rules of one key).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent.core.network import Family
from agent.core.rtnl import links as rtnl_links
from agent.handlers.network.linknames import LinkNames
from agent.handlers.network.routechecks import check_sets
from agent.handlers.network.routejob import RoutesJob
from agent.handlers.network.routesnapshot import look
from agent.handlers.network.rules import check_rule_sets

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import RoutesState, RoutesWish


class Routes:
    """The routes and rules of one network namespace. Callers take turns."""

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink

    async def list(
        self, deadline: Deadline, *, table: int = 0, family: Family | None = None
    ) -> RoutesState:
        """All routes and rules, or those of a table or a family, the kernel's own too."""
        families = (family,) if family is not None else tuple(Family)
        tables = {(each, table) for each in families}
        return (await look(self._netlink, tables, families, deadline)).state()

    async def apply(self, wish: RoutesWish, deadline: Deadline) -> RoutesState:
        """Make the sets of the wish what they shall be; the answer tells those alone.

        Raises BAD_FIELD, UNKNOWN_INTERFACE, KERNEL_REFUSED, OPERATION_TIMED_OUT; after an
        error, and after a cancellation, everything is as it was.
        """
        await asyncio.to_thread(check_sets, wish)
        check_rule_sets(wish.rules)
        names = LinkNames(await rtnl_links.all_links(self._netlink, deadline))
        job = await asyncio.to_thread(RoutesJob, self._netlink, wish, names)
        return await job.run(deadline)

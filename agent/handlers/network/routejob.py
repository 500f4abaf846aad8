"""One request to change routes and rules: looked at, planned, done; or put back.

Parts of a plan are done one after the other: within one, many messages are on their way
at once, and after a refusal some more of them may have been done. So nothing is removed
before what replaces it is known to be there.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, wrong_state
from agent.core.netlink import NetlinkRefusal, refused
from agent.core.network import MAIN_TABLE
from agent.core.rtnl.messages import RTM_NEWROUTE
from agent.core.undo import UndoStack
from agent.handlers.network.reportlines import capped
from agent.handlers.network.routechanges import (
    route_change,
    support_added,
    support_removed,
    supports,
)
from agent.handlers.network.routeplan import RoutePlan, plan
from agent.handlers.network.routereport import route_lines, rule_lines
from agent.handlers.network.routesnapshot import Snapshot, look
from agent.handlers.network.routetargets import targets
from agent.handlers.network.routewants import wants, without_device
from agent.handlers.network.rules import rule_plan, rule_target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

    from agent.core.netlink import Change, Netlink
    from agent.core.network import Family, Route, RoutesState, RoutesWish
    from agent.handlers.network.linknames import LinkNames
    from agent.handlers.network.routegroups import Step
    from agent.handlers.network.routetargets import SetKey
    from agent.handlers.network.rules import HeldRule

_ROUNDS: Final = 3
_BATCH: Final = 512
_BACK_SECONDS: Final = 60.0
"""For putting back what was: it has its own time, as the request's may be over."""

_NO_WAY: Final = frozenset({errno.EINVAL, errno.ENETUNREACH, errno.EHOSTUNREACH})
"""What the kernel says of a gateway that no route on link leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    routes: tuple[Route, ...]
    rules: Mapping[Family, list[HeldRule]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """All changes: parts to be done one after the other."""

    routes: RoutePlan
    rules: tuple[Change, ...]
    names: LinkNames

    def __bool__(self) -> bool:
        return bool(self.routes or self.rules)

    def single(self) -> Iterator[tuple[Change, Route | None]]:
        """Each change, with its route if it is one of a route."""
        for part in self._parts():
            yield from part

    def batches(self) -> Iterator[tuple[Change, ...]]:
        """What may be on its way at once. Messages are made as they are sent: a hundred
        thousand take a while."""
        for part in self._parts():
            while batch := tuple(islice(part, _BATCH)):
                yield tuple(change for change, _ in batch)

    def _parts(self) -> Iterator[Iterator[tuple[Change, Route | None]]]:
        for steps in self.routes.making:
            yield self._changes(steps)
        yield ((change, None) for change in self.rules)
        yield self._changes(self.routes.removing)

    def _changes(self, steps: Iterable[Step]) -> Iterator[tuple[Change, Route]]:
        return ((route_change(step, self.names), step.route) for step in steps)


class RoutesJob:
    """One wish, checked. Raises NOT_FOUND UNKNOWN_INTERFACE when it is made."""

    def __init__(self, netlink: Netlink, wish: RoutesWish, names: LinkNames) -> None:
        self._netlink = netlink
        self._wish = wish
        self._wants = {
            (each.family, each.table): wants(each, names, f"sets[{number}]")
            for number, each in enumerate(wish.sets)
        }
        self._families = frozenset(each.family for each in wish.rules)
        gateways = set(without_device(chain(*self._wants.values())))
        self._looked = {*self._wants, *((family, MAIN_TABLE) for family in gateways)}

    async def run(self, deadline: Deadline) -> RoutesState:
        before = await self._look(self._looked, deadline)
        planned = await asyncio.to_thread(self._plan, before)
        if not planned:
            return await asyncio.to_thread(self._answer, before, before)
        async with UndoStack("apply routes") as undo:
            undo.push("put the routes and rules back", lambda: self._put_back(before))
            await self._do(planned, deadline)
            after = await self._settled(deadline)
            undo.commit()
        return await asyncio.to_thread(self._answer, before, after)

    async def _look(self, tables: Iterable[SetKey], deadline: Deadline) -> Snapshot:
        return await look(self._netlink, set(tables), self._families, deadline)

    def _plan(self, now: Snapshot) -> _Plan:
        return self._from_to(now, self._target(now))

    def _target(self, now: Snapshot) -> _Target:
        return _Target(
            routes=targets(now.routes, self._wants, now.names),
            rules={
                each.family: rule_target(now.rules[each.family], each) for each in self._wish.rules
            },
        )

    def _from_to(self, now: Snapshot, target: _Target) -> _Plan:
        rules = (rule_plan(now.rules[family], shall) for family, shall in target.rules.items())
        return _Plan(
            routes=plan(now.within(self._wants), target.routes),
            rules=tuple(chain(*rules)),
            names=now.names,
        )

    async def _do(self, planned: _Plan, deadline: Deadline) -> None:
        try:
            async for batch in _apart(planned.batches()):
                await self._netlink.change(*batch, deadline=deadline)
        except NetlinkRefusal as error:
            raise refused(error, _hint(error)) from error

    async def _settled(self, deadline: Deadline) -> Snapshot:
        """What is there now. The kernel's word that a change is done is not taken for it:
        others change routes too, and some removals take more than they say."""
        for _ in range(_ROUNDS):
            now = await self._look(self._looked, deadline)
            planned = await asyncio.to_thread(self._plan, now)
            if not planned:
                return now
            await self._do(planned, deadline)
        first, _ = next(planned.single())
        raise wrong_state(
            f"the routes don't become what they shall be: {first.what} is needed again and again",
            reason=Reason.KERNEL_REFUSED,
            hint="somebody else in the guest changes them at the same time",
        )

    def _answer(self, before: Snapshot, after: Snapshot) -> RoutesState:
        """The sets of the wish, without the table that was looked at for gateways."""
        shown = Snapshot(routes=after.within(self._wants), rules=after.rules, names=after.names)
        lines, more = route_lines(before.within(self._wants), shown.routes, after.names)
        for family in sorted(self._families):
            lines += rule_lines(before.rules[family], after.rules[family])
        return shown.state(changed=capped(lines, more=more))

    # --- back -----------------------------------------------------------------------

    async def _put_back(self, before: Snapshot) -> None:
        """Raises AgentError for what could not be put back."""
        deadline = Deadline.after(_BACK_SECONDS)
        target = _Target(routes=before.within(self._wants), rules=before.rules)
        refusals: list[NetlinkRefusal] = []
        for number in range(_ROUNDS):
            now = await self._look(self._wants, deadline)
            planned = await asyncio.to_thread(self._from_to, now, target)
            if not planned:
                return
            refusals = await (self._one_by_one if number else self._all)(planned, deadline)
        now = await self._look(self._wants, deadline)
        if left := await asyncio.to_thread(self._from_to, now, target):
            raise _not_back(left, refusals)

    async def _all(self, planned: _Plan, deadline: Deadline) -> list[NetlinkRefusal]:
        """What can be done of it, many at once. The refusals."""
        refusals: list[NetlinkRefusal] = []
        async for batch in _apart(planned.batches()):
            try:
                await self._netlink.change(*batch, deadline=deadline)
            except NetlinkRefusal as error:
                refusals.append(error)
        return refusals

    async def _one_by_one(self, planned: _Plan, deadline: Deadline) -> list[NetlinkRefusal]:
        """The same, whatever stands in the way of one that was there before."""
        refusals: list[NetlinkRefusal] = []
        for change, route in planned.single():
            try:
                await self._netlink.change(change, deadline=deadline)
            except NetlinkRefusal as error:
                helped = error.errno in _NO_WAY and await self._supported(change, route, deadline)
                if not helped:
                    refusals.append(error)
        return refusals

    async def _supported(self, change: Change, route: Route | None, deadline: Deadline) -> bool:
        """Make a route with routes on link to its gateways, which go at once."""
        added: list[Route] = []
        try:
            for support in supports(route) if route is not None else ():
                await self._netlink.change(support_added(support), deadline=deadline)
                added.append(support)
            await self._netlink.change(change, deadline=deadline)
        except NetlinkRefusal:
            return False
        finally:
            for support in added:
                await self._unsupported(support, deadline)
        return True

    async def _unsupported(self, support: Route, deadline: Deadline) -> None:
        """Nothing but this knows of a support, so it is not left after one refusal."""
        for left in reversed(range(_ROUNDS)):
            try:
                await self._netlink.change(support_removed(support), deadline=deadline)
            except NetlinkRefusal:
                if not left:
                    raise
            else:
                return


async def _apart(batches: Iterator[tuple[Change, ...]]) -> AsyncIterator[tuple[Change, ...]]:
    """Made in a thread: hundreds of messages and their words take a while."""
    while batch := await asyncio.to_thread(next, batches, ()):
        yield batch


def _hint(error: NetlinkRefusal) -> str | None:
    if error.errno == errno.ENETDOWN:
        return "bring the interface up first (ApplyInterface)"
    if error.errno in _NO_WAY and error.change.type == RTM_NEWROUTE:
        return (
            "a gateway needs a route on link that leads to it, in the same set or in the main "
            "table, or `onlink`; a source must be an address of the guest"
        )
    return None


def _not_back(left: _Plan, refusals: list[NetlinkRefusal]) -> Exception:
    needed = [change.what for change, _ in left.single()]
    why = f"; {refusals[0]}" if refusals else ""
    more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
    return wrong_state(f"still to do: {needed[0]}{more}{why}", reason=Reason.KERNEL_REFUSED)

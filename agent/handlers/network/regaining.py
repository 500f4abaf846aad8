"""What interfaces lost on the way to their new state, given back at its end.

An interface that goes down for a moment loses routes, neighbours and IPv6 addresses, and so
does what is on top of it. What the new state has no place for is lost for good, and told: a
route from an address that is gone, a gateway that is out of reach.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.core.netlink import NetlinkRefusal, refused
from agent.core.network import LinkFlag
from agent.core.rtnl import links
from agent.handlers.network import holding_plan
from agent.handlers.network.holding import held

if TYPE_CHECKING:
    from agent.core.netlink import Change
    from agent.core.network import Link
    from agent.handlers.network.hands import Hands
    from agent.handlers.network.holding import Holding

_ROUNDS = 4

_NO_PLACE = frozenset(
    {
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.EINVAL,
        errno.ENETDOWN,
        errno.EADDRNOTAVAIL,
        errno.EEXIST,
        errno.EACCES,
        errno.ENODEV,
        errno.ESRCH,
    }
)


async def regain(holding: Holding, hands: Hands, *, asked: bool) -> tuple[str, ...]:
    """Give an interface back what it lost; returns what has no place any more.

    `asked`: the request is about this one, so its settings and addresses are what they
    shall be; of others, which only were in the way, they count too. Raises KERNEL_REFUSED.
    """
    lost: dict[str, str] = {}
    before: tuple[Change, ...] = ()
    for _ in range(_ROUNDS):
        link = await links.one_link(hands.netlink, hands.deadline, index=holding.link.index)
        if link is None or (asked and not link.up):
            return ()
        now = await held(hands.netlink, link.index, hands.deadline)
        changes = holding_plan.plan(now, _wanted(holding, now, asked=asked))
        if not changes or changes == before:
            break
        before = changes
        lost.clear()
        for change in changes:
            if problem := await _regained(change, hands):
                lost[change.what] = problem
    return tuple(lost.values())


def _wanted(holding: Holding, now: Holding, *, asked: bool) -> Holding:
    if asked:
        return replace(holding, link=now.link, addresses=now.addresses)
    return replace(holding, link=_link(holding.link, now.link))


def _link(before: Link, now: Link) -> Link:
    """As it is, but up where it was."""
    up = before.flags & LinkFlag.UP
    return replace(now, flags=(now.flags & ~LinkFlag.UP) | up)


async def _regained(change: Change, hands: Hands) -> str:
    try:
        await hands.netlink.change(change, deadline=hands.deadline)
    except NetlinkRefusal as error:
        if error.errno not in _NO_PLACE:
            raise refused(error) from error
        return f"lost, could not {error}"
    return ""

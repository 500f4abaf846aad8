"""One change of an interface, tried; on older kernels with the interface down for a moment."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.netlink import NetlinkRefusal
from agent.core.rtnl import links

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Change, Netlink

RTM_NEWLINK = 16

_WANTS_IT_DOWN = frozenset({errno.EBUSY, errno.EPERM})
"""Refusals of an interface that is up: names before Linux 6.2 and some MAC addresses
(EBUSY, net/core/dev.c, net/ethernet/eth.c), becoming a part of a bond (EPERM,
drivers/net/bonding/bond_main.c)."""


async def attempt(netlink: Netlink, change: Change, index: int, deadline: Deadline) -> str:
    """Make the change; returns why not, empty when it is made.

    Where only an interface that is down takes it, it is down afterwards: the caller looks
    again. Raises OPERATION_TIMED_OUT.
    """
    try:
        await netlink.change(change, deadline=deadline)
    except NetlinkRefusal as error:
        if error.errno in change.fine:
            return ""
        if change.type != RTM_NEWLINK or error.errno not in _WANTS_IT_DOWN:
            return str(error)
    else:
        return ""
    try:
        down = links.changed(index, f"{change.what}, with the interface down", up=False)
        await netlink.change(down, change, deadline=deadline)
    except NetlinkRefusal as error:
        return str(error)
    return ""

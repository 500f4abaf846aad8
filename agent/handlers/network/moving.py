"""An interface from one network namespace into another, and which names are free there.

The kernel sets it down and takes its addresses, routes and neighbours; its name, the
alternative ones, MAC address, MTU and index it keeps where they are free in the other
namespace. A name that is not free refuses the move, alternative ones too (since Linux 6.6).
Facts: __dev_change_net_namespace in net/core/dev.c, do_setlink in net/core/rtnetlink.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import Reason, wrong_state
from agent.core.rtnl import links
from agent.handlers.network.loans import alike
from agent.handlers.network.names import fallback_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A network namespace: a way to its network, and a descriptor of it."""

    netlink: Netlink
    namespace: int


async def move(
    link: Link, name: str, source: Side, target: Side, what: str, deadline: Deadline
) -> Link:
    """Move a link from `source` to `target`; returns it as it is there.

    `name` is its name there, or a template that ends in %d. Raises NetlinkRefusal and
    OPERATION_TIMED_OUT, WRONG_STATE when it is gone.
    """
    before = {each.index for each in await links.all_links(target.netlink, deadline)}
    change = links.moved(link.index, what, namespace=target.namespace, name=name)
    await source.netlink.change(change, deadline=deadline)
    for each in await links.all_links(target.netlink, deadline):
        if each.index not in before and alike(each, link) and each.mac == link.mac:
            return each
    raise wrong_state(
        f"{what}: it was gone right after the move",
        reason=Reason.UNKNOWN_INTERFACE,
        hint="its device was unplugged, or its other end removed",
        name=link.name,
    )


async def drop_altnames(
    link: Link, taken: Iterable[str], netlink: Netlink, deadline: Deadline
) -> None:
    """Take alternative names off that would refuse the move to where `taken` are names."""
    for name in set(link.altnames) & set(taken):
        what = f"take the name {name} off {link.name}"
        await netlink.change(links.altname_removed(link.index, name, what), deadline=deadline)


def names_of(found: Iterable[Link]) -> frozenset[str]:
    """Every name that they have: no other interface of their namespace can get one."""
    return frozenset(name for link in found for name in (link.name, *link.altnames))


def free_name(wanted: str, other: str, taken: frozenset[str]) -> str:
    """The wanted name where nobody else has it by now, else the other one, else a new one."""
    free = (name for name in (wanted, other) if name not in taken)
    return next(free, None) or fallback_name(taken)

"""Which interfaces a container asks for, what of them goes along, and what speaks against it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.core.errors import Reason, already_exists, invalid, not_found, wrong_state
from agent.core.network import AddressFlag, LinkFlag, Scope
from agent.core.rtnl import links
from agent.handlers.network.holding import Holding, held
from agent.handlers.network.loans import Loan
from agent.handlers.network.moving import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import InterfaceGrant, Link

log = logging.getLogger(__name__)

_TEMPLATE = "%d"


async def loan_of(
    netlink: Netlink, grant: InterfaceGrant, deadline: Deadline, *, stays: bool
) -> Loan:
    """What a grant means now. Raises UNKNOWN_INTERFACE, BAD_FIELD, WRONG_STATE."""
    link = await links.one_link(netlink, deadline, name=grant.name)
    if link is None:
        raise not_found(
            f"the sandbox has no interface {grant.name!r}",
            reason=Reason.UNKNOWN_INTERFACE,
            hint="Network.ListInterfaces shows those that are, and which containers have some",
            name=grant.name,
        )
    if LinkFlag.LOOPBACK in link.flags:
        raise invalid(
            f"{link.name} is the sandbox's own: every network namespace has one",
            field="interfaces",
        )
    if link.master:
        raise wrong_state(
            f"interface {link.name} belongs to another one, which can't go along",
            hint="take it out of that first (ApplyInterface with an empty master)",
            name=link.name,
        )
    holding = await held(netlink, link.index, deadline)
    return Loan(holding=holding, name=grant.container_name or link.name, stays=stays)


def in_container(loan: Loan) -> Holding:
    """What the interface shall have there."""
    if loan.stays:
        return _as_specified(loan)
    for route in loan.holding.shared:
        log.warning(
            "the route to %s has ways through other interfaces than %s: it does not go along",
            route.destination,
            loan.holding.link.name,
        )
    return replace(loan.holding.apart(), link=_link(loan))


def _as_specified(loan: Loan) -> Holding:
    """By OCI's runtime specification (config-linux.md, Network Devices): the interface's
    attributes, permanent addresses of global scope, and up."""
    permanent = (
        each
        for each in loan.holding.addresses
        if AddressFlag.PERMANENT in each.flags and each.scope == Scope.UNIVERSE
    )
    link = _link(loan)
    link = replace(link, flags=link.flags | LinkFlag.UP)
    return Holding(link=link, addresses=tuple(permanent))


def _link(loan: Loan) -> Link:
    """A name that is its own alternative one now can't be both."""
    link = loan.holding.link
    altnames = tuple(name for name in link.altnames if name != loan.name)
    return replace(link, altnames=altnames, master=0)


def check(loans: Sequence[Loan], present: Sequence[Link]) -> None:
    """Raises BAD_FIELD for an interface or a name that is asked for twice, NAME_IN_USE for a
    name that another interface has in the container's namespace."""
    indexes = [loan.holding.link.index for loan in loans]
    for loan in loans:
        if indexes.count(loan.holding.link.index) > 1:
            raise invalid(
                f"interface {loan.holding.link.name} is asked for twice", field="interfaces"
            )
    taken = set(names_of(present))
    for loan in loans:
        names = {*loan.holding.link.altnames}
        if not loan.name.endswith(_TEMPLATE):
            names.add(loan.name)
        if clash := sorted(names & taken):
            raise already_exists(
                f"two interfaces of the container would have the name {clash[0]}",
                reason=Reason.NAME_IN_USE,
                hint="choose another name for it in the container",
                name=clash[0],
            )
        taken |= names

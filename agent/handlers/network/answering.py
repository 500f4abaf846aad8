"""The answer to a request: its interfaces as they are now, and what was changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agent.core.rtnl import makings
from agent.handlers.network.finding import unknown
from agent.handlers.network.interface_changes import View, lines
from agent.handlers.network.interface_sysctls import Ipv6Settings
from agent.handlers.network.listing import queues_of, state_of
from agent.handlers.network.settling import Before, known_offloads

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.network import Address, InterfaceState, InterfaceWish, Link, LinkMaking
    from agent.handlers.network.memory import Ways
    from agent.handlers.network.request import Request


@dataclass(slots=True, kw_only=True)
class Account:
    """What one interface was before; filled as a request goes on.

    One that was made is as the kernel made it, under the name that it was to have.
    """

    link: Link
    addresses: tuple[Address, ...] = ()
    making: LinkMaking | None = None
    made: bool = False
    before: Before = field(default_factory=Before)
    notes: list[str] = field(default_factory=list)
    """More lines of what was changed."""


async def answer(
    request: Request, accounts: dict[int, Account], ways: Ways, deadline: Deadline
) -> tuple[InterfaceState, ...]:
    """In the order of the wishes. Raises UNKNOWN_INTERFACE for one that has gone."""
    states = []
    for index, wish in request:
        if index not in request.world.links:
            raise unknown(wish, list(request.world.links.values()))
        state = await _state(request, index, ways, deadline)
        changed = await _changed(request, state, accounts[index], ways, deadline)
        states.append(replace(state, changed=changed))
    return tuple(states)


async def _state(request: Request, index: int, ways: Ways, deadline: Deadline) -> InterfaceState:
    link = request.world.links[index]
    features = await ways.ethtool.features(index, deadline)
    return replace(
        state_of(request.world, link, request.hardware(link)),
        queues=await queues_of(ways.ethtool, index, deadline),
        offloads=known_offloads(features) if features else {},
    )


async def _changed(
    request: Request, state: InterfaceState, account: Account, ways: Ways, deadline: Deadline
) -> tuple[str, ...]:
    link, wish = state.link, request.wish_of(state.link.index)
    former = replace(account.link, name=link.name) if account.made else account.link
    old = View(
        link=former,
        addresses=account.addresses,
        master=request.world.names.get(former.master, ""),
        making=account.making,
        ipv6=account.before.ipv6,
        queues=account.before.queues,
        offloads=account.before.offloads,
    )
    new = View(
        link=link,
        addresses=state.addresses,
        master=state.master,
        making=await _making(link, wish, ways, deadline),
        ipv6=await _ipv6(link, account, ways),
        queues=state.queues,
        offloads=state.offloads,
    )
    made = (f"made {link.kind}",) if account.made else ()
    return (*made, *lines(old, new), *account.notes)


async def _making(
    link: Link, wish: InterfaceWish, ways: Ways, deadline: Deadline
) -> LinkMaking | None:
    if wish.making is None:
        return None
    return await makings.making_of(ways.netlink, link.index, deadline)


async def _ipv6(link: Link, account: Account, ways: Ways) -> Ipv6Settings:
    """Looked at only where the wish spoke of it."""
    if account.before.ipv6 == Ipv6Settings():
        return Ipv6Settings()
    return await ways.sysctls.read(link.name)

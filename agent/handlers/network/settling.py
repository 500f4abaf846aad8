"""One interface of a request made what it shall be, once it is there and has its name.

Each part looks, does what differs, and looks again: changes have side effects, and a driver
may do other than it was asked.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Reason, not_found, wrong_state
from agent.core.netlink import NetlinkRefusal, refused
from agent.core.network import Family, LinkFlag, Queues
from agent.core.rtnl import addresses, links
from agent.handlers.network import interface_addresses, offloads, planning
from agent.handlers.network.interface_sysctls import Ipv6Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.netlink import Change
    from agent.core.network import Address, InterfaceWish, Link
    from agent.core.rtnl.ethtool import Features
    from agent.handlers.network.hands import Hands
    from agent.handlers.network.memory import Memory, Ways

_ROUNDS = 4

# A secondary went with its primary, or the kernel took it at the same time.
_GONE = frozenset({errno.EADDRNOTAVAIL})


@dataclass(slots=True, kw_only=True)
class Before:
    """What the parts that are not of the link were before, where a wish speaks of them."""

    ipv6: Ipv6Settings = field(default_factory=Ipv6Settings)
    queues: Queues | None = None
    offloads: Mapping[str, bool] = field(default_factory=dict)


class Settler:
    """For the interfaces of one request."""

    def __init__(self, *, ways: Ways, hands: Hands, memory: Memory) -> None:
        self._ways = ways
        self._hands = hands
        self._memory = memory

    async def settle(self, index: int, wish: InterfaceWish, master: int | None) -> Before:
        """Everything but names. Raises what stands in the protocol's comments."""
        before = Before()
        link = await self._link(index)
        await self._ipv6(link, wish, before)
        await self._queues(link, wish, before)
        await self._offloads(link, wish, before)
        await self._settings(index, planning.goal_of(wish, master))
        await self._addresses(index, wish)
        return before

    async def _link(self, index: int) -> Link:
        link = await links.one_link(self._ways.netlink, self._hands.deadline, index=index)
        if link is None:
            raise not_found(
                f"interface {index} has gone meanwhile",
                reason=Reason.UNKNOWN_INTERFACE,
                ifindex=index,
            )
        return link

    async def _ipv6(self, link: Link, wish: InterfaceWish, before: Before) -> None:
        wanted = Ipv6Settings(enabled=wish.ipv6, accept_ra=wish.accept_router_advertisements)
        if wanted == Ipv6Settings():
            return
        now = await self._ways.sysctls.read(link.name)
        before.ipv6 = now
        differing = Ipv6Settings(
            enabled=wanted.enabled if wanted.enabled != now.enabled else None,
            accept_ra=wanted.accept_ra if wanted.accept_ra != now.accept_ra else None,
        )
        if differing != Ipv6Settings():
            await self._hands.begin()
            if link.index in self._memory.world.links:
                self._memory.ipv6[link.index] = now
            await self._ways.sysctls.write(link.name, differing)

    async def _queues(self, link: Link, wish: InterfaceWish, before: Before) -> None:
        wanted = wish.queues
        if wanted == Queues():
            return
        channels = await self._ways.ethtool.channels(link.index, self._hands.deadline)
        if channels is None:
            raise wrong_state(
                f"interface {link.name}: its driver has no queues to set",
                reason=Reason.KERNEL_REFUSED,
                interface=link.name,
            )
        before.queues = now = channels.now
        if now == _with_defaults(wanted, now):
            return
        await self._hands.begin()
        if link.index in self._memory.world.links:
            self._memory.queues[link.index] = now
        what = f"set the queues of {link.name}"
        try:
            await self._ways.ethtool.set_channels(link.index, wanted, what, self._hands.deadline)
        except NetlinkRefusal as error:
            raise refused(error, f"at most {_words(channels.most)}") from error

    async def _offloads(self, link: Link, wish: InterfaceWish, before: Before) -> None:
        if not wish.offloads:
            return
        features = await self._features(link)
        before.offloads = known_offloads(features)
        wanted = offloads.features_to_set(wish.offloads, features, link.name)
        if wanted:
            await self._hands.begin()
            if link.index in self._memory.world.links:
                former = {name: name in features.wanted for name in wanted}
                self._memory.offloads[link.index] = former
            await self._set_features(link, wanted)
            features = await self._features(link)
        offloads.check_fulfilled(wish.offloads, features, link.name)

    async def _features(self, link: Link) -> Features:
        found = await self._ways.ethtool.features(link.index, self._hands.deadline)
        if found is None:
            raise wrong_state(
                f"interface {link.name}: its driver has no offloads",
                reason=Reason.OFFLOAD_REFUSED,
                interface=link.name,
            )
        return found

    async def _set_features(self, link: Link, wanted: Mapping[str, bool]) -> None:
        what = f"set offloads of {link.name}"
        try:
            await self._ways.ethtool.set_features(link.index, wanted, what, self._hands.deadline)
        except NetlinkRefusal as error:
            raise wrong_state(
                f"{error}", reason=Reason.OFFLOAD_REFUSED, interface=link.name
            ) from error

    async def _settings(self, index: int, goal: planning.Goal) -> None:
        changes: tuple[Change, ...] = ()
        for _ in range(_ROUNDS):
            link = await self._link(index)
            changes = planning.plan(link, goal)
            if not changes:
                return
            for change in changes:
                if await self._hands.do_to(link, change):
                    link = replace(link, flags=link.flags & ~LinkFlag.UP)
        raise _did_not_stay(changes)

    async def _addresses(self, index: int, wish: InterfaceWish) -> None:
        changes: tuple[Change, ...] = ()
        for _ in range(_ROUNDS):
            link = await self._link(index)
            netlink, deadline = self._ways.netlink, self._hands.deadline
            now = await addresses.all_addresses(netlink, deadline, index=index)
            changes = self._address_changes(link, now, wish)
            if not changes:
                return
            await self._hands.do(*changes)
        raise _did_not_stay(changes)

    def _address_changes(
        self, link: Link, now: tuple[Address, ...], wish: InterfaceWish
    ) -> tuple[Change, ...]:
        wanted = [interface_addresses.wanted_address(each, link) for each in wish.addresses]
        if wish.keep_addresses:
            wanted = [*self._kept(link, wish, wanted), *wanted]
        steps = interface_addresses.plan(now, wanted, link=link, keep=wish.keep_addresses)
        return tuple(_change(step, link.name) for step in steps)

    def _kept(self, link: Link, wish: InterfaceWish, wanted: list[Address]) -> list[Address]:
        """Those that were there before and may have been lost on the way: what goes down
        loses its IPv6 addresses for good."""
        hosts = {each.interface.ip for each in wanted}
        return [
            replace(each, label=_label(each, link.name))
            for each in self._memory.world.addresses_of(link.index)
            if each.interface.ip not in hosts
            and not interface_addresses.is_kernels(each, link)
            and (each.family is Family.V4 or (wish.up and wish.ipv6 is not False))
        ]


def known_offloads(features: Features) -> dict[str, bool]:
    """Those that are on or can be changed, by the kernel's names."""
    names = sorted(features.active | features.changeable)
    return {name: name in features.active for name in names}


def _change(step: interface_addresses.AddressStep, name: str) -> Change:
    address = step.address
    if isinstance(step, interface_addresses.Remove):
        removal = addresses.removed(address, f"remove {address.interface} from {name}")
        return replace(removal, fine=_GONE)
    labelled = replace(address, label=_label(address, name))
    return addresses.added(labelled, f"add {address.interface} to {name}")


def _label(address: Address, name: str) -> str:
    """The interface's name, which needs no words, or that with ":" and something."""
    suffix = address.label.partition(":")[2]
    return f"{name}:{suffix}" if suffix else ""


def _with_defaults(wanted: Queues, now: Queues) -> Queues:
    return Queues(
        receive=wanted.receive or now.receive,
        transmit=wanted.transmit or now.transmit,
        combined=wanted.combined or now.combined,
    )


def _words(queues: Queues) -> str:
    return (
        f"{queues.receive} receive, {queues.transmit} transmit, {queues.combined} combined queues"
    )


def _did_not_stay(changes: tuple[Change, ...]) -> AgentError:
    what = "; ".join(change.what for change in changes)
    return wrong_state(
        f"the kernel took this and it did not stay: {what}",
        reason=Reason.KERNEL_REFUSED,
        hint="is somebody else changing the same interface?",
    )

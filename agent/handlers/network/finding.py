"""Which interface a wish means, waited for as for any device.

By PCI address it is what `NicDevices` finds behind the function; of several the wish's MAC
or present name says which. By MAC it is the one that is not on top of another: a VLAN, a
bond or a bridge has the address of what is below it. By name an alternative one counts.

Nothing of this holds the turn of changes. Links come with an event of the kernel (in the
agent's own network namespace), changed names and addresses with a notice of netlink, of
which `HotplugBoard.look_again` tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.core.addresses import MacAddress
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, not_found, wrong_state
from agent.core.hotplug import Wish
from agent.core.kinds import NicExpectation, NicInfo
from agent.core.places import find as find_place
from agent.core.rtnl import links
from agent.core.verdict import Ready
from agent.handlers.devices.nic import NicDevices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.core.hotplug import HotplugBoard
    from agent.core.netlink import Netlink
    from agent.core.network import InterfaceWish, Link
    from agent.core.tree import SysfsTree
    from agent.core.verdict import Verdict
    from agent.handlers.devices.base import Found as FoundDevice
    from agent.handlers.network.interface_records import InterfaceRecords

_LOOK_SECONDS = 5.0

_ON_TOP = frozenset(
    {"vlan", "bond", "bridge", "team", "vrf", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A wish and the interface that it means. An index of 0: it is to be made, or another
    wish of the request makes it."""

    wish: InterfaceWish
    index: int = 0


class Finder:
    """Finds interfaces of the network namespace of `netlink`, which is that of sysfs too."""

    def __init__(self, *, netlink: Netlink, board: HotplugBoard, records: InterfaceRecords) -> None:
        self._netlink = netlink
        self._board = board
        self._records = records

    async def find(self, wishes: Sequence[InterfaceWish], deadline: Deadline) -> tuple[Found, ...]:
        """All of them, each waited for until its own timeout.

        Raises UNKNOWN_INTERFACE for one that does not come, what the board raises for a PCI
        address, WRONG_STATE for a MAC address that several have.
        """
        until = [_until(wish, deadline) for wish in wishes]
        coming = {name for wish in wishes for name in _made(wish)}
        found = []
        for wish, limit in zip(wishes, until, strict=True):
            found.append(Found(wish=wish, index=await self._one(wish, coming, limit)))
        return tuple(found)

    async def _one(self, wish: InterfaceWish, coming: set[str], deadline: Deadline) -> int:
        match wish.address:
            case None:
                return await self._by_name(wish, coming, deadline)
            case MacAddress():
                mac = str(wish.address)
                return await self._wait(wish, deadline, lambda: self._by_mac(mac))
            case _:
                return await self._by_pci(wish, deadline)

    async def _by_pci(self, wish: InterfaceWish, deadline: Deadline) -> int:
        what = f"interface at {wish.address}"
        seeking = Wish(what=what, probe=lambda tree: _probe(tree, wish), rescan=True)
        found: FoundDevice = await self._board.wait(seeking, deadline)
        assert isinstance(found.info, NicInfo)
        return found.info.ifindex

    async def _by_name(self, wish: InterfaceWish, coming: set[str], deadline: Deadline) -> int:
        name = wish.current_name or wish.name

        async def seek() -> int | None:
            link = await links.one_link(self._netlink, _soon(), name=name)
            return link.index if link else await self._again(wish)

        if wish.making is not None or name in coming:
            return await seek() or 0
        return await self._wait(wish, deadline, seek)

    async def _again(self, wish: InterfaceWish) -> int | None:
        """The interface that an earlier request found by this name and renamed as this one
        asks; the one that is made under its new name."""
        if not wish.name or wish.name == wish.current_name:
            return None
        link = await links.one_link(self._netlink, _soon(), name=wish.name)
        if link is None or link.name != wish.name:
            return None
        known = self._records.asked.get(link.index) == wish.current_name
        return link.index if known or wish.making is not None else None

    async def _by_mac(self, mac: str) -> int | None:
        there = await links.all_links(self._netlink, _soon())
        fitting = physical(mac, there)
        if len(fitting) > 1:
            several = ", ".join(link.name for link in fitting)
            raise wrong_state(
                f"several interfaces have the MAC address {mac}: {several}",
                hint="say the PCI path, or the present name",
                mac=mac,
                interfaces=several,
            )
        return fitting[0].index if fitting else None

    async def _wait(
        self, wish: InterfaceWish, deadline: Deadline, seek: Callable[[], Awaitable[int | None]]
    ) -> int:
        with self._board.watch() as watch:
            relooks = iter(self._board.relooks)
            while True:
                watch.reset()
                late = deadline.passed
                if (index := await seek()) is not None:
                    return index
                if late:
                    there = await links.all_links(self._netlink, _soon())
                    raise unknown(wish, there, tuple(watch.seen))
                pause = next(relooks, None)
                news = deadline if pause is None else deadline.earlier(pause)
                if await watch.news(news):
                    relooks = iter(self._board.relooks)


def physical(mac: str, there: Sequence[Link]) -> list[Link]:
    """The links that a MAC address means: those that have it, but what is on top of another.

    Members of a bond all have the bond's; then the one whose own it is counts, and that one
    is found too where it has another one now.
    """
    base = [link for link in there if not _on_top(link)]
    having = [link for link in base if link.mac == mac]
    own = [link for link in base if link.permanent_mac == mac]
    if len(having) == 1:
        return having
    return [link for link in having if link in own] or having or own


def unknown(wish: InterfaceWish, there: Sequence[Link], seen: tuple[str, ...] = ()) -> AgentError:
    """The interface did not come."""
    known = ", ".join(f"{link.name} ({link.mac or 'no MAC address'})" for link in there) or "none"
    events = ", ".join(seen) or "none"
    return not_found(
        f"there is no interface {wish.subject} (waited for it): there are {known}; "
        f"events seen: {events}",
        reason=Reason.UNKNOWN_INTERFACE,
        hint="is it plugged, and has it a driver? Devices.List and the kernel's log tell",
        interface=wish.subject,
        interfaces=known,
        events=events,
    )


def _on_top(link: Link) -> bool:
    return link.kind in _ON_TOP


def _probe(tree: SysfsTree, wish: InterfaceWish) -> Verdict[FoundDevice]:
    """By the MAC that is wished for, by the present name, or the only one there is."""
    assert wish.address is not None
    place = find_place(tree, wish.address)
    if not isinstance(place, Ready):
        return place
    nic = NicDevices()
    if wish.current_name:
        named = replace(place.result, interface=wish.current_name)
        verdict = nic.probe(tree, named, NicExpectation())
        if isinstance(verdict, Ready):
            return verdict
    if wish.mac:
        verdict = nic.probe(tree, place.result, NicExpectation(mac=wish.mac))
        if isinstance(verdict, Ready):
            return verdict
    return nic.probe(tree, place.result, NicExpectation())


def _made(wish: InterfaceWish) -> tuple[str, ...]:
    """The names that the wish brings."""
    if wish.making is None:
        return ()
    return tuple(filter(None, (wish.current_name or wish.name, wish.making.peer_name)))


def _soon() -> Deadline:
    """A look takes its own time: also the last one, after the deadline of the wait."""
    return Deadline.after(_LOOK_SECONDS)


def _until(wish: InterfaceWish, deadline: Deadline) -> Deadline:
    return deadline if wish.timeout is None else deadline.earlier(wish.timeout)

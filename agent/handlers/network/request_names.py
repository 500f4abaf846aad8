"""All names of a request: the one that each shall have, and the alternative ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import Reason, wrong_state
from agent.core.rtnl import links
from agent.handlers.network import naming
from agent.handlers.network.names import is_temporary
from agent.handlers.network.predictable import path_altname, predictable_name
from agent.handlers.network.request import is_by_place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.network import InterfaceWish, Link
    from agent.handlers.network.hands import Hands
    from agent.handlers.network.interface_records import InterfaceRecords
    from agent.handlers.network.request import Request


class RequestNames:
    """Gives the names of one request."""

    def __init__(self, request: Request, *, hands: Hands, records: InterfaceRecords) -> None:
        self._request = request
        self._hands = hands
        self._records = records
        self._former: dict[int, str] = {}

    async def give(self) -> dict[int, str]:
        """Rename; in words which others had to give theirs up, by the index of who got it.

        Raises NAME_IN_USE, KERNEL_REFUSED, NO_SPACE.
        """
        request = self._request
        world, wanted = request.world, request.wanted_names()
        self._former = world.names
        plan = naming.plan(world, wanted, self._own_names(wanted), self._records.spare)
        await naming.give(plan, world, self._hands, self._records)
        takers = {name: index for index, name in wanted.items()}
        return {
            takers.get(world.names[index], 0): words
            for index, words in naming.displaced(world, plan, wanted)
        }

    async def give_alternative(self) -> None:
        """Those that were asked for, and what an interface that is called after its path was
        called before. Raises NAME_IN_USE, KERNEL_REFUSED."""
        for index, wish in self._request:
            for name in wish.altnames:
                await self._asked(index, name)
            for name in self._courtesies(index, wish):
                await self._offered(index, name)

    def note_asked(self) -> None:
        """So that the same request finds an interface again under its new name."""
        self._records.settled()
        for index, wish in self._request:
            called = wish.current_name
            if wish.address is None and called not in ("", self._request.world.names[index]):
                self._records.found(index, called)

    def _own_names(self, wanted: Mapping[int, str]) -> dict[int, list[str]]:
        """What those may be called that have to give a name up, or were left without one."""
        own: dict[int, list[str]] = {}
        taken = set(wanted.values())
        for index, link in self._request.world.links.items():
            if index in wanted or not (link.name in taken or is_temporary(link.name)):
                continue
            own[index] = []
            if is_temporary(link.name) and index in self._records.former:
                own[index].append(self._records.former[index])
            hardware = self._request.hardware(link)
            if hardware.path is not None:
                own[index].append(predictable_name(hardware.path, hardware.port))
        return own

    def _courtesies(self, index: int, wish: InterfaceWish) -> tuple[str, ...]:
        """The kernel's former name and the PCI path."""
        hardware = self._request.hardware(self._request.world.links[index])
        if wish.name or not is_by_place(wish) or hardware.path is None:
            return ()
        former = self._former[index]
        path = path_altname(hardware.path, hardware.port)
        return (path,) if is_temporary(former) else (former, path)

    async def _asked(self, index: int, name: str) -> None:
        link = self._request.world.links[index]
        if name == link.name:
            return
        if name in link.altnames:
            self._records.took(index, name)
            return
        holder = self._request.world.by_name(name)
        if holder is not None:
            await self._take_off(holder, name)
        await self._add(link, name)

    async def _offered(self, index: int, name: str) -> None:
        """Where nobody else has it."""
        if self._request.world.by_name(name) is None:
            await self._add(self._request.world.links[index], name)
            self._records.gave(index, name)

    async def _take_off(self, holder: Link, name: str) -> None:
        if name not in self._records.spare.get(holder.index, ()):
            raise wrong_state(
                f"the name {name} is {holder.name}'s",
                reason=Reason.NAME_IN_USE,
                hint="take it off there, or ask for another name",
                name=name,
                interface=holder.name,
            )
        what = f"take the name {name} off {holder.name}"
        await self._hands.do(links.altname_removed(holder.index, name, what))
        self._records.took(holder.index, name)

    async def _add(self, link: Link, name: str) -> None:
        what = f"give {link.name} the name {name} too"
        await self._hands.do(links.altname_added(link.index, name, what))

"""What a request may change, as it was before, and the way back to it.

Nobody keeps a list of inverse changes: what is there is looked at again, and made what it
was, each change by itself and going on after failures.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, wrong_state
from agent.core.netlink import NetlinkRefusal
from agent.core.rtnl import links, makings
from agent.handlers.network.attempts import attempt
from agent.handlers.network.holding import give_back, held
from agent.handlers.network.listing import World, look
from agent.handlers.network.renaming import assigned, steps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping

    from agent.core.netlink import Change, Netlink
    from agent.core.network import LinkMaking, Queues
    from agent.core.rtnl.ethtool import Ethtool
    from agent.handlers.network.holding import Holding
    from agent.handlers.network.interface_records import InterfaceRecords
    from agent.handlers.network.interface_sysctls import Ipv6Settings, LinkSysctls

UNDO_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The ways to the kernel's network of one namespace."""

    netlink: Netlink
    ethtool: Ethtool
    sysctls: LinkSysctls
    records: InterfaceRecords


@dataclass(slots=True, kw_only=True)
class Memory:
    """How things were before the first change; filled as a request goes on."""

    world: World
    holdings: dict[int, Holding] = field(default_factory=dict)
    making: set[str] = field(default_factory=set)
    """Names under which interfaces are being made."""
    makings: dict[int, LinkMaking] = field(default_factory=dict)
    ipv6: dict[int, Ipv6Settings] = field(default_factory=dict)
    queues: dict[int, Queues] = field(default_factory=dict)
    offloads: dict[int, Mapping[str, bool]] = field(default_factory=dict)
    spare: dict[int, list[str]] = field(default_factory=dict)
    """Of the records."""

    async def hold(self, netlink: Netlink, indexes: Iterable[int], deadline: Deadline) -> None:
        """Read everything that interfaces have, each once; new ones are not held."""
        for index in indexes:
            if index not in self.holdings and index in self.world.links:
                found = await held(netlink, index, deadline)
                known = self.world.links[index]
                # It may have a temporary name already.
                link = replace(found.link, name=known.name, altnames=known.altnames)
                self.holdings[index] = replace(found, link=link)

    async def restore(self, ways: Ways) -> None:
        """Make everything what it was. Raises KERNEL_REFUSED with what could not be."""
        way_back = _WayBack(self, ways)
        await way_back.run()
        if way_back.failures:
            raise wrong_state("; ".join(way_back.failures), reason=Reason.KERNEL_REFUSED)


class _WayBack:
    """One restoration."""

    def __init__(self, memory: Memory, ways: Ways) -> None:
        self._memory = memory
        self._ways = ways
        self._deadline = Deadline.after(UNDO_SECONDS)
        self.failures: list[str] = []

    async def run(self) -> None:
        """Each by itself: the run directory that is full (names are noted there) keeps nobody
        from the addresses that they had."""
        for part in (self._unmake, self._names, self._parameters, self._settings):
            await self._try(part())

    async def _unmake(self) -> None:
        """What was not there before and was being made; a veth takes its other end along."""
        memory = self._memory
        there = await look(self._ways.netlink, self._deadline)
        made = [
            link
            for link in there.links.values()
            if link.index not in memory.world.links and link.name in memory.making
        ]
        for link in made:
            if await links.one_link(self._ways.netlink, self._deadline, index=link.index):
                await self._attempt(links.removed(link.index, f"remove {link.name}"), link.index)

    async def _names(self) -> None:
        before = self._memory.world.links
        now = (await look(self._ways.netlink, self._deadline)).links
        for index, link in now.items():
            known = before[index].altnames if index in before else link.altnames
            for name in link.altnames:
                if name not in known:
                    what = f"take the name {name} off {link.name}"
                    await self._attempt(links.altname_removed(index, name, what), index)
        names = {index: link.name for index, link in now.items()}
        former = {index: before[index].name for index in names if index in before}
        # One that came meanwhile may have a name that was free for a moment.
        taken = {name for link in now.values() for name in link.altnames}
        for index, name in steps(names, assigned(names, former, {}, taken)):
            await self._attempt(links.changed(index, f"rename to {name}", name=name), index)
        for index, link in now.items():
            missing = [] if index not in before else before[index].altnames
            for name in missing:
                if name not in link.altnames:
                    what = f"give {before[index].name} the name {name} too"
                    await self._attempt(links.altname_added(index, name, what), index)
        self._ways.records.take_back(self._memory.spare)

    async def _parameters(self) -> None:
        memory, ways = self._memory, self._ways
        for index, making in memory.makings.items():
            now = await makings.making_of(ways.netlink, index, self._deadline)
            if now is not None and now != making:
                what = f"make {memory.world.names[index]} as it was"
                await self._attempt(makings.remade(index, making, what, now=now), index)
        for index, ipv6 in memory.ipv6.items():
            await self._try(ways.sysctls.write(memory.world.names[index], ipv6))
        for index, queues in memory.queues.items():
            what = f"give {memory.world.names[index]} its queues back"
            await self._try(ways.ethtool.set_channels(index, queues, what, self._deadline))
        for index, offloads in memory.offloads.items():
            what = f"give {memory.world.names[index]} its offloads back"
            await self._try(ways.ethtool.set_features(index, offloads, what, self._deadline))

    async def _settings(self) -> None:
        """Twice: what one gets back may change another (a bridge's address is a member's)."""
        left: list[str] = []
        for _ in range(2):
            left = []
            for holding in self._memory.holdings.values():
                left += await give_back(self._ways.netlink, holding, self._deadline)
        self.failures += left

    async def _attempt(self, change: Change, index: int) -> None:
        if index not in self._memory.holdings:
            # It may go down for its name, and come up again at the end.
            await self._try(self._memory.hold(self._ways.netlink, [index], self._deadline))
        problem = await attempt(self._ways.netlink, change, index, self._deadline)
        if problem:
            self.failures.append(problem)

    async def _try(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (AgentError, NetlinkRefusal) as error:
            self.failures.append(str(error))

"""What changes in the sandbox's network, whoever does it, as events.

Notices of the kernel are compared with what is known: a message whose difference nobody
sees (counters, router states) is no event. Links and addresses are known in full, and
looked at again when notices were lost; routes may be a hundred thousand and are not kept,
so of them a loss is told as such.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.core.network import Address, Link, Route, RouteType, protocol_word, scope_word
from agent.core.network import Protocol as RouteProtocol
from agent.core.rtnl import addresses, links
from agent.core.rtnl.monitor import Lost, Notice
from agent.handlers.network.bursts import Burst

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from agent.core.netlink import Netlink
    from agent.handlers.network.bursts import Held, Timers

    There: TypeAlias = tuple[tuple[Link, ...], tuple[Address, ...]]
    Look: TypeAlias = Callable[[Deadline], Awaitable[There]]
    Key: TypeAlias = tuple[int, str]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0

_OTHERS = frozenset(
    {
        RouteType.UNICAST,
        RouteType.BLACKHOLE,
        RouteType.UNREACHABLE,
        RouteType.PROHIBIT,
        RouteType.THROW,
    }
)
"""The types that somebody sets; the rest the kernel makes with each address."""


class Notices(Protocol):
    """agent.core.rtnl.monitor.Monitor"""

    def notices(self) -> AsyncIterator[Notice | Lost]: ...


class Events(Protocol):
    """agent.core.events.EventLog"""

    def publish(
        self, kind: str, subject: str, details: Mapping[str, str] | None = None
    ) -> object: ...


async def look(netlink: Netlink, deadline: Deadline) -> There:
    """All links and addresses; raises NetlinkRefusal, OPERATION_TIMED_OUT."""
    there = await links.all_links(netlink, deadline)
    return there, await addresses.all_addresses(netlink, deadline)


class NetworkWatcher:
    """Publishes until `run` is cancelled. `ready` is set once what is there is known:
    what changes from then on is told."""

    def __init__(
        self,
        monitor: Notices,
        look: Look,
        events: Events,
        *,
        on_link: Callable[[], None] = lambda: None,
        timers: Timers | None = None,
    ) -> None:
        """`monitor` must know the ports of our own netlink sockets: their routes are no news.

        `look` is `partial(watching.look, netlink)`; `on_link` is called when an interface
        came, went, or is in any way not what it was.
        """
        self._monitor = monitor
        self._look_at = look
        self._events = events
        self._on_link = on_link
        self._links: dict[int, Link] = {}
        self._addresses: dict[Key, Address] = {}
        self._moves: dict[int, str] = {}
        self._routes = Burst(self._many_routes, timers=timers)
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """For ever; raises OSError when the monitor's socket does."""
        # The monitor listens already, so nothing falls between this look and its notices.
        try:
            await self._look()
        finally:
            self.ready.set()
        try:
            async for notice in self._monitor.notices():
                await self._take(notice)
        finally:
            self._routes.close()

    @contextlib.contextmanager
    def moving(self, index: int, container_id: str) -> Iterator[None]:
        """While the block runs an interface goes into a container's namespace: when it is
        gone here, that is told. It stays where it is when the block raises."""
        self._moves[index] = container_id
        try:
            yield
        except BaseException:
            self._moves.pop(index, None)
            raise

    async def _take(self, notice: Notice | Lost) -> None:
        match notice:
            case Lost():
                self._routes.lost()
                await self._look_again()
            case Notice(kind="new", subject=Link() as link):
                self._link_there(link)
            case Notice(subject=Link() as link):
                self._link_gone(link.index)
            case Notice(kind="new", subject=Address() as address):
                self._address_there(address)
            case Notice(subject=Address() as address):
                self._address_gone(_key(address))
            case Notice(subject=Route() as route):
                self._route(notice, route)

    async def _look(self) -> None:
        there, owned = await self._listed() or ((), ())
        self._links = {link.index: link for link in there}
        self._addresses = {_key(address): address for address in owned}

    async def _look_again(self) -> None:
        listed = await self._listed()
        if listed is None:
            return
        there, owned = listed
        keys = {_key(address) for address in owned}
        for key in [key for key in self._addresses if key not in keys]:
            self._address_gone(key)
        indexes = {link.index for link in there}
        for index in [index for index in self._links if index not in indexes]:
            self._link_gone(index)
        for link in there:
            self._link_there(link)
        for address in owned:
            self._address_there(address)

    async def _listed(self) -> There | None:
        """None when that failed: what is known stays, and notices go on."""
        try:
            return await self._look_at(Deadline.after(LOOK_SECONDS))
        except (AgentError, OSError) as error:
            log.warning("events of the network may be missing, a look at it failed: %s", error)
            return None

    def _link_there(self, link: Link) -> None:
        known = self._links.get(link.index)
        self._links[link.index] = link
        if known is None:
            self._publish_link("appeared", link)
        elif known.name != link.name:
            self._publish_link("renamed", link, former_name=known.name)
        elif _visible(known) != _visible(link):
            self._publish_link("changed", link)
        if known != link:
            self._on_link()

    def _link_gone(self, index: int) -> None:
        # The kernel tells of the addresses first; those here are of lost notices.
        for key in [key for key in self._addresses if key[0] == index]:
            self._address_gone(key)
        known = self._links.pop(index, None)
        container_id = self._moves.pop(index, "")
        if known is None:
            return
        if container_id:
            self._publish_link("moved", known, container_id=container_id)
        else:
            self._publish_link("gone", known)
        self._on_link()

    def _publish_link(self, change: str, link: Link, **more: str) -> None:
        details = {
            "change": change,
            "ifindex": str(link.index),
            "up": _word(yes=link.up),
            "carrier": _word(yes=link.carrier),
            "mtu": str(link.mtu),
            "mac": link.mac,
            "master": self._name(link.master),
        }
        self._events.publish("interface_changed", link.name, details | more)

    def _address_there(self, address: Address) -> None:
        key = _key(address)
        known = key in self._addresses
        self._addresses[key] = address
        if not known:
            self._publish_address("added", address)

    def _address_gone(self, key: Key) -> None:
        known = self._addresses.pop(key, None)
        if known is not None:
            self._publish_address("removed", known)

    def _publish_address(self, change: str, address: Address) -> None:
        details = {
            "change": change,
            "address": str(address.interface),
            "scope": scope_word(address.scope),
        }
        self._events.publish("address_changed", self._name(address.index), details)

    def _route(self, notice: Notice, route: Route) -> None:
        kernels = route.protocol == RouteProtocol.KERNEL or route.type not in _OTHERS
        if notice.own or kernels or not self._routes.admits():
            return
        added = "replaced" if notice.replaced else "added"
        gateways = [str(hop.gateway) for hop in route.hops if hop.gateway is not None]
        details = {
            "change": added if notice.kind == "new" else "removed",
            "family": route.family.word,
            "table": str(route.table),
            "destination": str(route.destination) if route.destination.prefixlen else "default",
            "gateway": " ".join(gateways),
            "metric": str(route.metric),
            "protocol": protocol_word(route.protocol),
        }
        devices = {self._name(hop.index) for hop in route.hops}
        subject = devices.pop() if len(devices) == 1 else ""
        self._events.publish("route_changed", subject, details)

    def _many_routes(self, held: Held) -> None:
        details = {"change": "many", "count": str(held.count)}
        lost = {"lost": "yes"} if held.lost else {}
        self._events.publish("route_changed", "", details | lost)

    def _name(self, index: int) -> str:
        link = self._links.get(index)
        return link.name if link is not None else f"if{index}" if index else ""


def _visible(link: Link) -> tuple[object, ...]:
    return link.up, link.carrier, link.mtu, link.mac, link.master


def _key(address: Address) -> Key:
    """What the kernel tells addresses of one interface apart by, or finer."""
    return address.index, f"{address.interface} {address.peer or ''}"


def _word(*, yes: bool) -> str:
    return "yes" if yes else "no"

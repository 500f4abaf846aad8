"""The interfaces of one request: its wishes, what they mean, and what is there now.

Names in a request mean what has them when it is done: first those of its wishes, then what
is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import Reason, invalid, not_found
from agent.core.pci import Bdf, PciPath
from agent.handlers.network.finding import unknown
from agent.handlers.network.listing import hardware_of, look
from agent.handlers.network.planning import is_on_top
from agent.handlers.network.predictable import predictable_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import InterfaceWish, Link
    from agent.core.tree import SysfsTree
    from agent.handlers.network.finding import Found
    from agent.handlers.network.listing import Hardware, World


class Request:
    """`indexes` are those of `wishes`, 0 for what is not there so far; `world` is the last
    look; `aliases` are the names of what was made, and those that they have until named."""

    def __init__(self, found: Sequence[Found], *, tree: SysfsTree, world: World) -> None:
        self.wishes = [each.wish for each in found]
        self.indexes = [each.index for each in found]
        self.world = world
        self.aliases: dict[str, str] = {}
        self._tree = tree
        self._known: dict[int, Hardware] = {}

    def __iter__(self) -> Iterator[tuple[int, InterfaceWish]]:
        return iter(list(zip(self.indexes, self.wishes, strict=True)))

    async def look(self, netlink: Netlink, deadline: Deadline) -> None:
        """See what is there now."""
        self.world = await look(netlink, deadline)

    def wish_of(self, index: int) -> InterfaceWish:
        return self.wishes[self.indexes.index(index)]

    def hardware(self, link: Link) -> Hardware:
        """Once each: sysfs goes by the name, which is about to change."""
        if link.index not in self._known:
            self._known[link.index] = hardware_of(self._tree, link)
        return self._known[link.index]

    def check_there(self) -> None:
        """Raises UNKNOWN_INTERFACE for one that has gone since it was found; one that is to
        be made may be there by now."""
        for place, (index, wish) in enumerate(self):
            if index and index not in self.world.links:
                raise unknown(wish, list(self.world.links.values()))
            if not index and wish.making is not None:
                link = self.world.by_name(wish.current_name) or self.world.by_name(wish.name)
                self.indexes[place] = link.index if link else 0

    def check_once(self) -> None:
        """Raises BAD_FIELD where two wishes mean one interface, or give one name to two."""
        for index, wish in self:
            if self.indexes.count(index) > 1:
                raise invalid(
                    f"{wish.subject}: another wish of this request means the same interface, "
                    f"{self.world.links[index].name}",
                    field="interfaces",
                )
        names = list(self.wanted_names().values())
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise invalid(f"two interfaces shall have the name {twice}", field="name", name=twice)

    def wanted_names(self) -> dict[int, str]:
        """The names that the request gives, by index, of what is there so far."""
        wanted: dict[int, str] = {}
        for name, alias in self.aliases.items():
            if (link := self.world.by_name(alias)) is not None:
                wanted[link.index] = name
        for index, wish in self:
            if index and (name := self._name_of(index, wish)):
                wanted[index] = name
        return wanted

    def resolved(self, name: str, wish: InterfaceWish) -> int:
        """The interface that has this name after the request. Raises UNKNOWN_INTERFACE."""
        for index, wanted in self.wanted_names().items():
            if wanted == name:
                return index
        link = self.world.by_name(self.aliases.get(name, name))
        if link is None:
            raise not_found(
                f"{wish.subject}: there is no interface {name}",
                reason=Reason.UNKNOWN_INTERFACE,
                hint="interfaces below others, and masters, have to be there or in the request",
                interface=name,
            )
        return link.index

    def master(self, wish: InterfaceWish) -> int | None:
        """The master's index; 0: none, None: unchanged."""
        if wish.master is None:
            return None
        return self.resolved(wish.master, wish) if wish.master else 0

    def order(self) -> dict[int, Sequence[int]]:
        """What has to be right before each: what it is on top of, its masters of now and then."""
        return {
            index: (*before(self.world.links[index]), self.master(wish) or 0)
            for index, wish in self
        }

    def _name_of(self, index: int, wish: InterfaceWish) -> str:
        if wish.name:
            return wish.name
        if not is_by_place(wish):
            return ""
        hardware = self.hardware(self.world.links[index])
        return predictable_name(hardware.path, hardware.port) if hardware.path else ""


def is_by_place(wish: InterfaceWish) -> bool:
    """Whether it is found by its PCI address."""
    return isinstance(wish.address, (PciPath, Bdf))


def before(link: Link) -> tuple[int, int]:
    """What a link is on top of, and what it is a member of."""
    return (link.parent if is_on_top(link) else 0, link.master)

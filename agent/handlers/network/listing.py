"""Interfaces as they are now: what netlink tells, and of hardware what sysfs tells.

sysfs shows the interfaces of the network namespace that it was mounted in, and by their
names: what it says counts only where index and address are the link's too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.core.netlink import NetlinkRefusal
from agent.core.network import InterfaceState
from agent.core.places import function_of
from agent.core.rtnl import addresses, links
from agent.handlers.network.planning import is_on_top
from agent.handlers.network.predictable import Port

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import Address, Link, Queues
    from agent.core.pci import PciPath
    from agent.core.rtnl.ethtool import Ethtool
    from agent.core.tree import SysfsTree

_NO_ADDRESS = "00:00:00:00:00:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All links, by index, and their addresses, at one moment."""

    links: Mapping[int, Link]
    addresses: tuple[Address, ...] = ()

    def addresses_of(self, index: int) -> tuple[Address, ...]:
        return tuple(each for each in self.addresses if each.index == index)

    def by_name(self, name: str) -> Link | None:
        """By name, else by alternative name."""
        for link in self.links.values():
            if link.name == name:
                return link
        return next((link for link in self.links.values() if name in link.altnames), None)

    @property
    def names(self) -> dict[int, str]:
        return {index: link.name for index, link in self.links.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What sysfs tells of an interface; of a virtual one nothing."""

    path: PciPath | None = None
    bdf: str = ""
    driver: str = ""
    port: Port = field(default_factory=Port)


async def look(netlink: Netlink, deadline: Deadline) -> World:
    """What is there now. Raises NetlinkRefusal, OPERATION_TIMED_OUT."""
    found = await links.all_links(netlink, deadline)
    owned = await addresses.all_addresses(netlink, deadline)
    return World(links={link.index: link for link in found}, addresses=owned)


def hardware_of(tree: SysfsTree, link: Link) -> Hardware:
    """The device behind a link."""
    directory = tree.roots.sys / "class/net" / link.name
    if "/" in link.name or tree.text(directory / "ifindex") != str(link.index):
        return Hardware()
    if (tree.text(directory / "address") or _NO_ADDRESS) != (link.mac or _NO_ADDRESS):
        return Hardware()
    device = tree.real(directory / "device")
    if device is None:
        return Hardware()
    function = function_of(tree, device)
    number = tree.text(directory / "dev_port") or "0"
    return Hardware(
        path=function.path if function else None,
        bdf=str(function.bdf) if function else "",
        driver=tree.link_name(device / "driver") or "",
        port=Port(
            number=int(number) if number.isdecimal() else 0,
            # Drivers without one refuse the read.
            name=tree.text(directory / "phys_port_name") or "",
        ),
    )


def state_of(world: World, link: Link, hardware: Hardware) -> InterfaceState:
    """Without queues, offloads and changes."""
    names = world.names
    return InterfaceState(
        link=link,
        addresses=world.addresses_of(link.index),
        master=names.get(link.master, ""),
        parent=names.get(link.parent, "") if is_on_top(link) else "",
        driver=hardware.driver,
        pci_path=str(hardware.path) if hardware.path else "",
        pci_bdf=hardware.bdf,
    )


async def queues_of(ethtool: Ethtool, index: int, deadline: Deadline) -> Queues | None:
    """None where the driver does not tell, or the interface has gone."""
    try:
        channels = await ethtool.channels(index, deadline)
    except NetlinkRefusal:
        return None
    return None if channels is None else channels.now

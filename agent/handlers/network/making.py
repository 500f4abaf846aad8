"""Virtual interfaces: made where they are not there, and told when they are others.

One whose name another interface still has is made under a temporary name; it gets its own
with all other names of the request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, wrong_state
from agent.core.network import LinkKind
from agent.core.rtnl import links, makings
from agent.handlers.network.names import unborn_name

if TYPE_CHECKING:
    from agent.core.network import Link, LinkMaking
    from agent.handlers.network.hands import Hands
    from agent.handlers.network.listing import World
    from agent.handlers.network.memory import Memory

_DEFAULT_MIIMON = 100


def complete(making: LinkMaking) -> LinkMaking:
    """With the defaults that the protocol promises."""
    if making.kind is not LinkKind.BOND:
        return making
    return replace(
        making, mode=making.mode or makings.BOND_MODES[0], miimon=making.miimon or _DEFAULT_MIIMON
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes the virtual interfaces of one request."""

    world: World
    hands: Hands
    memory: Memory

    async def make(self, name: str, making: LinkMaking, *, parent: int) -> dict[str, str]:
        """Make it; returns under which name it, and its other end, are now: a temporary one
        where another still has its name. Raises KERNEL_REFUSED."""
        free = _free(name, 0, self.world)
        peer = _free(making.peer_name, 1, self.world) if making.peer_name else ""
        await self.hands.begin()
        names = {name, free, making.peer_name, peer} - {""}
        self.memory.making |= names
        made = replace(complete(making), peer_name=peer)
        change = links.created(free, made, f"make the {making.kind} {name}", parent=parent)
        try:
            await self.hands.do(change)
        except AgentError as error:
            if error.fields.get("errno") == "EEXIST":
                # Somebody else made one of that name meanwhile: it is not ours to remove.
                self.memory.making -= names
            raise
        return {name: free, making.peer_name: peer} if peer else {name: free}

    async def adjust(self, link: Link, making: LinkMaking, *, parent: int) -> LinkMaking:
        """Give one that is there its parameters; returns how it was made. Raises WRONG_STATE
        for another kind, and for parameters that can't be changed."""
        now = await makings.making_of(self.hands.netlink, link.index, self.hands.deadline)
        if now is None or now.kind is not making.kind:
            raise _other(link, f"of kind {link.kind or 'hardware'}, not {making.kind}")
        _check_ends(link, making, parent, self.world)
        wanted = _wanted(now, complete(making))
        if wanted != now:
            if making.kind in (LinkKind.VLAN, LinkKind.VRF):
                raise _other(link, f"made otherwise: {_words(now)}, not {_words(wanted)}")
            await self.hands.begin()
            self.memory.makings[link.index] = now
            what = f"make {link.name} otherwise"
            await self.hands.do_to(link, makings.remade(link.index, wanted, what, now=now))
        return now


def _wanted(now: LinkMaking, making: LinkMaking) -> LinkMaking:
    """Only the members that the kind has; a forward delay of 0 means as it is."""
    delay = making.forward_delay_millis or now.forward_delay_millis
    return replace(making, parent="", peer_name="", forward_delay_millis=delay)


def _check_ends(link: Link, making: LinkMaking, parent: int, world: World) -> None:
    if making.kind is LinkKind.VLAN and link.parent != parent:
        below = world.names.get(link.parent, "another namespace's interface")
        raise _other(link, f"a VLAN on {below}, not on {making.parent}")
    if making.kind is LinkKind.VETH and link.parent in world.links:
        other = world.links[link.parent]
        if making.peer_name not in (other.name, *other.altnames):
            raise _other(link, f"the other end of {other.name}, not of {making.peer_name}")


def _free(name: str, number: int, world: World) -> str:
    """The name, or a temporary one where it is another's now."""
    if world.by_name(name) is None:
        return name
    taken = set(world.names.values())
    while (temporary := unborn_name(number)) in taken:
        number += 2
    return temporary


def _words(making: LinkMaking) -> str:
    if making.kind is LinkKind.VRF:
        return f"table {making.table}"
    return f"id {making.vlan_id}" + (" with a service tag" if making.service_tag else "")


def _other(link: Link, what: str) -> AgentError:
    return wrong_state(
        f"interface {link.name} is there and is {what}",
        hint="remove it first (RemoveInterface), or ask for another name",
        interface=link.name,
        kind=link.kind or "hardware",
    )

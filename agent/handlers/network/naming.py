"""The names of a request, given as one: by changes that the kernel takes in their order.

Names and alternative names share one space (netdev_name_in_use in net/core/dev.c), so an
alternative one in the way is taken off first: where it was given by the agent itself, or is
the interface's own, which then has its former name as the alternative one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Reason, wrong_state
from agent.core.rtnl import links
from agent.handlers.network.names import is_temporary
from agent.handlers.network.renaming import assigned, steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.handlers.network.hands import Hands
    from agent.handlers.network.interface_records import InterfaceRecords
    from agent.handlers.network.listing import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Names by index: all of them, afterwards; and alternative ones that go, and that come
    in the place of the names that went."""

    final: Mapping[int, str]
    off: tuple[tuple[int, str], ...] = ()
    swapped: tuple[tuple[int, str], ...] = ()


def plan(
    world: World,
    wanted: Mapping[int, str],
    own: Mapping[int, Sequence[str]],
    spare: Mapping[int, list[str]],
) -> Naming:
    """Who gets which name when those in `wanted` are given.

    `own`: the names that displaced ones may have; `spare`: alternative names that the agent
    gave by itself. Raises NAME_IN_USE for a name that another has for an alternative one.
    """
    altnames = {name: index for index, link in world.links.items() for name in link.altnames}
    off, swapped = [], []
    for index, name in wanted.items():
        holder = altnames.get(name)
        if holder is None:
            continue
        if holder != index and name not in spare.get(holder, ()):
            raise _in_use(name, world.links[holder].name)
        off.append((holder, name))
        if holder == index and not is_temporary(world.links[index].name):
            swapped.append((index, world.links[index].name))
    left = altnames.keys() - {name for _, name in off}
    final = assigned(world.names, wanted, own, left)
    held = set(final.values())
    return Naming(
        final=final,
        off=tuple(off),
        swapped=tuple(each for each in swapped if each[1] not in held),
    )


async def give(naming: Naming, world: World, hands: Hands, records: InterfaceRecords) -> None:
    """Rename all; what goes down for it is left so. Raises KERNEL_REFUSED, NO_SPACE."""
    moves = steps(world.names, naming.final)
    if not (moves or naming.off):
        return
    await hands.begin()
    records.renaming({index: world.links[index].name for index, _ in moves})
    for index, name in naming.off:
        what = f"take the name {name} off {world.links[index].name}"
        await hands.do(links.altname_removed(index, name, what))
        records.took(index, name)
    current = world.names
    for index, name in moves:
        change = links.changed(index, f"rename {current[index]} to {name}", name=name)
        current[index] = name
        await hands.do_to(world.links[index], change)
    for index, name in naming.swapped:
        what = f"give {naming.final[index]} the name {name} too"
        await hands.do(links.altname_added(index, name, what))
        records.gave(index, name)


def displaced(world: World, naming: Naming, wanted: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """Others that got another name: by their index, in words."""
    for index, name in naming.final.items():
        old = world.links[index].name
        if index not in wanted and name != old:
            yield index, f"name of another interface: {old} -> {name}"


def _in_use(name: str, holder: str) -> AgentError:
    return wrong_state(
        f"{name} is an alternative name of {holder}, which it was given by request",
        reason=Reason.NAME_IN_USE,
        hint="take it off there, or ask for another name",
        name=name,
        interface=holder,
    )

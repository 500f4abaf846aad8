"""Neighbours: checked, which of them shall be there, and the changes that lead there.

What the kernel learns moves on by itself (reachable, stale, delay, probe), so those states
are one here: "learnt". An entry that it has given up (failed, incomplete) is none.
"""

from __future__ import annotations

import dataclasses
import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.core.errors import invalid, wrong_state
from agent.core.network import LinkFlag, Neighbor, NeighborFlag, NeighborState
from agent.core.rtnl import neighbors as rtnl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.core.netlink import Change
    from agent.core.network import IpAddress, NeighborWish
    from agent.handlers.network.linknames import LinkNames

NeighborKey: TypeAlias = "tuple[int, IpAddress, bool]"
"""Interface, address, whether it is a proxy entry: the kernel keeps those apart."""

NeighborTarget: TypeAlias = "Mapping[NeighborKey, Neighbor | None]"
"""What shall be there under each key that a request is about; None: nothing."""

STATES: Final = frozenset(
    {
        NeighborState.PERMANENT,
        NeighborState.NOARP,
        NeighborState.REACHABLE,
        NeighborState.STALE,
    }
)
LEARNT: Final = (
    NeighborState.REACHABLE | NeighborState.STALE | NeighborState.DELAY | NeighborState.PROBE
)

_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){0,31}")
_ZEROS: Final = re.compile(r"00(:00)*")
_GONE: Final = frozenset({errno.ENOENT})
_KEYLESS: Final = LinkFlag.LOOPBACK | LinkFlag.POINTOPOINT


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborWant:
    """A wanted entry with its interface's number."""

    neighbor: Neighbor
    absent: bool

    @property
    def key(self) -> NeighborKey:
        return neighbor_key(self.neighbor)


def neighbor_key(neighbor: Neighbor) -> NeighborKey:
    return (neighbor.index, neighbor.address, NeighborFlag.PROXY in neighbor.flags)


def neighbor_text(neighbor: Neighbor, names: LinkNames) -> str:
    """`192.0.2.1 dev eth0 lladdr 02:00:00:00:00:01 permanent`."""
    words = [str(neighbor.address), f"dev {names.name(neighbor.index)}"]
    if NeighborFlag.PROXY in neighbor.flags:
        return " ".join((*words, "proxy"))
    words += [f"lladdr {neighbor.mac}"] if neighbor.mac else []
    return " ".join((*words, state_word(neighbor.state)))


def state_word(state: NeighborState) -> str:
    return (state.name or "none").lower()


# --- checks -----------------------------------------------------------------------------


def neighbor_wants(
    wishes: Sequence[NeighborWish], names: LinkNames
) -> dict[NeighborKey, NeighborWant]:
    """Raises BAD_FIELD, NOT_FOUND UNKNOWN_INTERFACE, WRONG_STATE."""
    found: dict[NeighborKey, NeighborWant] = {}
    places: dict[NeighborKey, int] = {}
    for place, wish in enumerate(wishes):
        _check(wish, f"neighbors[{place}]")
        want = _want(wish, names)
        former = places.setdefault(want.key, place)
        if former != place:
            raise invalid(
                f"neighbors[{former}] and neighbors[{place}] are both {wish.address} on "
                f"{names.name(want.neighbor.index)}",
                field=f"neighbors[{place}]",
            )
        found[want.key] = want
    return found


def _check(wish: NeighborWish, where: str) -> None:
    if wish.address.is_unspecified:
        raise invalid(f"{wish.address} is nobody's address", field=f"{where}.address")
    if wish.absent or wish.proxy:
        return
    if not _MAC.fullmatch(wish.mac.lower()) or _ZEROS.fullmatch(wish.mac):
        raise invalid(
            f"neighbour {wish.address}: {wish.mac!r} is no MAC address", field=f"{where}.mac"
        )
    if wish.state not in STATES:
        raise invalid(
            f"neighbour {wish.address}: no entry can be made {state_word(wish.state)}",
            field=f"{where}.state",
            hint="permanent, noarp, reachable or stale",
        )


def _want(wish: NeighborWish, names: LinkNames) -> NeighborWant:
    index = names.index(wish.device, of=f"neighbour {wish.address}")
    if wish.address.version == 4 and names.links[index].flags & _KEYLESS and not wish.proxy:
        raise wrong_state(
            f"neighbour {wish.address}: {wish.device} is a loopback or point-to-point "
            "interface, which has no IPv4 neighbours",
            interface=wish.device,
        )
    neighbor = Neighbor(
        index=index,
        address=wish.address,
        mac="" if wish.proxy else wish.mac.lower(),
        state=NeighborState.NONE if wish.proxy else wish.state,
        flags=NeighborFlag.PROXY if wish.proxy else NeighborFlag.NONE,
    )
    return NeighborWant(neighbor=neighbor, absent=wish.absent)


# --- planning ---------------------------------------------------------------------------


def neighbor_target(
    now: Iterable[Neighbor], wants: Mapping[NeighborKey, NeighborWant], exact: frozenset[int]
) -> dict[NeighborKey, Neighbor | None]:
    """The wanted ones, and nothing for permanent ones on the `exact` interfaces that are
    not wanted."""
    found: dict[NeighborKey, Neighbor | None] = {
        key: None if want.absent else want.neighbor for key, want in wants.items()
    }
    for neighbor in now:
        if neighbor.index in exact and neighbor.state == NeighborState.PERMANENT:
            found.setdefault(neighbor_key(neighbor), None)
    return found


def neighbors_as_they_were(
    before: Iterable[Neighbor], target: NeighborTarget
) -> dict[NeighborKey, Neighbor | None]:
    """The way back: what was under the keys of a target."""
    there = _living(before)
    return {key: there.get(key) for key in target}


def neighbor_plan(
    now: Iterable[Neighbor], target: NeighborTarget, names: LinkNames
) -> Iterator[Change]:
    """From `now` to `target`."""
    there = _living(now)
    for key, shall in target.items():
        has = there.get(key)
        if shall is None and has is not None:
            what = f"remove neighbour {neighbor_text(has, names)}"
            yield dataclasses.replace(rtnl.removed(has, what), fine=_GONE)
        elif shall is not None and not _same(has, shall):
            what = f"set neighbour {neighbor_text(shall, names)}"
            yield rtnl.replaced(_settable(shall), what)


def neighbor_lines(
    before: Iterable[Neighbor], after: Iterable[Neighbor], target: NeighborTarget, names: LinkNames
) -> Iterator[str]:
    """`+192.0.2.1 dev eth0 lladdr 02:00:00:00:00:01 permanent`, for the keys of a target."""
    had, has = _living(before), _living(after)
    for key in target:
        old, new = had.get(key), has.get(key)
        if _same(old, new):
            continue
        if old is not None:
            yield f"neighbour -{neighbor_text(old, names)}"
        if new is not None:
            yield f"neighbour +{neighbor_text(new, names)}"


def _living(neighbors: Iterable[Neighbor]) -> dict[NeighborKey, Neighbor]:
    return {neighbor_key(each): each for each in neighbors if _is_living(each)}


def _is_living(neighbor: Neighbor) -> bool:
    lasting = NeighborState.PERMANENT | NeighborState.NOARP | LEARNT
    return NeighborFlag.PROXY in neighbor.flags or bool(neighbor.state & lasting)


def _same(one: Neighbor | None, other: Neighbor | None) -> bool:
    if one is None or other is None:
        return one is other
    if NeighborFlag.PROXY in one.flags:
        return True
    return (one.mac, _sort(one.state)) == (other.mac, _sort(other.state))


def _sort(state: NeighborState) -> NeighborState:
    return LEARNT if state & LEARNT else state


def _settable(neighbor: Neighbor) -> Neighbor:
    """The kernel gets to delay and probe by itself alone."""
    if neighbor.state & (NeighborState.DELAY | NeighborState.PROBE):
        return dataclasses.replace(neighbor, state=NeighborState.STALE)
    return neighbor

"""Forwarding entries of bridges and VXLANs: checked, what shall be there, and the changes.

Facts: net/bridge/br_fdb.c, drivers/net/vxlan/vxlan_core.c, ndo_dflt_fdb_add in
net/core/rtnetlink.c. A bridge's own entry is local ("permanent"), static or learnt. A
VXLAN has for each MAC address one destination, which is replaced, but for multicast and
the address of zeros any number, which are added.
"""

from __future__ import annotations

import dataclasses
import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.core.errors import invalid, wrong_state
from agent.core.netlink import NLM_F_APPEND, NLM_F_CREATE
from agent.core.network import Forwarding, NeighborFlag, NeighborState
from agent.core.rtnl import neighbors as rtnl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.core.netlink import Change
    from agent.core.network import ForwardingWish, IpAddress
    from agent.handlers.network.linknames import LinkNames

ForwardingKey: TypeAlias = "tuple[int, str, int, bool, IpAddress | None]"
"""Interface, MAC address, VLAN, whether it is the bridge's; the destination where there
may be several."""

ForwardingTarget: TypeAlias = "Mapping[ForwardingKey, Forwarding | None]"

_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_ZERO: Final = "00:00:00:00:00:00"
_STATES: Final = {
    NeighborState.PERMANENT: "permanent",
    NeighborState.NOARP: "static",
    NeighborState.REACHABLE: "dynamic",
}
_GONE: Final = frozenset({errno.ENOENT})
_VLAN_MAX: Final = 4094


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingWant:
    """A wanted entry with its interface's number; absent and without a destination it
    means all destinations."""

    entry: Forwarding
    absent: bool

    def means(self, other: Forwarding) -> bool:
        one = self.entry
        anywhere = self.absent and one.destination is None
        return forwarding_key(one)[:4] == forwarding_key(other)[:4] and (
            anywhere or forwarding_key(one) == forwarding_key(other)
        )


def forwarding_key(entry: Forwarding) -> ForwardingKey:
    several = entry.destination if _has_several(entry.mac) else None
    of_master = NeighborFlag.MASTER in entry.flags
    return (entry.index, entry.mac, entry.vlan_id, of_master, several)


def forwarding_text(entry: Forwarding, names: LinkNames) -> str:
    """`02:00:00:00:00:01 dev p0 vlan 10 master static`."""
    words = [entry.mac, f"dev {names.name(entry.index)}"]
    words += [f"vlan {entry.vlan_id}"] if entry.vlan_id else []
    words += [f"dst {entry.destination}"] if entry.destination is not None else []
    words.append("master" if NeighborFlag.MASTER in entry.flags else "self")
    return " ".join((*words, _STATES[_sort(entry.state)]))


def _has_several(mac: str) -> bool:
    return mac == _ZERO or bool(int(mac[:2], 16) & 1)


# --- checks -----------------------------------------------------------------------------


def forwarding_wants(
    wishes: Sequence[ForwardingWish], names: LinkNames
) -> tuple[ForwardingWant, ...]:
    """Raises BAD_FIELD, NOT_FOUND UNKNOWN_INTERFACE, WRONG_STATE."""
    found: list[ForwardingWant] = []
    places: dict[ForwardingKey, int] = {}
    for place, wish in enumerate(wishes):
        _check(wish, f"forwarding[{place}]")
        want = _want(wish, names)
        former = places.setdefault(forwarding_key(want.entry), place)
        if former != place:
            raise invalid(
                f"forwarding[{former}] and forwarding[{place}] are both "
                f"{forwarding_text(want.entry, names)}",
                field=f"forwarding[{place}]",
            )
        found.append(want)
    return tuple(found)


def _check(wish: ForwardingWish, where: str) -> None:
    if not _MAC.fullmatch(wish.mac.lower()):
        raise invalid(f"{wish.mac!r} is no MAC address", field=f"{where}.mac")
    if not 0 <= wish.vlan_id <= _VLAN_MAX:
        raise invalid(
            f"{wish.mac}: VLAN {wish.vlan_id} is not 1 to {_VLAN_MAX}", field=f"{where}.vlan_id"
        )
    if wish.state not in _STATES:
        raise invalid(
            f"{wish.mac}: no entry can be made {(wish.state.name or 'none').lower()}",
            field=f"{where}.state",
            hint="permanent, static or dynamic",
        )
    if wish.of_master and wish.destination is not None:
        raise invalid(
            f"{wish.mac}: a bridge's entry has no destination", field=f"{where}.destination"
        )


def _want(wish: ForwardingWish, names: LinkNames) -> ForwardingWant:
    index = names.index(wish.device, of=f"forwarding entry {wish.mac}")
    link = names.links[index]
    bridge = link.kind == "bridge"
    if wish.of_master and not link.master and not bridge:
        raise wrong_state(
            f"forwarding entry {wish.mac}: {wish.device} belongs to no bridge",
            hint="give it a master first (ApplyInterface)",
            interface=wish.device,
        )
    if wish.destination is not None and link.kind != "vxlan":
        raise wrong_state(
            f"forwarding entry {wish.mac}: {wish.device} is no VXLAN, so it has no destinations",
            interface=wish.device,
        )
    entry = Forwarding(
        index=index,
        mac=wish.mac.lower(),
        vlan_id=wish.vlan_id,
        destination=wish.destination,
        state=wish.state,
        # A bridge has entries for itself in its own table.
        flags=NeighborFlag.MASTER if wish.of_master or bridge else NeighborFlag.SELF,
    )
    return ForwardingWant(entry=entry, absent=wish.absent)


# --- planning ---------------------------------------------------------------------------


def forwarding_target(
    now: Sequence[Forwarding],
    wants: Sequence[ForwardingWant],
    exact: frozenset[int],
    names: LinkNames,
) -> dict[ForwardingKey, Forwarding | None]:
    """The wanted ones, and nothing for lasting ones on the `exact` interfaces that are not
    wanted and not the kernel's own. A wanted one of no VLAN brings one of each VLAN."""
    found: dict[ForwardingKey, Forwarding | None] = {}
    absent: dict[tuple[object, ...], list[ForwardingWant]] = {}
    for want in wants:
        if want.absent:
            absent.setdefault(forwarding_key(want.entry)[:4], []).append(want)
        else:
            found[forwarding_key(want.entry)] = want.entry
    brought = {(*key[:2], *key[3:]) for key in found if not key[2]}
    for entry in now:
        key = forwarding_key(entry)
        unwanted = any(want.means(entry) for want in absent.get(key[:4], ()))
        left_over = (
            entry.index in exact
            and (*key[:2], *key[3:]) not in brought
            and not _is_kernels(entry, names)
        )
        if unwanted or (left_over and _sort(entry.state) != NeighborState.REACHABLE):
            found.setdefault(key, None)
    return found


def _is_kernels(entry: Forwarding, names: LinkNames) -> bool:
    """What the kernel needs to receive: the addresses of the interface, its bridge and
    those on top of it, and the multicasts that it joined."""
    if NeighborFlag.EXT_LEARNED in entry.flags:
        return True
    link = names.links.get(entry.index)
    if NeighborFlag.MASTER in entry.flags:
        owners = (entry.index, link.master if link is not None else 0)
        macs = {names.links[index].mac for index in owners if index in names.links}
        return entry.state == NeighborState.PERMANENT and entry.mac in macs
    if entry.destination is not None or entry.mac == _ZERO:
        return False
    above = {other.mac for other in names.links.values() if other.parent == entry.index}
    return _has_several(entry.mac) or entry.mac in above


def forwarding_as_it_was(
    before: Sequence[Forwarding], target: ForwardingTarget
) -> dict[ForwardingKey, Forwarding | None]:
    """The way back: what was under the keys of a target. An entry of no VLAN is one of
    each VLAN of the port as well, so all of a MAC address count."""
    touched = {(key[0], key[1], key[3]) for key in target}
    found: dict[ForwardingKey, Forwarding | None] = dict.fromkeys(target)
    for entry in before:
        key = forwarding_key(entry)
        if (key[0], key[1], key[3]) in touched:
            found[key] = entry
    return found


def forwarding_plan(
    now: Sequence[Forwarding], target: ForwardingTarget, names: LinkNames
) -> Iterator[Change]:
    """From `now` to `target`; what goes, goes first, as removing one may take others."""
    there = {forwarding_key(entry): entry for entry in now}
    for key, shall in target.items():
        if shall is None and (has := there.get(key)) is not None:
            what = f"remove forwarding entry {forwarding_text(has, names)}"
            change = rtnl.forwarding_removed(_addressed(has, names), what)
            yield dataclasses.replace(change, fine=_GONE)
    for key, shall in target.items():
        if shall is not None and not _same(there.get(key), shall):
            what = f"set forwarding entry {forwarding_text(shall, names)}"
            change = rtnl.forwarding_replaced(_addressed(shall, names), what)
            if shall.destination is not None and _has_several(shall.mac):
                change = dataclasses.replace(change, flags=NLM_F_CREATE | NLM_F_APPEND)
            yield change


def forwarding_lines(
    before: Iterable[Forwarding],
    after: Iterable[Forwarding],
    target: ForwardingTarget,
    names: LinkNames,
) -> Iterator[str]:
    """`+02:00:00:00:00:01 dev p0 master static`, for the keys of a target."""
    had = {forwarding_key(entry): entry for entry in before}
    has = {forwarding_key(entry): entry for entry in after}
    for key in target:
        old, new = had.get(key), has.get(key)
        if _same(old, new):
            continue
        if old is not None:
            yield f"forwarding -{forwarding_text(old, names)}"
        if new is not None:
            yield f"forwarding +{forwarding_text(new, names)}"


def _addressed(entry: Forwarding, names: LinkNames) -> Forwarding:
    """As a request names it: a bridge is asked for its own entries as itself, and what it
    has learnt is not set as old."""
    link = names.links.get(entry.index)
    own = link is not None and link.kind == "bridge" and NeighborFlag.MASTER in entry.flags
    flags = NeighborFlag.SELF if own else entry.flags & (NeighborFlag.SELF | NeighborFlag.MASTER)
    return dataclasses.replace(entry, flags=flags, state=_sort(entry.state))


def _same(one: Forwarding | None, other: Forwarding | None) -> bool:
    if one is None or other is None:
        return one is other
    return (_sort(one.state), one.destination) == (_sort(other.state), other.destination)


def _sort(state: NeighborState) -> NeighborState:
    """Local, static, or learnt."""
    if state & NeighborState.PERMANENT:
        return NeighborState.PERMANENT
    return NeighborState.NOARP if state & NeighborState.NOARP else NeighborState.REACHABLE

"""Neighbours and forwarding entries, each way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.network import (
    ForwardingWish,
    NeighborFlag,
    NeighborState,
    NeighborsWish,
    NeighborWish,
)
from agent.server.convert import fields, inet, linknames
from agent.server.limits import EXACT_DEVICES, NEIGHBORS
from innkeeper.v1 import network_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.network import Forwarding, Neighbor, NeighborsState

_STATES: Final = {
    "": NeighborState.PERMANENT,
    "permanent": NeighborState.PERMANENT,
    "noarp": NeighborState.NOARP,
    "reachable": NeighborState.REACHABLE,
    "stale": NeighborState.STALE,
}
# As `bridge fdb` calls them (state_n2a of iproute2's bridge/fdb.c), but for "dynamic".
_FORWARDING_STATES: Final = {
    "": NeighborState.PERMANENT,
    "permanent": NeighborState.PERMANENT,
    "static": NeighborState.NOARP,
    "dynamic": NeighborState.REACHABLE,
}
_LAST_VLAN: Final = 4094


def neighbors_wish(told: pb.ApplyNeighborsRequest) -> NeighborsWish:
    """Each entry once; raises BAD_FIELD."""
    count = len(told.neighbors) + len(told.forwarding)
    if count > NEIGHBORS:
        raise invalid(
            f"neighbors and forwarding: {count} entries are more than {NEIGHBORS}",
            field="neighbors",
            limit=NEIGHBORS,
        )
    neighbors = tuple(
        _neighbor(each, f"neighbors[{index}]") for index, each in enumerate(told.neighbors)
    )
    forwarding = tuple(
        _forwarding(each, f"forwarding[{index}]") for index, each in enumerate(told.forwarding)
    )
    fields.no_doubles(map(_neighbors_key, neighbors), "neighbors")
    fields.no_doubles(map(_forwardings_key, forwarding), "forwarding")
    fields.at_most(EXACT_DEVICES, told.exact_devices, "exact_devices")
    return NeighborsWish(
        neighbors=neighbors,
        forwarding=forwarding,
        exact_devices=tuple(
            linknames.device(each, f"exact_devices[{index}]")
            for index, each in enumerate(told.exact_devices)
        ),
    )


def _neighbor(told: pb.Neighbor, field: str) -> NeighborWish:
    if told.proxy and told.mac:
        raise invalid(
            f"{field}.mac: a proxy entry has none: the guest answers with its own",
            field=f"{field}.mac",
        )
    needed = not (told.proxy or told.absent)
    return NeighborWish(
        address=inet.neighbour(told.address, None, f"{field}.address"),
        device=linknames.device(told.device, f"{field}.device"),
        mac=inet.any_mac(told.mac, f"{field}.mac") if told.mac or needed else "",
        state=_state(told.state, _STATES, f"{field}.state"),
        proxy=told.proxy,
        absent=told.absent,
    )


def _forwarding(told: pb.ForwardingEntry, field: str) -> ForwardingWish:
    if told.of_master and told.destination:
        raise invalid(
            f"{field}.destination: only a VXLAN's own entry has one, none of_master",
            field=f"{field}.destination",
        )
    destination = told.destination
    return ForwardingWish(
        mac=inet.any_mac(told.mac, f"{field}.mac"),
        device=linknames.device(told.device, f"{field}.device"),
        vlan_id=fields.within(told.vlan_id, 0, _LAST_VLAN, f"{field}.vlan_id"),
        of_master=told.of_master,
        destination=(
            inet.address(destination, None, f"{field}.destination") if destination else None
        ),
        state=_state(told.state, _FORWARDING_STATES, f"{field}.state"),
        absent=told.absent,
    )


def _state(text: str, words: Mapping[str, NeighborState], field: str) -> NeighborState:
    state = words.get(text)
    if state is None:
        known = ", ".join(filter(None, words))
        raise invalid(f"{field}: {text[:80]!r} cannot be asked for: expected {known}", field=field)
    return state


def _neighbors_key(wish: NeighborWish) -> str:
    proxy = " proxy" if wish.proxy else ""
    return f"{inet.text_of(wish.address)} on {wish.device}{proxy}"


def _forwardings_key(wish: ForwardingWish) -> str:
    master = " of the master" if wish.of_master else ""
    to = f" to {inet.text_of(wish.destination)}" if wish.destination else ""
    return f"{wish.mac} vlan {wish.vlan_id} on {wish.device}{master}{to}"


def neighbors_state(state: NeighborsState) -> pb.NeighborsState:
    """By interface, then address."""
    names = state.names
    neighbors = sorted(
        state.neighbors, key=lambda one: (one.index, one.address.version, one.address.packed)
    )
    forwarding = sorted(state.forwarding, key=lambda one: (one.index, one.mac, one.vlan_id))
    return pb.NeighborsState(
        neighbors=[_neighbor_told(each, _name(each.index, names)) for each in neighbors],
        forwarding=[_forwarding_told(each, _name(each.index, names)) for each in forwarding],
        changed=state.changed,
    )


def _neighbor_told(entry: Neighbor, device: str) -> pb.Neighbor:
    proxy = NeighborFlag.PROXY in entry.flags
    return pb.Neighbor(
        address=inet.text_of(entry.address),
        mac=entry.mac,
        device=device,
        # The kernel keeps no state of a proxy entry; it stays until it is taken away.
        state="permanent" if proxy else _state_word(entry.state),
        proxy=proxy,
        router=NeighborFlag.ROUTER in entry.flags,
    )


def _state_word(state: NeighborState) -> str:
    words = [flag.name.lower() for flag in NeighborState if flag in state and flag.name]
    return " ".join(words) or "none"


def _forwarding_told(entry: Forwarding, device: str) -> pb.ForwardingEntry:
    return pb.ForwardingEntry(
        mac=entry.mac,
        device=device,
        vlan_id=entry.vlan_id,
        of_master=NeighborFlag.MASTER in entry.flags,
        destination=inet.text_of(entry.destination),
        state=_forwarding_word(entry.state),
    )


def _forwarding_word(state: NeighborState) -> str:
    if NeighborState.PERMANENT in state:
        return "permanent"
    return "static" if NeighborState.NOARP in state else "dynamic"


def _name(index: int, names: Mapping[int, str]) -> str:
    """An interface that went in between has its number."""
    return names.get(index, f"if{index}")

"""Neighbours and forwarding entries (include/uapi/linux/neighbour.h, net/core/neighbour.c,
net/core/rtnetlink.c)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from agent.core.netlink import NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Change, Question
from agent.core.network import Family, Forwarding, Neighbor, NeighborFlag, NeighborState
from agent.core.rtnl.messages import (
    RTM_DELNEIGH,
    RTM_GETNEIGH,
    RTM_NEWNEIGH,
    Attributes,
    body,
    decoded,
    mac,
    neighbor_message,
)

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink

_BRIDGE = 7  # AF_BRIDGE, which socket does not name


async def all_neighbors(netlink: Netlink, deadline: Deadline) -> tuple[Neighbor, ...]:
    """Every entry of both families, then the proxies, which the kernel keeps apart."""
    entries = await netlink.ask(_listing("list the neighbours", {}), deadline)
    asked = {"flags": int(NeighborFlag.PROXY)}
    proxies = await netlink.ask(_listing("list the proxied neighbours", asked), deadline)
    return tuple(entry for entry in (*entries, *proxies) if entry is not None)


def _listing(what: str, fields: dict[str, Any]) -> Question:
    payload = body(neighbor_message, {"family": socket.AF_UNSPEC} | fields)
    return Question(what=what, type=RTM_GETNEIGH, flags=NLM_F_DUMP, payload=payload, decode=decode)


def decode(data: bytes) -> Neighbor | None:
    """RTM_NEWNEIGH or RTM_DELNEIGH, header included; None for another family's."""
    message = decoded(neighbor_message, data)
    found = Attributes(message)
    there = found.address("NDA_DST")
    if message["family"] not in tuple(Family) or there is None:
        return None
    return Neighbor(
        index=message["ifindex"],
        address=there,
        mac=mac(found.raw("NDA_LLADDR")),
        state=NeighborState(message["state"]),
        flags=NeighborFlag(message["flags"]),
    )


def replaced(neighbor: Neighbor, what: str) -> Change:
    """Add an entry, or put it in the place of the one that is there."""
    fields = _fields(neighbor) | {"state": int(neighbor.state)}
    payload = body(
        neighbor_message,
        fields,
        ("NDA_DST", str(neighbor.address)),
        ("NDA_LLADDR", neighbor.mac or None),
    )
    flags = NLM_F_CREATE | NLM_F_REPLACE
    return Change(what=what, type=RTM_NEWNEIGH, flags=flags, payload=payload)


def removed(neighbor: Neighbor, what: str) -> Change:
    payload = body(neighbor_message, _fields(neighbor), ("NDA_DST", str(neighbor.address)))
    return Change(what=what, type=RTM_DELNEIGH, flags=0, payload=payload)


def _fields(neighbor: Neighbor) -> dict[str, Any]:
    return {
        "family": int(Family.of(neighbor.address)),
        "ifindex": neighbor.index,
        "flags": int(neighbor.flags),
    }


async def all_forwarding(netlink: Netlink, deadline: Deadline) -> tuple[Forwarding, ...]:
    """Every forwarding entry of bridges (MASTER) and of the interfaces themselves (SELF)."""
    question = Question(
        what="list the forwarding entries",
        type=RTM_GETNEIGH,
        flags=NLM_F_DUMP,
        payload=body(neighbor_message, {"family": _BRIDGE}),
        decode=decode_forwarding,
    )
    found = await netlink.ask(question, deadline)
    return tuple(entry for entry in found if entry is not None)


def decode_forwarding(data: bytes) -> Forwarding | None:
    """RTM_NEWNEIGH or RTM_DELNEIGH of AF_BRIDGE, header included.

    A bridge does not flag its entries; NDA_MASTER tells them.
    """
    message = decoded(neighbor_message, data)
    found = Attributes(message)
    if message["family"] != _BRIDGE:
        return None
    flags = NeighborFlag(message["flags"])
    if "NDA_MASTER" in found and NeighborFlag.SELF not in flags:
        flags |= NeighborFlag.MASTER
    return Forwarding(
        index=message["ifindex"],
        mac=(found.raw("NDA_LLADDR") or b"").hex(":"),
        vlan_id=found.number("NDA_VLAN"),
        destination=found.address("NDA_DST"),
        state=NeighborState(message["state"]),
        flags=flags,
    )


def forwarding_replaced(entry: Forwarding, what: str) -> Change:
    """Add an entry, or put it in the place of the one that is there."""
    flags = NLM_F_CREATE | NLM_F_REPLACE
    return Change(what=what, type=RTM_NEWNEIGH, flags=flags, payload=_forwarding(entry))


def forwarding_removed(entry: Forwarding, what: str) -> Change:
    return Change(what=what, type=RTM_DELNEIGH, flags=0, payload=_forwarding(entry))


def _forwarding(entry: Forwarding) -> bytes:
    fields = {
        "family": _BRIDGE,
        "ifindex": entry.index,
        "state": int(entry.state),
        "flags": int(entry.flags),
    }
    return body(
        neighbor_message,
        fields,
        ("NDA_LLADDR", entry.mac),
        ("NDA_VLAN", entry.vlan_id or None),
        ("NDA_DST", str(entry.destination) if entry.destination else None),
    )

"""How virtual links are made now, and made otherwise (include/uapi/linux/if_link.h)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from agent.core.netlink import Change, NetlinkRefusal, Question
from agent.core.network import LinkKind, LinkMaking
from agent.core.rtnl.messages import (
    RTM_GETLINK,
    RTM_NEWLINK,
    Attributes,
    body,
    decoded,
    link_message,
    nested,
)

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink

_VLAN_SERVICE = 0x88A8

# Documentation/networking/bonding.rst, `mode`.
BOND_MODES = (
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
)

# Times of bridges are in USER_HZ, which is 100 on every machine but alpha and ia64.
_MILLIS_PER_TICK = 10


async def making_of(netlink: Netlink, index: int, deadline: Deadline) -> LinkMaking | None:
    """How an interface is made; None for one that requests don't make, and without one.

    `parent` and `peer_name` stay empty: those are interfaces, which Link has.
    """
    question = Question(
        what=f"ask how interface {index} is made",
        type=RTM_GETLINK,
        flags=0,
        payload=body(link_message, {"index": index}),
        decode=decode,
    )
    try:
        found = await netlink.ask(question, deadline)
    except NetlinkRefusal as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    return found[0] if found else None


def decode(data: bytes) -> LinkMaking | None:
    """RTM_NEWLINK, header included."""
    info = Attributes(decoded(link_message, data)).within("IFLA_LINKINFO")
    kind = info.text("IFLA_INFO_KIND")
    if kind not in set(LinkKind):
        return None
    known = _MEMBERS.get(LinkKind(kind))
    return LinkMaking(
        kind=LinkKind(kind), **(known(info.within("IFLA_INFO_DATA")) if known else {})
    )


def remade(index: int, making: LinkMaking, what: str, *, now: LinkMaking) -> Change:
    """Give a bridge or a bond what differs from how it is made now."""
    data = _bridge_data if making.kind is LinkKind.BRIDGE else _bond_data
    differing = [each for each in data(making) if each not in data(now)]
    info = nested(("IFLA_INFO_KIND", making.kind.value), ("IFLA_INFO_DATA", nested(*differing)))
    payload = body(link_message, {"index": index}, ("IFLA_LINKINFO", info))
    return Change(what=what, type=RTM_NEWLINK, flags=0, payload=payload)


def _bridge_data(making: LinkMaking) -> list[tuple[str, int]]:
    return [
        ("IFLA_BR_FORWARD_DELAY", making.forward_delay_millis // _MILLIS_PER_TICK),
        ("IFLA_BR_STP_STATE", int(making.stp)),
        ("IFLA_BR_VLAN_FILTERING", int(making.vlan_filtering)),
    ]


def _bond_data(making: LinkMaking) -> list[tuple[str, int]]:
    # A mode that this list does not know is left as it is.
    modes = [("IFLA_BOND_MODE", BOND_MODES.index(m)) for m in BOND_MODES if m == making.mode]
    return [*modes, ("IFLA_BOND_MIIMON", making.miimon)]


def _vlan(data: Attributes) -> dict[str, Any]:
    raw = data.raw("IFLA_VLAN_PROTOCOL") or b""
    return {
        "vlan_id": data.number("IFLA_VLAN_ID"),
        "service_tag": int.from_bytes(raw, "big") == _VLAN_SERVICE,
    }


def _bridge(data: Attributes) -> dict[str, Any]:
    return {
        "stp": bool(data.number("IFLA_BR_STP_STATE")),
        "vlan_filtering": bool(data.number("IFLA_BR_VLAN_FILTERING")),
        "forward_delay_millis": data.number("IFLA_BR_FORWARD_DELAY") * _MILLIS_PER_TICK,
    }


def _bond(data: Attributes) -> dict[str, Any]:
    mode = data.number("IFLA_BOND_MODE")
    known = mode < len(BOND_MODES)
    return {
        "mode": BOND_MODES[mode] if known else str(mode),
        "miimon": data.number("IFLA_BOND_MIIMON"),
    }


def _vrf(data: Attributes) -> dict[str, Any]:
    return {"table": data.number("IFLA_VRF_TABLE")}


_MEMBERS = {
    LinkKind.VLAN: _vlan,
    LinkKind.BRIDGE: _bridge,
    LinkKind.BOND: _bond,
    LinkKind.VRF: _vrf,
}

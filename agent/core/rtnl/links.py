"""Links: read, changed, made, removed, moved (rtnetlink(7), include/uapi/linux/if_link.h)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from agent.core.netlink import (
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    Change,
    NetlinkRefusal,
    Question,
)
from agent.core.network import Counters, Link, LinkFlag, LinkKind
from agent.core.rtnl.messages import (
    RTM_DELLINK,
    RTM_DELLINKPROP,
    RTM_GETLINK,
    RTM_NEWLINK,
    RTM_NEWLINKPROP,
    Attributes,
    body,
    content,
    decoded,
    link_message,
    mac,
    nested,
    text,
)

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import LinkMaking

_ALTNAME_SIZE = 127
# See messages.text.
_SPELLED_OUT = r"\x"
_VLAN_CUSTOMER = 0x8100
_VLAN_SERVICE = 0x88A8

# <linux/if_link.h>, struct rtnl_link_stats64, up to `collisions`.
_COUNTERS = (
    "receive_packets",
    "transmit_packets",
    "receive_bytes",
    "transmit_bytes",
    "receive_errors",
    "transmit_errors",
    "receive_dropped",
    "transmit_dropped",
    "multicast",
    "collisions",
)

# Documentation/networking/bonding.rst, `mode`.
_BOND_MODES = (
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
)


async def all_links(netlink: Netlink, deadline: Deadline) -> tuple[Link, ...]:
    """Every interface of the namespace, by index."""
    question = Question(
        what="list the interfaces",
        type=RTM_GETLINK,
        flags=NLM_F_DUMP,
        payload=body(link_message, {}),
        decode=decode,
    )
    found = await netlink.ask(question, deadline)
    return tuple(sorted(found, key=lambda link: link.index))


async def one_link(
    netlink: Netlink, deadline: Deadline, *, index: int = 0, name: str = ""
) -> Link | None:
    """The interface of an index or a name, which may be an alternative one; None without.

    One whose name is not UTF-8 is found by how that is shown.
    """
    raw = name.encode(errors="surrogateescape")
    if not index and not 0 < len(raw) <= _ALTNAME_SIZE:
        return None
    question = Question(
        what=f"look for the interface {name or index}",
        type=RTM_GETLINK,
        flags=0,
        # IFLA_ALT_IFNAME is looked up among names of both sorts.
        payload=body(
            link_message, {"index": index}, ("IFLA_ALT_IFNAME", raw if not index else None)
        ),
        decode=decode,
    )
    try:
        found = await netlink.ask(question, deadline)
    except NetlinkRefusal as error:
        if error.errno != errno.ENODEV:
            raise
        found = await _shown_as(name, netlink, deadline) if _SPELLED_OUT in name else []
    return found[0] if found else None


async def _shown_as(name: str, netlink: Netlink, deadline: Deadline) -> list[Link]:
    there = await all_links(netlink, deadline)
    return [link for link in there if name in (link.name, *link.altnames)]


def decode(data: bytes) -> Link:
    """RTM_NEWLINK or RTM_DELLINK, header included."""
    message = decoded(link_message, data)
    found = Attributes(message)
    info = found.within("IFLA_LINKINFO")
    kind = info.text("IFLA_INFO_KIND")
    details = info.within("IFLA_INFO_DATA") if kind in (LinkKind.VLAN, LinkKind.VRF) else None
    return Link(
        index=message["index"],
        name=found.text("IFLA_IFNAME"),
        flags=LinkFlag(message["flags"]),
        mtu=found.number("IFLA_MTU"),
        mac=mac(found.raw("IFLA_ADDRESS")),
        permanent_mac=mac(found.raw("IFLA_PERM_ADDRESS")),
        kind=kind,
        slave_kind=info.text("IFLA_INFO_SLAVE_KIND"),
        master=found.number("IFLA_MASTER"),
        parent=_parent(found),
        vlan_id=details.number("IFLA_VLAN_ID") if details else 0,
        service_tag=_service_tag(details),
        vrf_table=details.number("IFLA_VRF_TABLE") if details else 0,
        altnames=_altnames(found),
        operstate=found.number("IFLA_OPERSTATE"),
        carrier=bool(found.number("IFLA_CARRIER")),
        link_type=message["ifi_type"],
        transmit_queue_length=found.number("IFLA_TXQLEN"),
        counters=_counters(found.raw("IFLA_STATS64")),
    )


def _parent(found: Attributes) -> int:
    """IFLA_LINK; with IFLA_LINK_NETNSID it is an index of another namespace."""
    return 0 if "IFLA_LINK_NETNSID" in found else found.number("IFLA_LINK")


def _service_tag(details: Attributes | None) -> bool:
    raw = details.raw("IFLA_VLAN_PROTOCOL") if details else None
    return raw is not None and int.from_bytes(raw, "big") == _VLAN_SERVICE


def _altnames(found: Attributes) -> tuple[str, ...]:
    names = found.inside("IFLA_PROP_LIST")
    if names is None:
        return ()
    return tuple(text(content(slot)) for slot in names["attrs"] if slot.name == "IFLA_ALT_IFNAME")


def _counters(raw: bytes | None) -> Counters:
    if raw is None or len(raw) < 8 * len(_COUNTERS):
        return Counters()
    numbers = memoryview(raw)[: 8 * len(_COUNTERS)].cast("Q")
    return Counters(**dict(zip(_COUNTERS, numbers, strict=True)))


def changed(  # noqa: PLR0913 - one message sets any of them
    index: int,
    what: str,
    *,
    name: str | None = None,
    mtu: int | None = None,
    mac: str | None = None,
    up: bool | None = None,
    arp: bool | None = None,
    multicast: bool | None = None,
    all_multicast: bool | None = None,
    promiscuous: bool | None = None,
    master: int | None = None,
    transmit_queue_length: int | None = None,
) -> Change:
    """Change an interface; None: unchanged, master 0: none."""
    fields = {"index": index} | _flags(
        {
            LinkFlag.UP: up,
            LinkFlag.NOARP: None if arp is None else not arp,
            LinkFlag.MULTICAST: multicast,
            LinkFlag.ALLMULTI: all_multicast,
            LinkFlag.PROMISC: promiscuous,
        }
    )
    payload = body(
        link_message,
        fields,
        ("IFLA_IFNAME", name),
        ("IFLA_MTU", mtu),
        ("IFLA_ADDRESS", mac),
        ("IFLA_MASTER", master),
        ("IFLA_TXQLEN", transmit_queue_length),
    )
    return Change(what=what, type=RTM_NEWLINK, flags=0, payload=payload)


def _flags(wanted: dict[LinkFlag, bool | None]) -> dict[str, int]:
    chosen = {flag: on for flag, on in wanted.items() if on is not None}
    return {
        "flags": sum(flag for flag, on in chosen.items() if on),
        "change": sum(chosen),
    }


def created(name: str, making: LinkMaking, what: str, *, parent: int = 0) -> Change:
    """Make a virtual interface, and for veth its peer; fails where the name is in use."""
    info = nested(("IFLA_INFO_KIND", making.kind.value), ("IFLA_INFO_DATA", _data(making)))
    payload = body(
        link_message,
        {},
        ("IFLA_IFNAME", name),
        ("IFLA_LINK", parent or None),
        ("IFLA_LINKINFO", info),
    )
    return Change(what=what, type=RTM_NEWLINK, flags=NLM_F_CREATE | NLM_F_EXCL, payload=payload)


def _data(making: LinkMaking) -> dict[str, Any] | None:
    match making.kind:
        case LinkKind.VLAN:
            tag = _VLAN_SERVICE if making.service_tag else _VLAN_CUSTOMER
            return nested(("IFLA_VLAN_ID", making.vlan_id), ("IFLA_VLAN_PROTOCOL", tag))
        case LinkKind.BRIDGE:
            return _bridge(making)
        case LinkKind.BOND:
            mode = _BOND_MODES.index(making.mode) if making.mode else None
            return nested(("IFLA_BOND_MODE", mode), ("IFLA_BOND_MIIMON", making.miimon or None))
        case LinkKind.VRF:
            return nested(("IFLA_VRF_TABLE", making.table))
        case LinkKind.VETH:
            return nested(("VETH_INFO_PEER", nested(("IFLA_IFNAME", making.peer_name or None))))
        case LinkKind.DUMMY:
            return None


def _bridge(making: LinkMaking) -> dict[str, Any]:
    # Times are in USER_HZ, which is 100 on every machine but alpha and ia64.
    delay = making.forward_delay_millis // 10 if making.forward_delay_millis else None
    return nested(
        ("IFLA_BR_FORWARD_DELAY", delay),
        ("IFLA_BR_STP_STATE", int(making.stp)),
        # A kernel without VLAN filtering refuses even to turn it off.
        ("IFLA_BR_VLAN_FILTERING", int(making.vlan_filtering) or None),
    )


def removed(index: int, what: str) -> Change:
    return Change(
        what=what, type=RTM_DELLINK, flags=0, payload=body(link_message, {"index": index})
    )


def altname_added(index: int, altname: str, what: str) -> Change:
    flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_APPEND
    return Change(what=what, type=RTM_NEWLINKPROP, flags=flags, payload=_altname(index, altname))


def altname_removed(index: int, altname: str, what: str) -> Change:
    return Change(what=what, type=RTM_DELLINKPROP, flags=0, payload=_altname(index, altname))


def _altname(index: int, altname: str) -> bytes:
    names = nested(("IFLA_ALT_IFNAME", altname))
    return body(link_message, {"index": index}, ("IFLA_PROP_LIST", names))


def moved(index: int, what: str, *, namespace: int, name: str | None = None) -> Change:
    """Into the network namespace of a descriptor, which must stay open until the change is
    made; there under another name where one is given."""
    payload = body(
        link_message, {"index": index}, ("IFLA_NET_NS_FD", namespace), ("IFLA_IFNAME", name)
    )
    return Change(what=what, type=RTM_NEWLINK, flags=0, payload=payload)

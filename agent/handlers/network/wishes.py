"""What can be said against a wish for an interface before anything is looked at."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.core.addresses import MacAddress
from agent.core.errors import Reason, invalid
from agent.core.network import LOCAL_TABLE, Family, LinkKind
from agent.core.pci import Bdf, PciPath
from agent.core.rtnl.makings import BOND_MODES
from agent.handlers.network.names import check_altname, check_name

if TYPE_CHECKING:
    from agent.core.errors import AgentError
    from agent.core.network import InterfaceWish, LinkMaking

MOST: Final = 64

_MAC = re.compile(r"[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}")
_VLAN_IDS = range(1, 4095)
_TABLES = range(1, 1 << 32)


def canonical_mac(text: str, field: str) -> str:
    """Any spelling of a MAC address (capitals, `-`) as lower case with colons.

    Raises BAD_FIELD for what is none, and for what no interface can have for its own: group
    addresses and all zeros.
    """
    low = text.lower()
    if _MAC.fullmatch(low) is None:
        raise invalid(f"{text[:200]!r} is not a MAC address: six octets in hex", field=field)
    mac = low.replace("-", ":")
    if int(mac[:2], 16) & 1 or mac == "00:00:00:00:00:00":
        raise invalid(f"{text!r} is a group address or none: no interface's own", field=field)
    return mac


def canonical(wish: InterfaceWish) -> InterfaceWish:
    """With its MAC address in the kernel's spelling. Raises BAD_FIELD."""
    return replace(wish, mac=canonical_mac(wish.mac, "mac")) if wish.mac else wish


def check(wishes: tuple[InterfaceWish, ...]) -> None:
    """Raises BAD_FIELD, BAD_ADDRESS."""
    if len(wishes) > MOST:
        raise invalid(f"{len(wishes)} interfaces are more than {MOST}", field="interfaces")
    for wish in wishes:
        _check_subject(wish)
        _check_names(wish)
        _check_addresses(wish)
        if wish.making is not None:
            _check_making(wish, wish.making)
    names = [name for wish in wishes for name in _names(wish)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise invalid(f"two interfaces shall have the name {twice}", field="name", name=twice)


def made_name(wish: InterfaceWish) -> str:
    """The name that the interface has afterwards, where the wish itself says it."""
    return wish.name or (wish.current_name if wish.address is None else "")


def _names(wish: InterfaceWish) -> tuple[str, ...]:
    """All that the interface, and a veth's other end, are called afterwards."""
    own = made_name(wish)
    others = (name for name in wish.altnames if name != own)
    return tuple(filter(None, (own, *dict.fromkeys(others))))


def _check_subject(wish: InterfaceWish) -> None:
    if wish.address is not None and not isinstance(wish.address, (PciPath, Bdf, MacAddress)):
        raise invalid(
            f"an interface is found by its PCI path, its BDF or its MAC, not by {wish.address}",
            reason=Reason.BAD_ADDRESS,
            address=wish.address,
        )
    if wish.address is None and not (wish.current_name or wish.name):
        raise invalid("neither an address nor a name says which interface", field="address")
    if wish.address is not None and wish.making is not None:
        raise invalid(
            f"{wish.subject}: an interface that is made has no address to be found by",
            field="address",
        )


def _check_names(wish: InterfaceWish) -> None:
    if wish.current_name and wish.making is not None:
        check_name(wish.current_name, "current_name")
    elif wish.current_name:
        check_altname(wish.current_name, "current_name")
    if wish.name:
        check_name(wish.name, "name")
    for altname in wish.altnames:
        check_altname(altname, "alternative_names")


def _check_addresses(wish: InterfaceWish) -> None:
    seen: set[object] = set()
    for each in wish.addresses:
        family = Family.of(each.interface)
        mark = (each.interface, each.peer) if family is Family.V4 else each.interface.ip
        if mark in seen:
            raise invalid(
                f"{wish.subject}: the address {each.interface} is there twice", field="addresses"
            )
        seen.add(mark)
        if each.peer is not None and Family.of(each.peer) is not family:
            raise invalid(
                f"{wish.subject}: {each.interface} and its peer {each.peer} are of two families",
                field="addresses",
            )
        if family is Family.V6 and wish.ipv6 is False:
            raise invalid(
                f"{wish.subject}: {each.interface} on an interface without IPv6", field="addresses"
            )
        if isinstance(each.interface, ipaddress.IPv6Interface) and each.broadcast is not None:
            raise invalid(f"{wish.subject}: IPv6 has no broadcast", field="addresses")


def _check_making(wish: InterfaceWish, making: LinkMaking) -> None:
    match making.kind:
        case LinkKind.VLAN if not making.parent:
            raise _bad_making(wish, "a VLAN needs its parent", "vlan.parent")
        case LinkKind.VLAN if making.vlan_id not in _VLAN_IDS:
            what = f"{making.vlan_id} is not a VLAN id (1 to 4094)"
            raise _bad_making(wish, what, "vlan.vlan_id")
        case LinkKind.VRF if making.table not in _TABLES or making.table == LOCAL_TABLE:
            raise _bad_making(wish, f"{making.table} can't be the table of a VRF", "vrf.table")
        case LinkKind.BOND if making.mode and making.mode not in BOND_MODES:
            known = ", ".join(BOND_MODES)
            raise _bad_making(wish, f"{making.mode!r} is no mode of a bond: {known}", "bond.mode")
        case LinkKind.VETH:
            check_name(making.peer_name, "veth.peer_name")
            if making.peer_name == made_name(wish):
                what = "both ends of a veth pair have one name"
                raise _bad_making(wish, what, "veth.peer_name")


def _bad_making(wish: InterfaceWish, what: str, field: str) -> AgentError:
    return invalid(f"{wish.subject}: {what}", field=field)

"""Addresses of interfaces (rtnetlink(7), include/uapi/linux/if_addr.h)."""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING, Any

from agent.core.netlink import NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Change, Question
from agent.core.network import Address, AddressFlag
from agent.core.rtnl.messages import (
    RTM_DELADDR,
    RTM_GETADDR,
    RTM_NEWADDR,
    Attributes,
    address_message,
    body,
    decoded,
)

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink

FOREVER = 0xFFFFFFFF

# What a request may say; the others are the kernel's news.
_WISHES = (
    AddressFlag.NODAD
    | AddressFlag.OPTIMISTIC
    | AddressFlag.HOMEADDRESS
    | AddressFlag.MANAGETEMPADDR
    | AddressFlag.NOPREFIXROUTE
    | AddressFlag.MCAUTOJOIN
)


async def all_addresses(
    netlink: Netlink, deadline: Deadline, *, index: int = 0
) -> tuple[Address, ...]:
    """Every address of both families, of one interface where `index` is given."""
    question = Question(
        what="list the addresses",
        type=RTM_GETADDR,
        flags=NLM_F_DUMP,
        payload=body(address_message, {"index": index}),
        decode=decode,
    )
    found = await netlink.ask(question, deadline)
    return tuple(
        address for address in found if address is not None and index in (0, address.index)
    )


def decode(data: bytes) -> Address | None:
    """RTM_NEWADDR or RTM_DELADDR, header included; None for another family's."""
    message = decoded(address_message, data)
    found = Attributes(message)
    there = found.address("IFA_ADDRESS")
    here = found.address("IFA_LOCAL") or there
    if here is None:
        return None
    broadcast = found.address("IFA_BROADCAST")
    preferred, valid = _lifetimes(found.raw("IFA_CACHEINFO"))
    return Address(
        index=message["index"],
        interface=ipaddress.ip_interface((here.packed, message["prefixlen"])),
        peer=there if there != here else None,
        broadcast=broadcast if isinstance(broadcast, ipaddress.IPv4Address) else None,
        scope=message["scope"],
        flags=AddressFlag(found.number("IFA_FLAGS", message["flags"])),
        label=found.text("IFA_LABEL"),
        protocol=found.number("IFA_PROTO"),
        preferred=preferred,
        valid=valid,
    )


def _lifetimes(raw: bytes | None) -> tuple[int, int]:
    """Of struct ifa_cacheinfo: preferred and valid."""
    if raw is None or len(raw) < 8:
        return FOREVER, FOREVER
    preferred, valid = struct.unpack_from("=II", raw)
    return int(preferred), int(valid)


def added(address: Address, what: str) -> Change:
    """Add an address, or give the one that is there its new lifetimes.

    IPv4: broadcast, label and scope of one that is there stay (net/ipv4/devinet.c).
    """
    lifetimes = None
    if (address.preferred, address.valid) != (FOREVER, FOREVER):
        lifetimes = {"ifa_preferred": address.preferred, "ifa_valid": address.valid}
    payload = body(
        address_message,
        _fields(address) | {"scope": address.scope},
        *_ends(address),
        ("IFA_BROADCAST", str(address.broadcast) if address.broadcast else None),
        ("IFA_LABEL", address.label or None),
        ("IFA_FLAGS", int(address.flags & _WISHES)),
        ("IFA_CACHEINFO", lifetimes),
        ("IFA_PROTO", address.protocol or None),
    )
    return Change(what=what, type=RTM_NEWADDR, flags=NLM_F_CREATE | NLM_F_REPLACE, payload=payload)


def removed(address: Address, what: str) -> Change:
    payload = body(address_message, _fields(address), *_ends(address))
    return Change(what=what, type=RTM_DELADDR, flags=0, payload=payload)


def _fields(address: Address) -> dict[str, Any]:
    return {
        "family": int(address.family),
        "prefixlen": address.interface.network.prefixlen,
        "index": address.index,
    }


def _ends(address: Address) -> tuple[tuple[str, str], ...]:
    here = address.interface.ip
    return ("IFA_LOCAL", str(here)), ("IFA_ADDRESS", str(address.peer or here))

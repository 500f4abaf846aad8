"""IP and MAC addresses: texts of the protocol and ours, each way.

A text is parsed once, here, and strictly: which IP version is meant is said beside it
and never guessed. inet_pton(3) takes no leading zeros, zones or short forms of IPv4 and
is four times as fast as ipaddress, which counts for 100,000 routes. Texts are those of
inet_ntop(3) and so of `ip`: RFC 5952, with section 5's mixed form for IPv4-mapped ones.
"""

from __future__ import annotations

import re
import socket
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import TYPE_CHECKING, Final

from agent.core.addresses import MacAddress
from agent.core.errors import AgentError, Reason, invalid
from agent.core.network import Family

if TYPE_CHECKING:
    from agent.core.network import IpAddress, IpInterface, IpNetwork

_PREFIX: Final = re.compile("0|[1-9][0-9]{0,2}")
_OCTETS: Final = re.compile("[0-9a-f]{2}(:[0-9a-f]{2}){5}")
# A longer text is none, and need not be looked at.
_LONGEST: Final = 50


def address(text: str, family: Family | None, field: str) -> IpAddress:
    """One address without prefix and zone, of `family`, or of any; raises BAD_FIELD."""
    found = _parsed(text, family)
    if found is None:
        raise _bad(text, f"an {_named(family)} address", field)
    return found


def v4(text: str, field: str) -> IPv4Address:
    """An IPv4 address; raises BAD_FIELD."""
    found = address(text, Family.V4, field)
    assert isinstance(found, IPv4Address)
    return found


def neighbour(text: str, family: Family | None, field: str) -> IpAddress:
    """The address of one host: neither `0.0.0.0` or `::`, which is nobody's, nor multicast."""
    found = address(text, family, field)
    if found.is_unspecified or found.is_multicast:
        raise _bad(text, "the address of one host", field)
    return found


def interface(text: str, field: str) -> IpInterface:
    """An address with its prefix, `192.0.2.10/24`."""
    plain, slash, prefix = text.partition("/")
    if not slash:
        raise _bad(text, "an address with its prefix, e.g. 192.0.2.10/24", field)
    host = neighbour(plain, None, field)
    length = _length(text, prefix, Family.of(host), field)
    if isinstance(host, IPv4Address):
        return IPv4Interface((int(host), length))
    return IPv6Interface((int(host), length))


def network(text: str, family: Family, field: str) -> IpNetwork:
    """A prefix, or one address, or `default` or nothing for everything."""
    if text in {"", "default"}:
        return EVERYTHING[family]
    plain, slash, prefix = text.partition("/")
    host = int(address(plain, family, field))
    length = _length(text, prefix, family, field) if slash else family.bits
    behind = family.bits - length
    start = host >> behind << behind
    # From numbers: from an address it takes four times as long.
    found = IPv4Network((start, length)) if family is Family.V4 else IPv6Network((start, length))
    if start != host:
        raise invalid(
            f"{field}: {text!r} has bits set behind its prefix; the prefix is"
            f" {network_text(found)}",
            field=field,
        )
    return found


EVERYTHING: Final[dict[Family, IpNetwork]] = {
    Family.V4: IPv4Network("0.0.0.0/0"),
    Family.V6: IPv6Network("::/0"),
}
"""What `default` means."""


def text_of(value: IpAddress | None) -> str:
    """Canonical text; empty for none."""
    return "" if value is None else socket.inet_ntop(Family.of(value), value.packed)


def interface_text(value: IpInterface) -> str:
    """The address with its prefix."""
    return f"{text_of(value.ip)}/{value.network.prefixlen}"


def network_text(value: IpNetwork) -> str:
    """`default` for everything, else the prefix, also of one address."""
    if not value.prefixlen:
        return "default"
    return f"{text_of(value.network_address)}/{value.prefixlen}"


def own_mac(text: str, field: str) -> MacAddress:
    """An interface's own MAC address in any spelling; raises BAD_FIELD."""
    try:
        return MacAddress.parse(text.replace("-", ":"))
    except AgentError as error:
        raise invalid(f"{field}: {error.message}", field=field) from error


def device_mac(text: str, field: str) -> MacAddress:
    """The same where a device is looked for by it; raises BAD_ADDRESS."""
    try:
        return MacAddress.parse(text.replace("-", ":"))
    except AgentError as error:
        message = f"{field}: {error.message}"
        raise invalid(message, reason=Reason.BAD_ADDRESS, field=field) from error


def any_mac(text: str, field: str) -> str:
    """Six octets, also of a group (IEEE 802) and all zeros (a VXLAN's default entry)."""
    plain = text[:_LONGEST].replace("-", ":").lower()
    if _OCTETS.fullmatch(plain) is None:
        raise _bad(text, "a MAC address: six octets in hex with colons", field)
    return plain


def _parsed(text: str, family: Family | None) -> IpAddress | None:
    if family is None:
        return _parsed(text, Family.V6 if ":" in text else Family.V4)
    try:
        packed = socket.inet_pton(family, text)
    except (OSError, ValueError):
        return None
    return IPv4Address(packed) if family is Family.V4 else IPv6Address(packed)


def _length(text: str, prefix: str, family: Family, field: str) -> int:
    """No netmasks, which ipaddress would take too."""
    if _PREFIX.fullmatch(prefix) is None or int(prefix) > family.bits:
        raise _bad(text, f"an address with a prefix of 0 to {family.bits}", field)
    return int(prefix)


def _named(family: Family | None) -> str:
    return "IP" if family is None else f"IP{family.word}"


def _bad(text: str, what: str, field: str) -> AgentError:
    return invalid(f"{field}: {text[:80]!r} is not {what}", field=field)

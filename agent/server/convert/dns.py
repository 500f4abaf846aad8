"""What resolv.conf, hosts and hostname shall hold, and what they hold.

Each text becomes a word of a file, so nothing but such a word passes: a line feed in
one would add a line.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, TypeVar

from agent.core.errors import invalid
from agent.core.network import DnsWish, HostEntry
from agent.core.sandbox import check_hostname
from agent.server.convert import fields, inet, linknames
from agent.server.limits import DNS_ENTRIES, HOST_NAMES, HOSTS
from innkeeper.v1 import network_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from agent.core.network import DnsState, IpAddress

T = TypeVar("T")

# RFC 1035 2.3.4: labels of 63 and names of 253 octets as text. Underscores are no host
# names but in use (_domainkey, search domains of clusters).
_LABEL: Final = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_LONGEST_DOMAIN: Final = 254
_ROOT: Final = "."
# As in resolv.conf(5): ndots:5, rotate, use-vc, no-aaaa.
_OPTION: Final = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,62}(?::[A-Za-z0-9.-]{1,32})?")


def dns_wish(told: pb.ApplyDnsRequest) -> DnsWish:
    """Raises BAD_FIELD."""
    fields.at_most(HOSTS, told.hosts, "hosts")
    return DnsWish(
        servers=_each(told.servers, _server, "servers"),
        searches=_each(told.searches, _search, "searches"),
        options=_each(told.options, _option, "options"),
        hosts=tuple(_host(each, f"hosts[{index}]") for index, each in enumerate(told.hosts)),
        hostname=check_hostname(told.hostname),
    )


def dns_state(state: DnsState) -> pb.DnsState:
    """The files' contents, and what they come from."""
    return pb.DnsState(
        resolv_conf=state.resolv_conf,
        hosts=state.hosts,
        hostname=state.hostname,
        warnings=state.warnings,
        changed=state.changed,
        wanted=None if state.wanted is None else _request(state.wanted),
    )


def _request(wish: DnsWish) -> pb.ApplyDnsRequest:
    """What `dns_wish` makes the same wish of."""
    return pb.ApplyDnsRequest(
        servers=map(str, wish.servers),
        searches=wish.searches,
        options=wish.options,
        hosts=[pb.HostEntry(address=str(each.address), names=each.names) for each in wish.hosts],
        hostname=wish.hostname,
    )


def _each(texts: Collection[str], parse: Callable[[str, str], T], name: str) -> tuple[T, ...]:
    fields.at_most(DNS_ENTRIES, texts, name)
    return tuple(parse(text, f"{name}[{index}]") for index, text in enumerate(texts))


def _server(text: str, field: str) -> IpAddress | str:
    """A zone belongs to a link-local address, and only there: it is no part of others."""
    plain, mark, zone = text.partition("%")
    found = inet.neighbour(plain, None, field)
    if not mark:
        return found
    if not (isinstance(found, IPv6Address) and found.is_link_local):
        raise invalid(
            f"{field}: {text[:80]!r} has a zone, which only a link-local IPv6 address has",
            field=field,
        )
    return f"{inet.text_of(found)}%{linknames.new(zone, field)}"


def _search(text: str, field: str) -> str:
    return text if text == _ROOT else _domain(text, field)


def _domain(text: str, field: str) -> str:
    if len(text) > _LONGEST_DOMAIN or _DOMAIN.fullmatch(text) is None:
        raise invalid(f"{field}: {text[:80]!r} is not a domain name", field=field)
    return text


def _option(text: str, field: str) -> str:
    if _OPTION.fullmatch(text) is None:
        raise invalid(
            f"{field}: {text[:80]!r} is not an option of resolv.conf, as ndots:5 is", field=field
        )
    return text


def _host(told: pb.HostEntry, field: str) -> HostEntry:
    names = f"{field}.names"
    if not told.names:
        raise invalid(f"{names}: at least one is needed", field=names)
    fields.at_most(HOST_NAMES, told.names, names)
    return HostEntry(
        address=inet.neighbour(told.address, None, f"{field}.address"),
        names=tuple(_domain(name, f"{names}[{index}]") for index, name in enumerate(told.names)),
    )

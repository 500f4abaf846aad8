"""What resolv.conf, hosts and hostname say.

Formats: resolv.conf(5), hosts(5), hostname(5). That no value brings a line or a word more
than it is was checked where the request came in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agent.core.network import DnsWish

_LOCALHOST: Final = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
_OWN_ADDRESS: Final = "127.0.1.1"
"""Debian's address for the host's own name: it is there without a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsTexts:
    """Contents of the three files, whole."""

    resolv_conf: str
    hosts: str
    hostname: str


def texts_of(wish: DnsWish, hostname: str) -> DnsTexts:
    """What the files shall say, with the host's name."""
    return DnsTexts(
        resolv_conf=_resolv_conf(wish),
        hosts=_LOCALHOST + _own_line(wish, hostname) + _hosts(wish),
        hostname=f"{hostname}\n",
    )


def _resolv_conf(wish: DnsWish) -> str:
    lines = [f"nameserver {server}" for server in wish.servers]
    lines += [f"search {' '.join(wish.searches)}"] if wish.searches else []
    lines += [f"options {' '.join(wish.options)}"] if wish.options else []
    return "".join(f"{line}\n" for line in lines)


def _hosts(wish: DnsWish) -> str:
    return "".join(f"{entry.address} {' '.join(entry.names)}\n" for entry in wish.hosts)


def _own_line(wish: DnsWish, hostname: str) -> str:
    """Nothing where the request says itself which address the name has."""
    asked = any(hostname in entry.names for entry in wish.hosts)
    if asked or hostname in ("", "localhost"):
        return ""
    short = hostname.partition(".")[0]
    names = hostname if short == hostname else f"{hostname} {short}"
    return f"{_OWN_ADDRESS} {names}\n"

"""What is kept of the resolver: the texts of the files, and the wish that they came from."""

from __future__ import annotations

import logging
from dataclasses import asdict
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from agent.core.network import DnsState, DnsWish, HostEntry
from agent.handlers.network.dnstexts import DnsTexts

if TYPE_CHECKING:
    from agent.core.network import IpAddress

log = logging.getLogger(__name__)

_WANTED: Final = "wanted"


def record_of(texts: DnsTexts, wish: DnsWish) -> dict[str, Any]:
    """As JSON holds it."""
    wanted = {
        "servers": [str(server) for server in wish.servers],
        "searches": list(wish.searches),
        "options": list(wish.options),
        "hosts": [[str(entry.address), *entry.names] for entry in wish.hosts],
        "hostname": wish.hostname,
    }
    return {**asdict(texts), _WANTED: wanted}


def state_from(record: dict[str, Any] | None) -> DnsState | None:
    """None for what is no record of this agent's."""
    if record is None:
        return None
    texts = {name: value for name, value in record.items() if name != _WANTED}
    try:
        return state_of(DnsTexts(**texts), _wish(record[_WANTED]))
    except (TypeError, KeyError, ValueError) as error:
        log.warning("what was saved of the resolver is not used: %r", error)
        return None


def state_of(texts: DnsTexts, wish: DnsWish) -> DnsState:
    return DnsState(
        resolv_conf=texts.resolv_conf,
        hosts=texts.hosts,
        hostname=texts.hostname.rstrip("\n"),
        wanted=wish,
    )


def texts_of_state(state: DnsState) -> DnsTexts:
    return DnsTexts(
        resolv_conf=state.resolv_conf, hosts=state.hosts, hostname=f"{state.hostname}\n"
    )


def _wish(wanted: dict[str, Any]) -> DnsWish:
    return DnsWish(
        servers=tuple(map(_server, wanted["servers"])),
        searches=tuple(wanted["searches"]),
        options=tuple(wanted["options"]),
        hosts=tuple(
            HostEntry(address=ip_address(address), names=tuple(names))
            for address, *names in wanted["hosts"]
        ),
        hostname=wanted["hostname"],
    )


def _server(text: str) -> IpAddress | str:
    """One with a zone stays a text, as in `DnsWish`."""
    return text if "%" in text else ip_address(text)

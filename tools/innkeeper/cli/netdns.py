"""Where a guest looks names up: a part of it is changed, the rest stays.

ApplyDns is the wanted state of everything, so what was asked for before is read, and sent
again with the part that is another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.v1 import network_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from innkeeper.v1.network_pb2_grpc import NetworkAsyncStub

KINDS = ("server", "search", "option", "host")
"""As the command line calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Kinds that are said; of those that are None, what is there stays."""

    servers: Sequence[str] | None = None
    searches: Sequence[str] | None = None
    options: Sequence[str] | None = None
    hosts: Sequence[network_pb2.HostEntry] | None = None
    hostname: str = ""
    """Empty: stays."""
    adds: bool = False
    """What is said comes after what is there, instead of in its place."""


async def change(network: NetworkAsyncStub, wanted: Change) -> network_pb2.DnsState:
    now = await network.GetDns(network_pb2.GetDnsRequest())
    return await network.ApplyDns(merged(now.wanted, wanted))


def merged(now: network_pb2.ApplyDnsRequest, wanted: Change) -> network_pb2.ApplyDnsRequest:
    """The name is not sent again: others may have changed it since."""
    return network_pb2.ApplyDnsRequest(
        servers=_kind(now.servers, wanted.servers, adds=wanted.adds),
        searches=_kind(now.searches, wanted.searches, adds=wanted.adds),
        options=_kind(now.options, wanted.options, adds=wanted.adds),
        hosts=_hosts(now.hosts, wanted.hosts, adds=wanted.adds),
        hostname=wanted.hostname,
    )


def _kind(now: Sequence[str], said: Sequence[str] | None, *, adds: bool) -> list[str]:
    if said is None:
        return list(now)
    return list(dict.fromkeys((*now, *said))) if adds else list(said)


def _hosts(
    now: Sequence[network_pb2.HostEntry],
    said: Sequence[network_pb2.HostEntry] | None,
    *,
    adds: bool,
) -> list[network_pb2.HostEntry]:
    if said is None:
        return list(now)
    return [*now, *(entry for entry in said if entry not in now)] if adds else list(said)


def in_words(state: network_pb2.DnsState) -> Iterator[str]:
    """What is set, each file under its name."""
    if not state.HasField("wanted"):
        yield f"host name {state.hostname}; resolv.conf and hosts are the image's own"
        return
    yield f"host name {state.hostname}"
    for name, text in (("resolv.conf", state.resolv_conf), ("hosts", state.hosts)):
        yield f"{name}:" if text else f"{name}: empty"
        yield from (f"  {line}" for line in text.splitlines())

"""What differs between an interface before and after, in the words of the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.core.network import LinkFlag, Queues
from agent.handlers.network.interface_addresses import is_kernels
from agent.handlers.network.interface_sysctls import Ipv6Settings
from agent.handlers.network.planning import on_off

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.core.network import Address, Link, LinkMaking

_FLAGS = {
    LinkFlag.MULTICAST: "multicast",
    LinkFlag.ALLMULTI: "all multicast",
    LinkFlag.PROMISC: "promiscuous mode",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An interface at one moment, as far as requests can change it."""

    link: Link
    addresses: tuple[Address, ...] = ()
    master: str = ""
    making: LinkMaking | None = None
    ipv6: Ipv6Settings = field(default_factory=Ipv6Settings)
    queues: Queues | None = None
    offloads: Mapping[str, bool] = field(default_factory=dict)


def lines(before: View, after: View) -> tuple[str, ...]:
    """One line each; empty where nothing differs that a request could have changed."""
    return tuple(_lines(before, after))


def _lines(before: View, after: View) -> Iterator[str]:
    old, new = before.link, after.link
    yield from _step("name", old.name, new.name)
    yield from _step("mac", old.mac or "none", new.mac or "none")
    yield from _step("mtu", old.mtu, new.mtu)
    yield from _step("master", before.master or "none", after.master or "none")
    queue = "transmit queue length"
    yield from _step(queue, old.transmit_queue_length, new.transmit_queue_length)
    yield from _step("arp", on_off(old.arp), on_off(new.arp))
    for flag, word in _FLAGS.items():
        yield from _step(word, on_off(flag in old.flags), on_off(flag in new.flags))
    if old.up != new.up:
        yield "down -> up" if new.up else "up -> down"
    yield from _making(before.making, after.making)
    yield from _ipv6(before.ipv6, after.ipv6)
    yield from _addresses(before, after)
    yield from _queues(before.queues, after.queues)
    for name in sorted(before.offloads.keys() & after.offloads.keys()):
        yield from _step(
            f"offload {name}", on_off(before.offloads[name]), on_off(after.offloads[name])
        )
    yield from (f"alternative name -{each}" for each in old.altnames if each not in new.altnames)
    yield from (f"alternative name +{each}" for each in new.altnames if each not in old.altnames)


def _step(what: str, before: object, after: object) -> Iterator[str]:
    if before != after:
        yield f"{what} {before} -> {after}"


def _making(before: LinkMaking | None, after: LinkMaking | None) -> Iterator[str]:
    if before is None or after is None:
        return
    yield from _step("stp", on_off(before.stp), on_off(after.stp))
    filtering = (on_off(before.vlan_filtering), on_off(after.vlan_filtering))
    yield from _step("vlan filtering", *filtering)
    delays = (before.forward_delay_millis, after.forward_delay_millis)
    yield from _step("forward delay", *delays)
    yield from _step("mode", before.mode, after.mode)
    yield from _step("miimon", before.miimon, after.miimon)


def _ipv6(before: Ipv6Settings, after: Ipv6Settings) -> Iterator[str]:
    if before.enabled is not None and after.enabled is not None:
        yield from _step("ipv6", on_off(before.enabled), on_off(after.enabled))
    if before.accept_ra is not None and after.accept_ra is not None:
        yield from _step("router advertisements", on_off(before.accept_ra), on_off(after.accept_ra))


def _addresses(before: View, after: View) -> Iterator[str]:
    old, new = _shown(before), _shown(after)
    yield from (f"address -{text}" for text in old if text not in new)
    yield from (f"address +{text}" for text in new if text not in old)


def _shown(view: View) -> list[str]:
    """Those that requests can give and take."""
    return [_text(each) for each in view.addresses if not is_kernels(each, view.link)]


def _text(address: Address) -> str:
    peer = f" peer {address.peer}" if address.peer is not None else ""
    usual = address.interface.network.broadcast_address
    odd = address.broadcast is not None and address.broadcast != usual
    broadcast = f" broadcast {address.broadcast}" if odd else ""
    return f"{address.interface}{peer}{broadcast}"


def _queues(before: Queues | None, after: Queues | None) -> Iterator[str]:
    if before is None or after is None:
        return
    yield from _step("receive queues", before.receive, after.receive)
    yield from _step("transmit queues", before.transmit, after.transmit)
    yield from _step("combined queues", before.combined, after.combined)

"""Interfaces: what they shall be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.core.errors import Reason, invalid
from agent.core.network import AddressWish, Family, InterfaceWish, Queues
from agent.server.convert import fields, inet, linknames
from agent.server.convert.addresses import address as device_address
from agent.server.convert.links import making
from agent.server.limits import (
    ALTERNATIVE_NAMES,
    INTERFACE_ADDRESSES,
    INTERFACE_BATCH,
    OFFLOADS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.core.addresses import Address
    from agent.core.network import LinkMaking
    from innkeeper.v1 import network_pb2 as pb

_FORMS: Final = ("pci_path", "pci_bdf", "mac")
# ETH_GSTRING_LEN (include/uapi/linux/ethtool.h) is 32 with its NUL.
_OFFLOAD: Final = re.compile("[a-z0-9][a-z0-9_-]{0,30}")
_LARGEST_MTU: Final = 2**31 - 1


def interface_wishes(told: pb.ApplyInterfacesRequest) -> tuple[InterfaceWish, ...]:
    """A batch, in which each interface and each name is wanted once."""
    fields.at_most(INTERFACE_BATCH, told.interfaces, "interfaces")
    wishes = tuple(
        interface_wish(each, f"interfaces[{index}]") for index, each in enumerate(told.interfaces)
    )
    fields.no_doubles((wish.subject for wish in wishes), "interfaces")
    fields.no_doubles((wish.name for wish in wishes if wish.name), "interfaces: name")
    return wishes


def interface_wish(told: pb.ApplyInterfaceRequest, field: str = "") -> InterfaceWish:
    """One interface; `field` is where it stands in the request. Raises BAD_FIELD, BAD_ADDRESS."""
    at = f"{field}." if field else ""
    made = making(told, at)
    return InterfaceWish(
        address=_which(told, at, made),
        current_name=_current_name(told, at, made),
        name=linknames.new(told.name, f"{at}name") if told.name else "",
        mtu=fields.within(told.mtu, 0, _LARGEST_MTU, f"{at}mtu"),
        mac=str(inet.own_mac(told.mac, f"{at}mac")) if told.mac else "",
        addresses=_addresses(told, at),
        keep_addresses=told.keep_addresses,
        up=not told.down,
        arp=_maybe(told, "arp"),
        multicast=_maybe(told, "multicast"),
        all_multicast=_maybe(told, "all_multicast"),
        promiscuous=_maybe(told, "promiscuous"),
        master=_master(told, at),
        offloads=_offloads(told.offloads, f"{at}offloads"),
        queues=Queues(
            receive=told.queues.receive,
            transmit=told.queues.transmit,
            combined=told.queues.combined,
        ),
        transmit_queue_length=_length(told),
        ipv6=_maybe(told, "ipv6"),
        accept_router_advertisements=_maybe(told, "accept_router_advertisements"),
        altnames=_alternative_names(told.alternative_names, f"{at}alternative_names"),
        making=made,
        timeout=fields.seconds(told.timeout_seconds, f"{at}timeout_seconds"),
    )


def _which(told: pb.ApplyInterfaceRequest, at: str, made: LinkMaking | None) -> Address | None:
    field = f"{at}address"
    if not told.HasField("address"):
        if not (told.current_name or told.name):
            raise invalid(f"{field}: neither it nor a name says which interface", field=field)
        return None
    if made or told.current_name:
        other = f"link ({made.kind})" if made else "current_name"
        raise invalid(f"{field}: not together with {other}", field=field)
    form = told.address.WhichOneof("address")
    if form == "mac":
        return inet.device_mac(told.address.mac, f"{field}.mac")
    if form is not None and form not in _FORMS:
        raise invalid(
            f"{field}: {form} is not a form in which an interface is looked for: expected one of"
            f" {', '.join(_FORMS)}",
            reason=Reason.BAD_ADDRESS,
            field=field,
        )
    return device_address(told.address, field)


def _current_name(told: pb.ApplyInterfaceRequest, at: str, made: LinkMaking | None) -> str:
    """One that is made gets the name, if it gets no other; else it may be an alternative one."""
    if not told.current_name:
        return ""
    field = f"{at}current_name"
    if made:
        return linknames.new(told.current_name, field)
    return linknames.device(told.current_name, field)


def _addresses(told: pb.ApplyInterfaceRequest, at: str) -> tuple[AddressWish, ...]:
    field = f"{at}addresses"
    fields.at_most(INTERFACE_ADDRESSES, told.addresses, field)
    wishes = tuple(_address(each, f"{field}[{index}]") for index, each in enumerate(told.addresses))
    fields.no_doubles(map(_kernels_key, wishes), field)
    if told.HasField("ipv6") and not told.ipv6:
        for index, wish in enumerate(wishes):
            if wish.interface.version == 6:
                name = f"{field}[{index}].cidr"
                raise invalid(f"{name}: an IPv6 address, and ipv6 is to be off", field=name)
    return wishes


def _address(told: pb.InterfaceAddress, field: str) -> AddressWish:
    interface = inet.interface(told.cidr, f"{field}.cidr")
    family = Family.of(interface)
    if told.broadcast and family is Family.V6:
        raise invalid(f"{field}.broadcast: IPv6 has none", field=f"{field}.broadcast")
    broadcast = inet.v4(told.broadcast, f"{field}.broadcast") if told.broadcast else None
    return AddressWish(
        interface=interface,
        peer=inet.neighbour(told.peer, family, f"{field}.peer") if told.peer else None,
        broadcast=broadcast,
    )


def _kernels_key(wish: AddressWish) -> str:
    """What the kernel tells addresses of one interface apart by: with IPv6 the address alone."""
    if wish.interface.version == 6:
        return inet.text_of(wish.interface.ip)
    peer = f" peer {wish.peer}" if wish.peer else ""
    return f"{inet.interface_text(wish.interface)}{peer}"


def _master(told: pb.ApplyInterfaceRequest, at: str) -> str | None:
    if not told.HasField("master"):
        return None
    return linknames.device(told.master, f"{at}master") if told.master else ""


def _maybe(told: pb.ApplyInterfaceRequest, name: str) -> bool | None:
    value: bool | None = getattr(told, name) if told.HasField(name) else None  # type: ignore[arg-type]
    return value


def _length(told: pb.ApplyInterfaceRequest) -> int | None:
    return told.transmit_queue_length if told.HasField("transmit_queue_length") else None


def _offloads(told: Mapping[str, bool], field: str) -> dict[str, bool]:
    fields.at_most(OFFLOADS, told, field)
    for name in told:
        if _OFFLOAD.fullmatch(name) is None:
            raise invalid(
                f"{field}: {name[:80]!r} is no name of an offload, as tso or"
                " tx-tcp-segmentation are",
                field=field,
            )
    return dict(told)


def _alternative_names(told: Iterable[str], field: str) -> tuple[str, ...]:
    names = tuple(told)
    fields.at_most(ALTERNATIVE_NAMES, names, field)
    for index, name in enumerate(names):
        linknames.alternative(name, f"{field}[{index}]")
    fields.no_doubles(names, field)
    return names

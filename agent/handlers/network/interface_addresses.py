"""Which addresses an interface shall have, and by which changes it gets them: pure.

What the kernel does by itself, and the order that follows from it:
  * an IPv4 address in the subnet of one that is there is its secondary, and goes with it
    (unless net.ipv4.conf.*.promote_secondaries): a subnet whose primary changes is made
    anew as a whole (inet_insert_ifa, __inet_del_ifa in net/ipv4/devinet.c);
  * with its last IPv4 address an interface loses all IPv4 routes: new ones come before old
    ones go, where that does not make them secondaries of those;
  * an IPv6 address is there once, whatever its prefix: another prefix is another address
    (ipv6_add_addr in net/ipv6/addrconf.c);
  * link-local addresses and those of router advertisements are the kernel's own.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.core.network import Address, AddressFlag, Family, LinkFlag, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.core.network import AddressWish, IpAddress, IpNetwork, Link

FOR_EVER: Final = 0xFFFFFFFF

# IFAP_KERNEL_LO, _RA and _LL of <linux/if_addr.h>, since Linux 5.18.
_KERNELS = frozenset({1, 2, 3})
_LINK_LOCAL = ipaddress.IPv6Network("fe80::/64")
_UNUSABLE = AddressFlag.TENTATIVE | AddressFlag.DADFAILED
_BY_KERNEL = AddressFlag.MANAGETEMPADDR | AddressFlag.STABLE_PRIVACY

# What the kernel sets by itself, and what does not make two addresses differ.
_DERIVED = AddressFlag.SECONDARY | _UNUSABLE | AddressFlag.PERMANENT | AddressFlag.DEPRECATED
_COMPARED = AddressFlag.NOPREFIXROUTE | AddressFlag.HOMEADDRESS | AddressFlag.MCAUTOJOIN

_Subnet: TypeAlias = "IpNetwork"


@dataclass(frozen=True, slots=True)
class Add:
    """The address is to be added."""

    address: Address


@dataclass(frozen=True, slots=True)
class Remove:
    """The address is to be removed."""

    address: Address


AddressStep: TypeAlias = Add | Remove


def wanted_address(wish: AddressWish, link: Link) -> Address:
    """The address that a wish means on a link.

    The scope of 127.0.0.0/8 is the host, as with `ip address add`; a broadcast address is
    for links that can broadcast.
    """
    interface = wish.interface
    if isinstance(interface, ipaddress.IPv6Interface):
        return Address(
            index=link.index, interface=interface, peer=wish.peer, flags=AddressFlag.NODAD
        )
    broadcast = wish.broadcast
    short = interface.network.prefixlen < 31 and wish.peer is None
    if broadcast is None and short and LinkFlag.BROADCAST in link.flags:
        broadcast = interface.network.broadcast_address
    return Address(
        index=link.index,
        interface=interface,
        peer=wish.peer,
        broadcast=broadcast,
        scope=Scope.HOST if interface.is_loopback else Scope.UNIVERSE,
    )


def is_kernels(address: Address, link: Link) -> bool:
    """Whether the kernel made an address by itself: it says so, or (before Linux 5.18) it
    is the address that the kernel would make."""
    if address.protocol in _KERNELS:
        return True
    if LinkFlag.LOOPBACK in link.flags and address.interface.is_loopback:
        return address.interface.network.prefixlen in (8, 128)
    if not isinstance(address.interface, ipaddress.IPv6Interface):
        return False
    made = bool(address.flags & _BY_KERNEL) or _is_eui64(address.interface.ip, link.mac)
    return made and (address.interface.network == _LINK_LOCAL or address.valid != FOR_EVER)


def plan(
    now: Sequence[Address], wanted: Sequence[Address], *, link: Link, keep: bool = False
) -> tuple[AddressStep, ...]:
    """The steps from what an interface has to what it shall have, in order.

    Both are in the kernel's order: the first of a subnet is its primary. With `keep` others
    stay, as primaries too. What is there already is not touched.
    """
    staying = [each for each in now if keep or is_kernels(each, link)]
    return (
        *_plan_v6(_of(now, Family.V6), _of(wanted, Family.V6), _of(staying, Family.V6)),
        *_plan_v4(_of(now, Family.V4), _of(wanted, Family.V4), _of(staying, Family.V4)),
    )


def same(there: Address, wanted: Address) -> bool:
    """Whether what is there is what is wanted."""
    if key(there) != key(wanted) or there.broadcast != wanted.broadcast:
        return False
    if (there.flags ^ wanted.flags) & _COMPARED or (there.valid, wanted.valid).count(FOR_EVER) == 1:
        return False
    if there.family is Family.V6:
        return not there.flags & _UNUSABLE or AddressFlag.NODAD not in wanted.flags
    return there.scope == wanted.scope and wanted.label in ("", there.label)


def key(address: Address) -> tuple[object, ...]:
    """What the kernel tells the addresses of an interface apart by."""
    peer = None if address.peer == address.interface.ip else address.peer
    return (address.interface.ip, address.interface.network.prefixlen, peer)


def _of(addresses: Iterable[Address], family: Family) -> list[Address]:
    return [address for address in addresses if address.family is family]


def _is_eui64(ip: IpAddress, mac: str) -> bool:
    """RFC 4291, appendix A: the MAC with ff:fe in its middle and the universal bit turned."""
    octets = bytes.fromhex(mac.replace(":", ""))
    if len(octets) != 6:
        return False
    made = bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return ip.packed[-8:] == made


def _plan_v6(
    now: list[Address], wanted: list[Address], staying: list[Address]
) -> list[AddressStep]:
    missing = [each for each in wanted if not any(same(there, each) for there in now)]
    hosts = {each.interface.ip for each in missing}
    wanted_hosts = {each.interface.ip for each in wanted}
    in_the_way = [each for each in now if each.interface.ip in hosts]
    others = [each for each in now if each not in staying and each.interface.ip not in wanted_hosts]
    return [*map(Remove, in_the_way), *map(_add_v6, missing), *map(Remove, others)]


def _add_v6(address: Address) -> Add:
    """Usable at once: without duplicate address detection."""
    return Add(replace(address, flags=address.flags & ~_DERIVED | AddressFlag.NODAD))


def _plan_v4(
    now: list[Address], wanted: list[Address], staying: list[Address]
) -> list[AddressStep]:
    adding: list[AddressStep] = []
    renewing: list[AddressStep] = []
    removing: list[AddressStep] = []
    for subnet in dict.fromkeys(map(_subnet, (*wanted, *now))):
        there, aim = _in(subnet, now), _aim(subnet, now, wanted, staying)
        going = [each for each in there if each not in aim]
        missing = [each for each in aim if each not in there]
        if (going and aim and going[0] == there[0]) or _moves(there, aim, going):
            renewing += [*map(Remove, reversed(there)), *map(_add_v4, aim)]
        elif aim:
            adding += [*map(Remove, _conflicts(going, missing)), *map(_add_v4, missing)]
            removing += map(
                Remove, [each for each in going if each not in _conflicts(going, missing)]
            )
        else:
            removing += map(Remove, reversed(going))
    return [*adding, *renewing, *removing]


def _aim(
    subnet: _Subnet, now: list[Address], wanted: list[Address], staying: list[Address]
) -> list[Address]:
    """What a subnet shall have, its primary first; what is there as it is there."""
    asked = {key(each): each for each in _in(subnet, wanted)}
    kept = [asked.pop(key(each), each) for each in _in(subnet, staying)]
    return [
        next((there for there in now if same(there, each)), each)
        for each in (*kept, *asked.values())
    ]


def _moves(there: list[Address], aim: list[Address], going: list[Address]) -> bool:
    """Whether another of those that are there has to be the primary."""
    left = [each for each in there if each not in going]
    return bool(left and aim) and aim[0] != there[0]


def _conflicts(going: list[Address], missing: list[Address]) -> list[Address]:
    """Those that have to go before one that differs in broadcast or lifetime alone comes."""
    keys = {key(each) for each in missing}
    return [each for each in going if key(each) in keys]


def _add_v4(address: Address) -> Add:
    return Add(replace(address, flags=address.flags & ~_DERIVED))


def _subnet(address: Address) -> _Subnet:
    far = address.peer or address.interface.ip
    return ipaddress.ip_network((far, address.interface.network.prefixlen), strict=False)


def _in(subnet: _Subnet, addresses: Iterable[Address]) -> list[Address]:
    return [each for each in addresses if _subnet(each) == subnet]

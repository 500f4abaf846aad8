"""Interfaces: what they are, in the words of `ip`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.network import AddressFlag, Family, LinkFlag, scope_word
from agent.server.convert import inet
from innkeeper.v1 import network_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.network import Address, Counters, InterfaceState, Link, Queues

# IFAPROT_KERNEL_LO, _RA and _LL of include/uapi/linux/if_addr.h, since Linux 5.18.
_KERNELS: Final = frozenset({1, 2, 3})

# In the order of iproute2's print_link_flags, which shows no RUNNING: an interface that
# is up without it has NO-CARRIER.
_LINK_FLAGS: Final = tuple(
    (flag, flag.name or "")
    for flag in (
        LinkFlag.LOOPBACK,
        LinkFlag.BROADCAST,
        LinkFlag.POINTOPOINT,
        LinkFlag.MULTICAST,
        LinkFlag.NOARP,
        LinkFlag.ALLMULTI,
        LinkFlag.PROMISC,
        LinkFlag.MASTER,
        LinkFlag.SLAVE,
        LinkFlag.DEBUG,
        LinkFlag.DYNAMIC,
        LinkFlag.AUTOMEDIA,
        LinkFlag.PORTSEL,
        LinkFlag.NOTRAILERS,
        LinkFlag.UP,
        LinkFlag.LOWER_UP,
        LinkFlag.DORMANT,
        LinkFlag.ECHO,
    )
)
# IF_OPER_* of include/uapi/linux/if.h, by number.
_OPERATIONAL_STATES: Final = (
    "unknown",
    "notpresent",
    "down",
    "lowerlayerdown",
    "testing",
    "dormant",
    "up",
)
# ARPHRD_* of include/uapi/linux/if_arp.h, by the words of iproute2's lib/ll_types.c.
_LINK_TYPES: Final = {
    1: "ether",
    24: "ieee1394",
    32: "infiniband",
    280: "can",
    290: "mctp",
    512: "ppp",
    519: "rawip",
    768: "ipip",
    769: "tunnel6",
    772: "loopback",
    776: "sit",
    778: "gre",
    801: "ieee802.11",
    823: "gre6",
    824: "netlink",
    65534: "none",
    65535: "void",
}
_ADDRESS_FLAGS: Final = (
    (AddressFlag.PERMANENT, "permanent"),
    (AddressFlag.NODAD, "nodad"),
    (AddressFlag.TENTATIVE, "tentative"),
    (AddressFlag.DADFAILED, "dadfailed"),
    (AddressFlag.DEPRECATED, "deprecated"),
    (AddressFlag.MANAGETEMPADDR, "mngtmpaddr"),
    (AddressFlag.NOPREFIXROUTE, "noprefixroute"),
    (AddressFlag.OPTIMISTIC, "optimistic"),
    (AddressFlag.HOMEADDRESS, "home"),
    (AddressFlag.MCAUTOJOIN, "autojoin"),
    (AddressFlag.STABLE_PRIVACY, "stable-privacy"),
)


def interface_state(state: InterfaceState) -> pb.InterfaceState:
    """One interface, as the host gets to know it."""
    link = state.link
    return pb.InterfaceState(
        name=link.name,
        ifindex=link.index,
        mac=link.mac,
        mtu=link.mtu,
        addresses=[address_state(each) for each in state.addresses],
        up=link.up,
        pci_path=state.pci_path,
        alternative_names=link.altnames,
        changed=state.changed,
        pci_bdf=state.pci_bdf,
        driver=state.driver,
        flags=link_flags(link),
        operational_state=_operational_state(link.operstate),
        carrier=link.carrier,
        kind=link.kind,
        master=state.master,
        parent=state.parent,
        vlan_id=link.vlan_id,
        permanent_mac=link.permanent_mac,
        statistics=_statistics(link.counters),
        transmit_queue_length=link.transmit_queue_length,
        queues=_queues(state.queues),
        offloads=state.offloads,
        container_id=state.container_id,
        link_type=_LINK_TYPES.get(link.link_type, str(link.link_type)),
        device_id=state.device_id,
    )


def interface_list(states: Iterable[InterfaceState]) -> list[pb.InterfaceState]:
    """By index, those of containers behind those of the sandbox."""
    ordered = sorted(states, key=lambda state: (state.container_id, state.link.index))
    return [interface_state(state) for state in ordered]


def address_state(address: Address) -> pb.InterfaceAddress:
    """One address."""
    return pb.InterfaceAddress(
        cidr=inet.interface_text(address.interface),
        peer=inet.text_of(address.peer),
        broadcast=inet.text_of(address.broadcast),
        scope=scope_word(address.scope),
        flags=_address_flags(address),
        of_kernel=_of_kernel(address),
    )


def link_flags(link: Link) -> list[str]:
    """As `ip link` shows them."""
    words = [word for flag, word in _LINK_FLAGS if flag in link.flags]
    if link.up and LinkFlag.RUNNING not in link.flags:
        words.insert(0, "NO-CARRIER")
    return words


def _of_kernel(address: Address) -> bool:
    if address.protocol in _KERNELS:
        return True
    if address.family is Family.V4:
        return False
    made = AddressFlag.STABLE_PRIVACY | AddressFlag.SECONDARY
    # Older kernels say nothing, but what a request sets is without duplicate detection.
    told = address.interface.is_link_local and AddressFlag.NODAD not in address.flags
    return told or bool(address.flags & made)


def _address_flags(address: Address) -> list[str]:
    words = [word for flag, word in _ADDRESS_FLAGS if flag in address.flags]
    if AddressFlag.SECONDARY in address.flags:
        # One bit: with IPv6 it means a temporary address (RFC 8981).
        words.append("secondary" if address.family is Family.V4 else "temporary")
    return words


def _operational_state(number: int) -> str:
    known = number < len(_OPERATIONAL_STATES)
    return _OPERATIONAL_STATES[number] if known else str(number)


def _queues(queues: Queues | None) -> pb.Queues | None:
    if queues is None:
        return None
    return pb.Queues(receive=queues.receive, transmit=queues.transmit, combined=queues.combined)


def _statistics(counters: Counters) -> pb.InterfaceStatistics:
    return pb.InterfaceStatistics(
        receive_bytes=counters.receive_bytes,
        receive_packets=counters.receive_packets,
        receive_errors=counters.receive_errors,
        receive_dropped=counters.receive_dropped,
        transmit_bytes=counters.transmit_bytes,
        transmit_packets=counters.transmit_packets,
        transmit_errors=counters.transmit_errors,
        transmit_dropped=counters.transmit_dropped,
        multicast=counters.multicast,
        collisions=counters.collisions,
    )

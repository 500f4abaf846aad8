"""Words of the network: what an interface, an address, a route, a rule, a neighbour is.

Two kinds of each: what the kernel has (Link, Address, Route, ...) and what a request
wants (InterfaceWish, ...). Interfaces are numbers (ifindex) below and names in requests.
Facts: include/uapi/linux/{if_link,if_addr,rtnetlink,fib_rules,neighbour}.h.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag, StrEnum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.addresses import Address as DeviceAddress

IpAddress: TypeAlias = IPv4Address | IPv6Address
IpInterface: TypeAlias = IPv4Interface | IPv6Interface
IpNetwork: TypeAlias = IPv4Network | IPv6Network

MAIN_TABLE = 254
LOCAL_TABLE = 255


class Family(IntEnum):
    """IP version, by the number of its address family."""

    V4 = socket.AF_INET
    V6 = socket.AF_INET6

    @property
    def word(self) -> str:
        return "v4" if self is Family.V4 else "v6"

    @property
    def bits(self) -> int:
        return 32 if self is Family.V4 else 128

    @classmethod
    def of(cls, address: IpAddress | IpInterface | IpNetwork) -> Family:
        return cls.V4 if address.version == 4 else cls.V6


class LinkFlag(IntFlag):
    """IFF_* of <linux/if.h>."""

    UP = 0x1
    BROADCAST = 0x2
    DEBUG = 0x4
    LOOPBACK = 0x8
    POINTOPOINT = 0x10
    NOTRAILERS = 0x20
    RUNNING = 0x40
    NOARP = 0x80
    PROMISC = 0x100
    ALLMULTI = 0x200
    MASTER = 0x400
    SLAVE = 0x800
    MULTICAST = 0x1000
    PORTSEL = 0x2000
    AUTOMEDIA = 0x4000
    DYNAMIC = 0x8000
    LOWER_UP = 0x10000
    DORMANT = 0x20000
    ECHO = 0x40000


class AddressFlag(IntFlag):
    """IFA_F_* of <linux/if_addr.h>."""

    NONE = 0
    SECONDARY = 0x01
    NODAD = 0x02
    OPTIMISTIC = 0x04
    DADFAILED = 0x08
    HOMEADDRESS = 0x10
    DEPRECATED = 0x20
    TENTATIVE = 0x40
    PERMANENT = 0x80
    MANAGETEMPADDR = 0x100
    NOPREFIXROUTE = 0x200
    MCAUTOJOIN = 0x400
    STABLE_PRIVACY = 0x800


class Scope(IntEnum):
    """RT_SCOPE_* of <linux/rtnetlink.h>."""

    UNIVERSE = 0
    SITE = 200
    LINK = 253
    HOST = 254
    NOWHERE = 255

    @property
    def word(self) -> str:
        return "global" if self is Scope.UNIVERSE else self.name.lower()


def scope_word(number: int) -> str:
    """`global`, `link` and so on, as `ip` says it; a number where it has no word."""
    try:
        return Scope(number).word
    except ValueError:
        return str(number)


class RouteType(IntEnum):
    """RTN_* of <linux/rtnetlink.h>."""

    UNICAST = 1
    LOCAL = 2
    BROADCAST = 3
    ANYCAST = 4
    MULTICAST = 5
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8
    THROW = 9


class Protocol(IntEnum):
    """RTPROT_* of <linux/rtnetlink.h>: who made a route. Others are plain numbers."""

    UNSPEC = 0
    REDIRECT = 1
    KERNEL = 2
    BOOT = 3
    STATIC = 4
    RA = 9
    DHCP = 16


def protocol_word(number: int) -> str:
    """`boot`, `kernel` and so on, as `ip route` says it; a number where it has no word."""
    try:
        return Protocol(number).name.lower()
    except ValueError:
        return str(number)


KERNELS_OWN = frozenset({Protocol.KERNEL, Protocol.REDIRECT, Protocol.RA})
"""Routes by these are the kernel's: no request sets or removes them."""


class RuleAction(IntEnum):
    """FR_ACT_* of <linux/fib_rules.h>."""

    TABLE = 1
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8


class NeighborState(IntFlag):
    """NUD_* of <linux/neighbour.h>."""

    INCOMPLETE = 0x01
    REACHABLE = 0x02
    STALE = 0x04
    DELAY = 0x08
    PROBE = 0x10
    FAILED = 0x20
    NOARP = 0x40
    PERMANENT = 0x80
    NONE = 0x00


class NeighborFlag(IntFlag):
    """NTF_* of <linux/neighbour.h>."""

    NONE = 0
    USE = 0x01
    SELF = 0x02
    MASTER = 0x04
    PROXY = 0x08
    EXT_LEARNED = 0x10
    OFFLOADED = 0x20
    STICKY = 0x40
    ROUTER = 0x80


class LinkKind(StrEnum):
    """Virtual links that a request can make (IFLA_INFO_KIND)."""

    VLAN = "vlan"
    BRIDGE = "bridge"
    BOND = "bond"
    VRF = "vrf"
    DUMMY = "dummy"
    VETH = "veth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """struct rtnl_link_stats64, the fields that the protocol tells."""

    receive_bytes: int = 0
    receive_packets: int = 0
    receive_errors: int = 0
    receive_dropped: int = 0
    transmit_bytes: int = 0
    transmit_packets: int = 0
    transmit_errors: int = 0
    transmit_dropped: int = 0
    multicast: int = 0
    collisions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One interface as the kernel tells it."""

    index: int
    name: str
    flags: LinkFlag
    mtu: int
    mac: str = ""
    """Lower case with colons; empty where it has none (or all zero: loopback)."""
    permanent_mac: str = ""
    kind: str = ""
    """IFLA_INFO_KIND; empty for hardware and loopback."""
    slave_kind: str = ""
    master: int = 0
    parent: int = 0
    """IFLA_LINK, in the same namespace; 0: none."""
    vlan_id: int = 0
    service_tag: bool = False
    vrf_table: int = 0
    altnames: tuple[str, ...] = ()
    operstate: int = 0
    """RFC 2863 state, IF_OPER_* of <linux/if.h>: 0 unknown, 1 notpresent, 2 down,
    3 lowerlayerdown, 4 testing, 5 dormant, 6 up."""
    carrier: bool = False
    link_type: int = 1
    """ARPHRD_*: 1 ether, 772 loopback, 65534 none."""
    transmit_queue_length: int = 0
    counters: Counters = field(default_factory=Counters, compare=False)

    @property
    def up(self) -> bool:
        return LinkFlag.UP in self.flags

    @property
    def arp(self) -> bool:
        return LinkFlag.NOARP not in self.flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One address of an interface. `interface` has the prefix."""

    index: int
    interface: IpInterface
    peer: IpAddress | None = None
    broadcast: IPv4Address | None = None
    scope: int = Scope.UNIVERSE
    flags: AddressFlag = AddressFlag.NONE
    label: str = ""
    protocol: int = 0
    """IFAP_* since Linux 6.?: 1 kernel loopback, 2 router advertisement, 3 link-local."""
    preferred: int = 0xFFFFFFFF
    valid: int = 0xFFFFFFFF
    """Lifetimes in seconds, 0xFFFFFFFF for ever."""

    @property
    def family(self) -> Family:
        return Family.of(self.interface)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One way of a route; `weight` is 1 and up (the kernel's rtnh_hops is one less)."""

    gateway: IpAddress | None = None
    index: int = 0
    weight: int = 1
    onlink: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route. With several hops `hops` has them all, else exactly one; none for
    blackhole and the like. `flags` are RTNH_F_* but onlink, informational."""

    family: Family
    table: int
    destination: IpNetwork
    type: RouteType = RouteType.UNICAST
    hops: tuple[Hop, ...] = ()
    source: IpAddress | None = None
    metric: int = 0
    scope: int = Scope.UNIVERSE
    mtu: int = 0
    protocol: int = Protocol.BOOT
    tos: int = 0
    from_: IpNetwork | None = None
    """RTA_SRC, IPv6 alone (source routing)."""
    flags: int = field(default=0, compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """What the kernel tells routes apart by: NLM_F_REPLACE acts on this one."""
        return (self.family, self.table, self.destination, self.tos, self.metric, self.from_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One policy rule."""

    family: Family
    priority: int
    action: RuleAction = RuleAction.TABLE
    table: int = 0
    source: IpNetwork | None = None
    destination: IpNetwork | None = None
    incoming: str = ""
    outgoing: str = ""
    mark: int | None = None
    mark_mask: int = 0xFFFFFFFF
    invert: bool = False
    ip_protocol: int = 0
    suppress_prefix_length: int | None = None
    protocol: int = Protocol.BOOT
    """FRA_PROTOCOL; Protocol.KERNEL for the kernel's own."""
    others: bool = field(default=False)
    """It has parts that this word has no place for (ports, uid ranges, tunnel ids)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbor:
    """One neighbour entry (ARP, NDP)."""

    index: int
    address: IpAddress
    mac: str = ""
    state: NeighborState = NeighborState.PERMANENT
    flags: NeighborFlag = NeighborFlag.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """One forwarding entry (family AF_BRIDGE)."""

    index: int
    mac: str
    vlan_id: int = 0
    destination: IpAddress | None = None
    state: NeighborState = NeighborState.PERMANENT
    flags: NeighborFlag = NeighborFlag.SELF


# --- what requests want -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMaking:
    """How a virtual interface is made; the members that its kind does not use keep defaults."""

    kind: LinkKind
    parent: str = ""
    vlan_id: int = 0
    service_tag: bool = False
    stp: bool = False
    vlan_filtering: bool = False
    forward_delay_millis: int = 0
    mode: str = ""
    miimon: int = 0
    table: int = 0
    peer_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Queues of an interface; in a wish 0 means unchanged."""

    receive: int = 0
    transmit: int = 0
    combined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressWish:
    """An address that shall be there."""

    interface: IpInterface
    peer: IpAddress | None = None
    broadcast: IPv4Address | None = None
    """None: the last one of the prefix, where that is shorter than 31 and without a peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceWish:
    """Network.ApplyInterface. None and empty mean unchanged, but for `addresses`."""

    address: DeviceAddress | None = None
    current_name: str = ""
    name: str = ""
    mtu: int = 0
    mac: str = ""
    addresses: tuple[AddressWish, ...] = ()
    keep_addresses: bool = False
    up: bool = True
    arp: bool | None = None
    multicast: bool | None = None
    all_multicast: bool | None = None
    promiscuous: bool | None = None
    master: str | None = None
    """Empty: none; None: unchanged."""
    offloads: Mapping[str, bool] = field(default_factory=dict)
    queues: Queues = field(default_factory=Queues)
    transmit_queue_length: int | None = None
    ipv6: bool | None = None
    accept_router_advertisements: bool | None = None
    altnames: tuple[str, ...] = ()
    making: LinkMaking | None = None
    timeout: float | None = None

    @property
    def subject(self) -> str:
        """How errors call the interface."""
        return str(self.address) if self.address is not None else self.current_name or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceState:
    """An interface with everything that is known of it. Names instead of numbers."""

    link: Link
    addresses: tuple[Address, ...] = ()
    master: str = ""
    parent: str = ""
    driver: str = ""
    pci_path: str = ""
    pci_bdf: str = ""
    device_id: str = ""
    container_id: str = ""
    queues: Queues | None = None
    offloads: Mapping[str, bool] = field(default_factory=dict)
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HopWish:
    """One way of a route, the interface by name."""

    gateway: IpAddress | None = None
    device: str = ""
    weight: int = 1
    onlink: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteWish:
    """A route that shall be there; family and table are its set's."""

    destination: IpNetwork
    type: RouteType = RouteType.UNICAST
    hops: tuple[HopWish, ...] = ()
    """One or several; none for blackhole and the like."""
    source: IpAddress | None = None
    metric: int = 0
    scope: int | None = None
    """None: link without a gateway, global with one."""
    mtu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSet:
    """All routes of one family in one table, but the kernel's own."""

    family: Family
    table: int
    routes: tuple[RouteWish, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """All policy rules of one family, but the kernel's own."""

    family: Family
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesWish:
    """Network.ApplyRoutes."""

    sets: tuple[RouteSet, ...] = ()
    rules: tuple[RuleSet, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesState:
    """All routes and rules now. `names` are the interfaces' by index."""

    routes: tuple[Route, ...]
    rules: tuple[Rule, ...]
    names: Mapping[int, str]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborWish:
    """An entry that shall be there, or (`absent`) not."""

    address: IpAddress
    device: str
    mac: str = ""
    state: NeighborState = NeighborState.PERMANENT
    proxy: bool = False
    absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingWish:
    """A forwarding entry that shall be there, or (`absent`) not."""

    mac: str
    device: str
    vlan_id: int = 0
    of_master: bool = False
    destination: IpAddress | None = None
    state: NeighborState = NeighborState.PERMANENT
    absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborsWish:
    """Network.ApplyNeighbors."""

    neighbors: tuple[NeighborWish, ...] = ()
    forwarding: tuple[ForwardingWish, ...] = ()
    exact_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborsState:
    """All neighbours and forwarding entries now."""

    neighbors: tuple[Neighbor, ...]
    forwarding: tuple[Forwarding, ...]
    names: Mapping[int, str]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """One line of /etc/hosts; the first name is the canonical one."""

    address: IpAddress
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsWish:
    """Network.ApplyDns."""

    servers: tuple[IpAddress | str, ...] = ()
    """A text is a link-local IPv6 address with its zone ("fe80::1%eth0")."""
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    hosts: tuple[HostEntry, ...] = ()
    hostname: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsState:
    """What the files hold now; empty texts before the first Apply."""

    resolv_conf: str
    hosts: str
    hostname: str
    warnings: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """By this Apply, line by line; empty where nobody applied."""
    wanted: DnsWish | None = None
    """What the last Apply asked for."""


class FirewallFormat(StrEnum):
    """How a firewall's rules are written."""

    NFTABLES = "nftables"
    IPTABLES = "iptables"
    IP6TABLES = "ip6tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceGrant:
    """An interface that a container gets."""

    name: str
    container_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LendingOrder:
    """Interfaces that go into a container's network namespace before it starts."""

    container_id: str
    namespace: int
    """A descriptor of it, open as long as the order is carried out."""
    lent: tuple[InterfaceGrant, ...] = ()
    """Those of Containers.Create: they go with all that they have, and come back."""
    moved: tuple[InterfaceGrant, ...] = ()
    """Those of `linux.netDevices`: they go as the OCI specification says, and stay. Their
    new name may end in %d, for a number that the kernel chooses."""

"""Which routes and rules are the kernel's own: no request removes them.

The kernel makes routes with addresses (RTPROT_KERNEL), takes them from routers
(RTPROT_RA, RTPROT_REDIRECT), and has those to itself, broadcasts and multicasts
(include/uapi/linux/rtnetlink.h). Its rules are 0, 32766 and 32767 and, with VRFs, 1000
(net/ipv4/fib_rules.c, drivers/net/vrf.c).
"""

from __future__ import annotations

from ipaddress import IPv6Network
from typing import Final

from agent.core.network import KERNELS_OWN, Family, Protocol, Route, RouteType, Rule, RuleAction

OF_ADDRESSES: Final = frozenset(
    {RouteType.LOCAL, RouteType.BROADCAST, RouteType.ANYCAST, RouteType.MULTICAST}
)
"""Types that no request can make."""

REJECTS: Final = frozenset(
    {RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW}
)
"""Types that lead nowhere, so that they have no next hop."""

KERNEL_PRIORITIES: Final = frozenset({0, 32766, 32767})

_MULTICAST: Final = IPv6Network("ff00::/8")
_ADDRCONF_METRIC: Final = 256
"""IP6_RT_PRIO_ADDRCONF: of the routes that IPv6 makes for each interface."""


def is_kernels(route: Route) -> bool:
    """Whether the kernel made this route."""
    if route.protocol in KERNELS_OWN or route.type in OF_ADDRESSES:
        return True
    # Kernels before 5.0 made it as a unicast route without a protocol.
    return (
        route.family is Family.V6
        and route.metric == _ADDRCONF_METRIC
        and route.destination == _MULTICAST
    )


def is_kernels_rule(rule: Rule) -> bool:
    """Whether the kernel made this rule. One that looks into no table of its own is that
    of VRFs (FRA_L3MDEV)."""
    of_vrf = rule.action is RuleAction.TABLE and not rule.table
    return rule.protocol == Protocol.KERNEL or rule.priority in KERNEL_PRIORITIES or of_vrf

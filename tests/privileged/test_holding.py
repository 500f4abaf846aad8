"""What an interface has, read and given back; ip(8) is the witness of before and after."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.core.network import LinkKind, LinkMaking
from agent.handlers.network import holding_data
from agent.handlers.network.holding import Holding, give_back, held, plan
from tests.fakes.failing_netlink import FailingNetlink
from tests.privileged.counts import STEP
from tests.privileged.netlab import Lab, lab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces"),
]

HAS = """
link set va mtu 1400
link set va txqueuelen 500
link set va promisc on
link set va allmulticast on
link property add dev va altname the-interface-of-the-test
link set vb up
link set va up
address add 192.0.2.1/24 dev va
address add 192.0.2.2/24 dev va
address add 198.51.100.1 peer 198.51.100.2/32 dev va
address add 203.0.113.1/25 brd 203.0.113.127 label va:one dev va
address add 2001:db8::1/64 dev va nodad
address add 2001:db8:1::1/64 dev va noprefixroute nodad
route add default via 192.0.2.254
route add 198.18.0.0/24 via 192.0.2.253 metric 7 mtu 1300 src 192.0.2.2
route add 198.18.1.0/24 dev va table 77 scope link
route add 198.18.2.0/24 via 10.9.9.9 dev va onlink
-6 route add default via 2001:db8::ff metric 9
-6 route add 2001:db8:5::/48 dev va table 78
-6 route add 2001:db8:6::/48 via fe80::1 dev va
neigh add 192.0.2.77 lladdr 02:00:00:00:00:01 dev va
neigh add 2001:db8::77 lladdr 02:00:00:00:00:02 dev va
neigh add proxy 192.0.2.78 dev va
"""

LOSSES = {
    "down": ["link set va down"],
    "down and up": ["link set va down", "link set va up"],
    "flushed": ["-4 address flush dev va", "-6 address flush dev va scope global"],
    "renamed": ["link set va down", "link set va name other", "link set other up"],
    "another MAC address": ["link set va down", "link set va address 02:00:00:00:00:99"],
    "without IPv6": ["link set va mtu 1279"],
    "other flags": ["link set va promisc off allmulticast off multicast off arp off"],
    "its names gone": ["link property del dev va altname the-interface-of-the-test"],
    "more than before": [
        "address add 10.0.0.1/8 dev va",
        "address add 192.0.2.3/24 dev va",
        "route add 10.8.0.0/16 via 10.0.0.2",
        "-6 route add 2001:db8:9::/48 dev va",
        "neigh add 192.0.2.79 lladdr 02:00:00:00:00:09 dev va",
        "neigh replace 192.0.2.77 lladdr 02:00:00:00:00:0a dev va",
        "link property add dev va altname another",
    ],
    "the primary gone": ["address del 192.0.2.1/24 dev va"],
    "another primary": ["address del 192.0.2.1/24 dev va", "address add 192.0.2.1/24 dev va"],
    "in a bridge": ["link add name br0 type bridge", "link set va master br0"],
}


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with lab() as made:
        await made.up("lo")
        await made.make("va", LinkMaking(kind=LinkKind.VETH, peer_name="vb"))
        yield made


def give(net: Lab, *lines: str) -> None:
    for line in lines:
        net.ip(*line.split())


def everything(net: Lab) -> dict[str, Any]:
    """What `ip` tells of va, without what the kernel makes of IPv6 addresses and of a
    carrier some time after they are there."""
    links = net.ip("-j", "-d", "address", "show", "dev", "va")
    for link in links:
        for name in ("operstate", "qdisc"):
            # An interface gets its queueing with the first time that it is up.
            link.pop(name)
        link["addr_info"] = sorted(map(_address, link["addr_info"]), key=_place)
    routes = [
        route | {"flags": [flag for flag in route["flags"] if flag != "linkdown"]}
        for family in ("-4", "-6")
        for route in net.ip("-j", family, "route", "show", "table", "all")
        if route.get("dev") == "va" and not _comes_later(family, route)
    ]
    neighbours = [
        *net.ip("-j", "neigh", "show", "dev", "va", "nud", "permanent"),
        *net.ip("-j", "neigh", "show", "proxy"),
    ]
    return {
        "links": links,
        "routes": sorted(json.dumps(route, sort_keys=True) for route in routes),
        "neighbours": sorted(json.dumps(each, sort_keys=True) for each in neighbours),
    }


def _comes_later(family: str, route: dict[str, Any]) -> bool:
    """Of an IPv6 address the kernel makes these in a work queue (addrconf_dad_work in
    net/ipv6/addrconf.c), without duplicate address detection too."""
    return family == "-6" and ("type" in route or route["dst"].startswith("fe80:"))


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What was there before and is not now, and the other way round."""
    found = []
    for kind in before:
        old, new = (list(map(str, state[kind])) for state in (before, after))
        found += [f"- {each}" for each in old if each not in new]
        found += [f"+ {each}" for each in new if each not in old]
    return found


def _address(address: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in address.items() if name != "tentative"}


def _place(address: dict[str, Any]) -> tuple[str, ...]:
    """Of one IPv4 network the order counts, the others come as they do."""
    if address["family"] == "inet6":
        return ("6", address["local"])
    network = ipaddress.ip_interface(f"{address['local']}/{address['prefixlen']}").network
    return ("4", str(network))


async def of(net: Lab) -> Holding:
    return await held(net.netlink, (await net.link("va")).index, net.deadline)


@pytest.mark.parametrize("loss", LOSSES)
async def test_given_back(net: Lab, loss: str) -> None:
    give(net, *HAS.strip().splitlines())
    before, holding = everything(net), await of(net)
    give(net, *LOSSES[loss])
    left = await give_back(net.netlink, holding, net.deadline)
    assert left == ()
    assert differences(before, everything(net)) == []
    assert plan(await of(net), holding) == ()


async def test_nothing_lost_nothing_done(net: Lab) -> None:
    give(net, *HAS.strip().splitlines())
    holding = await of(net)
    counting = FailingNetlink(net.netlink, 0)
    assert await give_back(counting, holding, net.deadline) == ()
    assert counting.made == []


async def test_an_interface_without_anything(net: Lab) -> None:
    holding, before = await of(net), everything(net)
    give(net, *HAS.strip().splitlines()[:12], "link set vb down")
    assert await give_back(net.netlink, holding, net.deadline) == ()
    assert differences(before, everything(net)) == []


@pytest.mark.parametrize("done", [False, True])
async def test_a_refusal_does_not_stop_the_rest(net: Lab, done: bool) -> None:
    """Whichever change fails once: it is asked for again with the next round."""
    give(net, *HAS.strip().splitlines())
    before, holding = everything(net), await of(net)
    number = 1
    while True:
        give(net, *LOSSES["renamed"])
        failing = FailingNetlink(net.netlink, number, done=done)
        assert await give_back(failing, holding, net.deadline) == ()
        assert differences(before, everything(net)) == []
        if failing.seen < number:
            return
        number += STEP


async def test_what_can_not_be_given_back_is_told(net: Lab) -> None:
    """The name is another interface's by now; everything else comes back."""
    give(net, *HAS.strip().splitlines())
    holding = await of(net)
    index = holding.link.index
    give(net, "link set va name vc", "link set vb name va", "address flush dev vc")
    left = await give_back(net.netlink, holding, net.deadline)
    assert len(left) == 1
    assert "rename vc to va" in left[0]
    assert os.strerror(errno.EEXIST) in left[0]
    now = await held(net.netlink, index, net.deadline)
    assert now.routes == holding.routes
    assert {each.interface for each in now.addresses} == {
        each.interface for each in holding.addresses
    }


async def test_another_interfaces_route_to_the_same_place_stays(net: Lab) -> None:
    give(
        net,
        "link set va up",
        "link set vb up",
        "address add 192.0.2.1/24 dev va",
        "address add 198.51.100.1/24 dev vb",
        "route add default via 192.0.2.9",
    )
    holding = await of(net)
    give(net, "route del default", "route add default via 198.51.100.9")
    assert await give_back(net.netlink, holding, net.deadline) == ()
    defaults = [route["gateway"] for route in net.ip("-j", "route", "show", "default")]
    assert defaults == ["198.51.100.9", "192.0.2.9"]


async def test_a_route_of_several_ways_is_told_apart_and_comes_back(net: Lab) -> None:
    give(
        net,
        "link set va up",
        "link set vb up",
        "address add 192.0.2.1/24 dev va",
        "address add 198.51.100.1/24 dev vb",
        "route add 203.0.113.0/24 nexthop via 192.0.2.9 weight 3 nexthop via 198.51.100.9",
    )
    before, holding = net.ip("-j", "route"), await of(net)
    assert holding.routes == ()
    assert [str(route.destination) for route in holding.shared] == ["203.0.113.0/24"]
    give(net, "route del 203.0.113.0/24")
    assert await give_back(net.netlink, holding, net.deadline) == ()
    assert net.ip("-j", "route") == before
    assert holding.apart().shared == ()


async def test_an_interface_that_is_gone(net: Lab) -> None:
    holding = await of(net)
    give(net, "link del va")
    left = await give_back(net.netlink, holding, net.deadline)
    assert len(left) == 1
    assert f"index {holding.link.index}" in left[0]


async def test_through_json_and_back(net: Lab) -> None:
    give(net, *HAS.strip().splitlines())
    holding = await of(net)
    data = json.loads(json.dumps(holding_data.to_data(holding)))
    assert holding_data.from_data(data) == holding


async def test_for_another_interface(net: Lab) -> None:
    """By its index and under its name: as for one that came back as another."""
    give(net, *HAS.strip().splitlines())
    holding = dataclasses.replace(await of(net), shared=())
    give(net, "link del va", "link add va type veth peer name vb", "link set vb up")
    index = (await net.link("va")).index
    assert index != holding.link.index
    left = await give_back(net.netlink, holding, net.deadline, index=index, name="new0")
    assert left == ()
    [link] = net.ip("-j", "address", "show", "dev", "new0")
    assert link["address"] == holding.link.mac
    labels = {each["local"]: each["label"] for each in link["addr_info"] if "label" in each}
    assert labels["192.0.2.1"] == "new0"
    assert labels["203.0.113.1"] == "new0:one"
    assert [route["gateway"] for route in net.ip("-j", "route", "show", "default")] == [
        "192.0.2.254"
    ]

"""Routes and rules on the real kernel, told by the real ip(8)."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import itertools
import os
import random
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import (
    Family,
    HopWish,
    RouteSet,
    RoutesState,
    RoutesWish,
    RouteWish,
    Rule,
    RuleSet,
)
from agent.handlers.network.routes import Routes
from tests.fakes.failing_netlink import FailingNetlink
from tests.fakes.route_words import v4, v6, wish
from tests.privileged.counts import often
from tests.privileged.netlab import Lab
from tests.privileged.routelab import (
    apply,
    assert_put_back,
    batch,
    everything,
    routes,
    wired,
)

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

SOAK = bool(os.environ.get("INNKEEPER_SOAK"))


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with wired() as made:
        yield made


def _shown(found: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(route.get(key) for key in keys) for route in found]


def _destinations(found: list[dict[str, Any]]) -> set[str]:
    return {route["dst"] for route in found}


async def test_the_family_is_said_and_not_guessed(net: Lab) -> None:
    """cases.md 71."""
    await apply(net, v4("default via 192.0.2.1 dev e0"))
    await apply(net, v6("default dev e0"))
    assert _shown(routes(net, v6=True), "dst", "dev", "gateway") == [("default", "e0", None)]
    assert _shown(routes(net), "dst", "dev", "gateway") == [("default", "e0", "192.0.2.1")]


async def test_routes_of_the_kernel_satisfy(net: Lab) -> None:
    """cases.md 72."""
    batch(net, "addr add 10.244.0.7/24 dev e1")
    before = net.ip("-d", "-j", "route", "show", "10.244.0.0/24")
    state = await apply(
        net,
        v4("10.244.0.0/24 dev e1 scope link", "default via 10.244.0.1"),
        v6("fe80::/64 dev e1", "fe80::/64 dev e0", "2001:db8::/64 dev e0"),
    )
    assert state.changed == ("v4 table 254: +default via 10.244.0.1 dev e1",)
    assert net.ip("-d", "-j", "route", "show", "10.244.0.0/24") == before
    assert routes(net, v6=True) == []


async def test_any_order_of_routes_will_do(net: Lab) -> None:
    """cases.md 73."""
    await apply(
        net,
        v6("::/0 via 2001:db8:ff::1", "2001:db8:ff::1/128 dev e0"),
        v4("default via 203.0.113.1", "203.0.113.1/32 dev e0"),
    )
    assert _shown(routes(net), "dst", "gateway", "scope") == [
        ("default", "203.0.113.1", "global"),
        ("203.0.113.1", None, "link"),
    ]
    assert _destinations(routes(net, v6=True)) == {"default", "2001:db8:ff::1"}


async def test_a_gateway_off_link_is_refused_in_the_kernels_words(net: Lab) -> None:
    """cases.md 73; and nothing is left of the request."""
    before = everything(net)
    with pytest.raises(AgentError) as caught:
        await apply(net, v4("10.0.0.0/8 dev e1", "default via 203.0.113.1 dev e0"))
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert "Nexthop has invalid gateway" in caught.value.message
    assert "onlink" in str(caught.value)
    assert everything(net) == before
    await apply(net, v4("default via 203.0.113.1 dev e0 onlink"))
    assert routes(net)[0]["flags"] == ["onlink"]


async def test_no_gateway_is_behind_another_gateway(net: Lab) -> None:
    """The kernel does not look twice, in either family."""
    with pytest.raises(AgentError, match="invalid gateway"):
        await apply(net, v4("10.1.0.0/16 via 192.0.2.1", "10.2.0.0/16 via 10.1.0.1"))
    with pytest.raises(AgentError, match="No route to host"):
        await apply(net, v6("2001:db8:a::/48 via 2001:db8::1", "2001:db8:b::/48 via 2001:db8:a::1"))
    assert routes(net) == routes(net, v6=True) == []


async def test_an_interface_that_is_down_is_refused_with_what_to_do(net: Lab) -> None:
    batch(net, "link set e1 down")
    with pytest.raises(AgentError) as caught:
        await apply(net, v4("10.0.0.0/8 dev e1"))
    assert caught.value.fields["errno"] == errno.errorcode[errno.ENETDOWN]
    assert "bring the interface up" in str(caught.value)


async def test_hosts_and_defaults(net: Lab) -> None:
    """cases.md 76 and 77: what ipaddress makes of the texts goes through as it is."""
    await apply(
        net,
        v4("192.0.2.9 via 192.0.2.1 dev e0", "0.0.0.0/0 dev e0"),
        v6(
            "fc00::2 via 2001:db8::1",
            "2000::0002 via 2001:DB8::1",
            "::ffff:192.0.2.1 via 2001:db8:0:0::1",
            "::/0 via 2001:DB8::0001",
        ),
    )
    assert _destinations(routes(net)) == {"default", "192.0.2.9"}
    assert _destinations(routes(net, v6=True)) == {
        "default",
        "fc00::2",
        "2000::2",
        "::ffff:192.0.2.1",
    }
    assert {route["gateway"] for route in routes(net, v6=True)} == {"2001:db8::1"}


async def test_everything_that_a_route_can_say(net: Lab) -> None:
    await apply(
        net,
        v4(
            "10.1.0.0/16 via 192.0.2.1 src 198.51.100.10 metric 7 mtu 1300",
            "10.2.0.0/16 dev e0 scope host",
            "10.3.0.0/16 nexthop via 192.0.2.1 weight 3 nexthop via 9.9.9.9 dev e1 onlink",
            "10.4.0.0/16 via fe80::1 dev e0",
            "blackhole 10.5.0.0/16",
            "unreachable 10.6.0.0/16 metric 3",
            "throw 10.7.0.0/16",
            table=100,
        ),
    )
    found = {route["dst"]: route for route in routes(net, table="100")}
    first = found["10.1.0.0/16"]
    assert (first["prefsrc"], first["metric"]) == ("198.51.100.10", 7)
    assert first["metrics"] == [{"mtu": 1300}]
    assert found["10.2.0.0/16"]["scope"] == "host"
    ways = [
        (hop["gateway"], hop["weight"], hop["flags"]) for hop in found["10.3.0.0/16"]["nexthops"]
    ]
    assert ways == [("192.0.2.1", 3, []), ("9.9.9.9", 1, ["onlink"])]
    assert found["10.4.0.0/16"]["via"] == {"family": "inet6", "host": "fe80::1"}
    assert [found[f"10.{n}.0.0/16"]["type"] for n in (5, 6, 7)] == [
        "blackhole",
        "unreachable",
        "throw",
    ]


async def test_everything_that_an_ipv6_route_can_say(net: Lab) -> None:
    await apply(
        net,
        v6(
            "2001:db8:a::/48 via 2001:db8::1 src 2001:db8:1::10 metric 7 mtu 1300",
            "2001:db8:b::/48 nexthop via fe80::1 dev e1 weight 4 nexthop via 2001:db8::1",
            "2001:db8:c::/48 via 2001:db8:77::1 dev e0 onlink",
            "prohibit 2001:db8:d::/48",
            "2001:db8:e::/48 dev e0",
            "2001:db8:e::/48 dev e1",
        ),
    )
    found = {route["dst"]: route for route in routes(net, v6=True)}
    first = found["2001:db8:a::/48"]
    assert (first["prefsrc"], first["metric"]) == ("2001:db8:1::10", 7)
    assert first["metrics"] == [{"mtu": 1300}]
    ways = found["2001:db8:b::/48"]["nexthops"]
    assert [(hop["gateway"], hop["dev"], hop["weight"]) for hop in ways] == [
        ("fe80::1", "e1", 4),
        ("2001:db8::1", "e0", 1),
    ]
    assert found["2001:db8:c::/48"]["flags"] == ["onlink"]
    assert found["2001:db8:d::/48"]["type"] == "prohibit"
    assert _shown(routes(net, v6=True), "dst").count(("2001:db8:e::/48",)) == 2


async def test_a_replaced_route_of_several_ways_leaves_none_of_them(net: Lab) -> None:
    """IPv6 keeps each way as a route: NLM_F_REPLACE and APPEND act on them."""
    several = "nexthop via fe80::1 dev e0 nexthop via fe80::2 dev e1 nexthop via fe80::3 dev e1"
    await apply(net, v6(f"default {several}"))
    for way in ("via fe80::9 dev e1", several, "dev e0", several, "dev e1", "via fe80::9 dev e0"):
        await apply(net, v6(f"default {way}"))
        (found,) = routes(net, v6=True)
        assert len(found.get("nexthops", [1])) == max(1, way.count("nexthop"))
    await apply(net, v6("prohibit default"))
    await apply(net, v6(f"default {several}"))
    await apply(net, v6())
    assert routes(net, v6=True) == []


async def test_the_kernels_route_of_the_same_key_stays(net: Lab) -> None:
    """NLM_F_REPLACE would take it, as it is the first of its key."""
    kernels = [route for route in net.ip("-j", "route") if route["dst"] == "192.0.2.0/24"]
    await apply(net, v4("192.0.2.0/24 via 198.51.100.1"))
    await apply(net, v4("192.0.2.0/24 via 198.51.100.2"))
    both = [route for route in net.ip("-j", "route") if route["dst"] == "192.0.2.0/24"]
    assert [route.get("gateway") for route in both] == ["198.51.100.2", None]
    await apply(net, v4())
    left = [route for route in net.ip("-j", "route") if route["dst"] == "192.0.2.0/24"]
    assert left == kernels


async def test_routes_of_routers_stay(net: Lab) -> None:
    """As the kernel makes them of advertisements: RTPROT_RA, metric 1024."""
    batch(net, "route add ::/0 via fe80::99 dev e1 proto ra metric 1024")
    await apply(net, v6("default via 2001:db8::1 metric 10"))
    await apply(net, v6())
    (left,) = net.ip("-j", "-6", "route", "show", "default")
    assert (left["gateway"], left["protocol"]) == ("fe80::99", "ra")


async def test_tables_are_apart(net: Lab) -> None:
    await apply(
        net, v4("default via 192.0.2.1", table=100), v4("default via 192.0.2.2", table=4000)
    )
    await apply(net, v4(table=100))
    assert routes(net, table="100") == []
    assert _shown(routes(net, table="4000"), "gateway") == [("192.0.2.2",)]


async def test_what_was_listed_can_be_applied(net: Lab) -> None:
    batch(
        net,
        """
        route add 10.1.0.0/16 via 192.0.2.1 proto static metric 9 mtu 1400
        route append 10.1.0.0/16 via 192.0.2.2 proto dhcp metric 9
        route add 2001:db8:f::/48 proto static nexthop via 2001:db8::1 nexthop via fe80::1 dev e1
        route add unreachable 10.9.0.0/16
        """,
    )
    counting = FailingNetlink(net.netlink, 0)
    listed = await Routes(net.netlink).list(net.deadline, table=254)
    sets = [
        RouteSet(
            family=family,
            table=254,
            routes=tuple(_wished_again(listed, family)),
        )
        for family in Family
    ]
    await Routes(counting).apply(wish(*sets), net.deadline)
    assert counting.seen == 0


def _wished_again(listed: RoutesState, family: Family) -> Iterator[RouteWish]:
    for route in listed.routes:
        if route.family is family:
            yield RouteWish(
                destination=route.destination,
                type=route.type,
                hops=tuple(
                    HopWish(
                        gateway=hop.gateway,
                        device=listed.names[hop.index],
                        weight=hop.weight,
                        onlink=hop.onlink,
                    )
                    for hop in route.hops
                ),
                source=route.source,
                metric=route.metric,
                scope=route.scope,
                mtu=route.mtu,
            )


async def test_a_list_is_what_ip_tells(net: Lab) -> None:
    await apply(net, v4("default via 192.0.2.1 metric 5"), v6("default via fe80::1 dev e1"))
    state = await Routes(net.netlink).list(net.deadline)
    for family, option in ((Family.V4, "-4"), (Family.V6, "-6")):
        told = net.ip("-j", option, "route", "show", "table", "all")
        mine = [route for route in state.routes if route.family is family]
        assert len(mine) == len(told)
        rules = net.ip("-j", option, "rule")
        assert [rule.priority for rule in state.rules if rule.family is family] == [
            rule["priority"] for rule in rules
        ]
    one = await Routes(net.netlink).list(net.deadline, table=77, family=Family.V6)
    assert one.routes == ()


# --- rules ------------------------------------------------------------------------------


def _rules(*rules: Rule) -> tuple[RuleSet, ...]:
    return (RuleSet(family=Family.V4, rules=rules),)


def _rule(priority: int, **parts: Any) -> Rule:
    return Rule(family=Family.V4, priority=priority, table=parts.pop("table", 100), **parts)


async def test_rules_become_what_they_shall_be(net: Lab) -> None:
    first = _rule(100, incoming="e0", mark=0, mark_mask=0xFF)
    await apply(net, rules=_rules(first, _rule(200, ip_protocol=6, invert=True)))
    told = {rule["priority"]: rule for rule in net.ip("-j", "rule")}
    assert set(told) == {0, 100, 200, 32766, 32767}
    assert (told[100]["iif"], told[100]["fwmark"], told[100]["fwmask"]) == ("e0", "0", "0xff")
    assert told[200]["ipproto"] in ("tcp", "ipproto-6")
    await apply(net, rules=_rules(_rule(200, suppress_prefix_length=0, table=254)))
    assert [rule["priority"] for rule in net.ip("-j", "rule")] == [0, 200, 32766, 32767]
    await apply(net, rules=_rules())
    assert [rule["priority"] for rule in net.ip("-j", "rule")] == [0, 32766, 32767]


async def test_rules_with_parts_that_requests_do_not_know_go_exactly(net: Lab) -> None:
    batch(
        net,
        """
        rule add pref 100 from 192.0.2.10 lookup 100 sport 80
        rule add pref 100 from 192.0.2.10 lookup 100
        rule add pref 100 from 192.0.2.10 lookup 100 uidrange 0-9
        rule add pref 150 goto 200
        rule add pref 1000 l3mdev protocol kernel
        """,
    )
    kept = _rule(100, source=_network("192.0.2.10/32"))
    await apply(net, rules=_rules(kept))
    told = net.ip("-d", "-j", "rule")
    assert [rule["priority"] for rule in told] == [0, 100, 1000, 32766, 32767]
    assert "sport" not in told[1]
    assert "uid_start" not in told[1]


async def test_rules_are_put_back_with_parts_that_requests_do_not_know(net: Lab) -> None:
    batch(
        net,
        """
        rule add pref 100 from 192.0.2.10 lookup 100 sport 80
        rule add pref 100 from 192.0.2.10 lookup 100 dport 8000-9000
        rule add pref 100 lookup 7 uidrange 0-9
        rule add pref 150 goto 32766
        """,
    )
    shall = wish(v4("default via 192.0.2.1", table=100), rules=_rules(_rule(100), _rule(101)))
    await _every_failure(net, shall)


def _network(text: str) -> Any:
    return ipaddress.ip_network(text)


# --- failures ---------------------------------------------------------------------------


async def _every_failure(net: Lab, shall: RoutesWish) -> None:
    """Fail each change once, before or after it is made; then nothing fails."""
    before = everything(net)
    for number in itertools.count(1):
        for done in (False, True) if SOAK else (number % 2 == 0,):
            failing = FailingNetlink(net.netlink, number, done=done)
            try:
                await Routes(failing).apply(shall, net.deadline)
            except AgentError as error:
                assert_put_back(error)
                assert everything(net) == before, (number, done, shall)
            if failing.seen < number:
                return  # it ended by itself, or the kernel refused it


async def test_a_caller_that_leaves_takes_its_changes_along(net: Lab) -> None:
    await apply(net, v4("default via 192.0.2.1"))
    before = everything(net)
    reached = asyncio.Event()

    class Stuck(FailingNetlink):
        async def change(self, *changes: Any, deadline: Any) -> None:
            await super().change(*changes, deadline=deadline)
            if not reached.is_set():
                reached.set()
                await asyncio.Event().wait()

    job = asyncio.create_task(
        Routes(Stuck(net.netlink, 0)).apply(
            wish(v4("default via 198.51.100.1", "10.0.0.0/8 dev e0")), net.deadline
        )
    )
    await reached.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert everything(net) == before


async def test_a_route_that_outlived_the_way_to_its_gateway_is_put_back(net: Lab) -> None:
    """The kernel takes such a route only with the way there."""
    batch(
        net,
        """
        route add 203.0.113.1/32 dev e0
        route add default via 203.0.113.1 dev e0
        route del 203.0.113.1/32 dev e0
        route add 2001:db8:ff::1/128 dev e0
        route add ::/0 via 2001:db8:ff::1 dev e0
        route del 2001:db8:ff::1/128 dev e0
        """,
    )
    await _every_failure(
        net, wish(v4("default dev e1"), v6("default dev e1", "2001:db8:b::/48 dev e0"))
    )
    assert _shown(routes(net, v6=True), "dev") == [("e0",), ("e1",)]


V4_POOL = [
    f"{destination} {way}"
    for destination in ("default", "10.0.0.0/8", "192.0.2.0/24", "203.0.113.1/32")
    for way in (
        "via 192.0.2.1",
        "via 198.51.100.1 dev e1 mtu 1400",
        "via 203.0.113.1 dev e0 metric 5",
        "dev e1 metric 5",
        "dev e0",
        "via 9.9.9.9 dev e1 onlink",
        "via fe80::1 dev e0",
        "nexthop via 192.0.2.1 nexthop via 198.51.100.1 weight 2",
    )
] + ["blackhole 10.0.0.0/8", "prohibit default", "unreachable 10.0.0.0/8 metric 5"]
V6_POOL = [
    f"{destination} {way}"
    for destination in ("default", "2001:db8:a::/48", "2001:db8::/64", "2001:db8:ff::1/128")
    for way in (
        "via 2001:db8::1",
        "via 2001:db8:1::1 dev e1 mtu 1400",
        "via 2001:db8:ff::1 dev e0 metric 5",
        "via 2001:db8::5 dev e0 metric 256",
        "dev e1 metric 5",
        "dev e0",
        "via 2001:db8:99::9 dev e1 onlink",
        "nexthop via 2001:db8::1 nexthop via fe80::1 dev e1 weight 2",
    )
] + ["blackhole 2001:db8:a::/48", "2001:db8::5/128 via fe80::1 dev e0"]


def _random_wish(chance: random.Random) -> RoutesWish:
    sets = [
        make(*_of_different_keys(chance, pool), table=table)
        for make, pool in ((v4, V4_POOL), (v6, V6_POOL))
        for table in (254, 100)
        if chance.random() < 0.8
    ]
    rules = [
        _rule(priority, **parts)
        for priority in (100, 200)
        if (parts := chance.choice([None, {"incoming": "e0"}, {"table": 7}, {"mark": 1}]))
    ]
    return wish(*sets, rules=_rules(*rules) if chance.random() < 0.7 else ())


def _of_different_keys(chance: random.Random, pool: list[str]) -> list[str]:
    """At most one of each destination and metric."""
    found: dict[tuple[str, str], str] = {}
    for text in chance.sample(pool, chance.randint(0, 5)):
        words = text.split()
        destination = words[1] if words[0] in ("blackhole", "prohibit", "unreachable") else words[0]
        metric = words[words.index("metric") + 1] if "metric" in words else "0"
        found.setdefault((destination, metric), text)
    return list(found.values())


async def _live(net: Lab, chance: random.Random, wishes: int) -> None:
    """Wanted sets one after the other; the kernel refuses some, which changes nothing."""
    for _ in range(wishes):
        shall = _random_wish(chance)
        before = everything(net)
        try:
            await apply(net, *shall.sets, rules=shall.rules)
        except AgentError as error:
            assert_put_back(error)
            assert everything(net) == before, shall


@pytest.mark.parametrize("seed", range(200 if SOAK else 3))
async def test_random_wanted_states_end_in_themselves(net: Lab, seed: int) -> None:
    await _live(net, random.Random(seed), 20 if SOAK else often(10))


@pytest.mark.parametrize("seed", range(100 if SOAK else 1 + often(1)))
async def test_each_failure_puts_back_what_was(net: Lab, seed: int) -> None:
    chance = random.Random(seed)
    await _live(net, chance, 2)
    batch(net, "route append 10.0.0.0/8 dev p1 metric 5\nroute append 2001:db8:a::/48 dev p1")
    for _ in range(10 if SOAK else often(5)):
        await _every_failure(net, _random_wish(chance))


# --- without a gap ----------------------------------------------------------------------


class _Traffic:
    """A thread of the namespace that asks for a way to somewhere, again and again."""

    def __init__(self, net: Lab) -> None:
        self.asked = 0
        self.failures: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: net.within(self._ask))

    def _ask(self) -> None:
        while not self._over.is_set():
            for family, address in (
                (socket.AF_INET, "203.0.113.77"),
                (socket.AF_INET6, "2001:db8:77::1"),
            ):
                with socket.socket(family, socket.SOCK_DGRAM) as asking:
                    try:
                        asking.connect((address, 9))
                    except OSError as error:
                        self.failures.append(f"{address}: {error}")
                self.asked += 1

    def __enter__(self) -> _Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


async def test_a_default_route_is_never_missing_while_it_is_replaced(net: Lab) -> None:
    ways = [
        (v4("default via 192.0.2.1"), v6("default via 2001:db8::1")),
        (v4("default via 192.0.2.2"), v6("default via 2001:db8::2")),
        (v4("default via 198.51.100.1"), v6("default via 2001:db8:1::1")),
        (v4("default via 198.51.100.1 metric 9"), v6("default via 2001:db8:1::1 metric 9")),
        (v4("default dev e0 metric 3"), v6("default dev e0")),
        (
            v4("default nexthop via 192.0.2.1 nexthop via 198.51.100.1"),
            v6("default nexthop via 2001:db8::1 nexthop via fe80::1 dev e1"),
        ),
        (v4("203.0.113.1 dev e0", "default via 203.0.113.1"), v6("default via fe80::1 dev e0")),
        (
            v4("default via 9.9.9.9 dev e1 onlink mtu 1300"),
            v6("default via fe80::1 dev e1 mtu 1300"),
        ),
    ]
    chance = random.Random(1)
    await apply(net, *ways[0])
    with _Traffic(net) as traffic:
        for _ in range(500 if SOAK else often(60)):
            seen = traffic.asked
            await Routes(net.netlink).apply(wish(*chance.choice(ways)), net.deadline)
            assert traffic.asked >= seen
    assert traffic.asked
    assert traffic.failures == []


async def test_a_refused_default_route_leaves_the_old_one_all_the_time(net: Lab) -> None:
    await apply(net, v4("default via 192.0.2.1 metric 5"), v6("default via 2001:db8::1 metric 5"))
    with _Traffic(net) as traffic:
        for _ in range(often(20)):
            for bad in (v4("default via 203.0.113.9 dev e0"), v6("default via 2001:db8:9::9")):
                with pytest.raises(AgentError):
                    await Routes(net.netlink).apply(wish(bad), net.deadline)
    assert traffic.asked
    assert traffic.failures == []


async def test_thousands_of_routes(net: Lab) -> None:
    count = 5000 if SOAK else often(1000)
    texts = [f"10.{n // 250}.{n % 250}.0/24 via 192.0.2.1" for n in range(count)]
    state = await apply(net, v4(*texts, table=100))
    assert len(routes(net, table="100")) == count
    assert len(state.changed) == min(count, 256)
    if count > 256:
        assert state.changed[-1] == f"and {count - 255} more"
    texts[0] = texts[0].replace("192.0.2.1", "192.0.2.2")
    state = await apply(net, v4(*texts, table=100))
    assert state.changed == (
        "v4 table 100: -10.0.0.0/24 via 192.0.2.1 dev e0",
        "v4 table 100: +10.0.0.0/24 via 192.0.2.2 dev e0",
    )

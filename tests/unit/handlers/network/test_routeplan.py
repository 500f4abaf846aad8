"""The order of changes. Situations are the kernel's: what it refuses, in which order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.network import Family, Route
from agent.handlers.network.routegroups import Op, Step
from agent.handlers.network.routeplan import RoutePlan, plan
from tests.fakes.fib import Fib
from tests.fakes.route_words import there

pytestmark = [pytest.mark.unit, pytest.mark.network]


def _steps(planned: RoutePlan) -> list[Step]:
    return [step for part in (*planned.making, planned.removing) for step in part]


def _ops(planned: RoutePlan) -> list[tuple[Op, str]]:
    return [(step.op, str(step.route.destination)) for step in _steps(planned)]


def test_routes_on_link_come_before_the_gateways_behind_them() -> None:
    """cases.md 73, in the order given there, of both families."""
    planned = plan(
        [],
        [
            there("default via 2001:db8:ff::1 dev e0", Family.V6),
            there("2001:db8:ff::1/128 dev e0", Family.V6),
            there("default via 198.51.100.1 dev e0"),
            there("198.51.100.1/32 dev e0"),
        ],
    )
    assert _ops(planned) == [
        (Op.ADD, "2001:db8:ff::1/128"),
        (Op.ADD, "198.51.100.1/32"),
        (Op.ADD, "::/0"),
        (Op.ADD, "0.0.0.0/0"),
    ]


def test_an_ipv4_route_comes_after_the_ipv6_route_to_its_gateway() -> None:
    planned = plan(
        [],
        [
            there("default via 2001:db8:ff::1 dev e0"),
            there("2001:db8:ff::1/128 dev e0", Family.V6),
        ],
    )
    assert _ops(planned) == [(Op.ADD, "2001:db8:ff::1/128"), (Op.ADD, "0.0.0.0/0")]


def test_a_route_by_another_metric_is_there_before_the_former_goes() -> None:
    planned = plan(
        [there("default via 192.0.2.1 dev e0 metric 100")],
        [there("default via 192.0.2.1 dev e0 metric 200")],
    )
    assert [step.route.metric for part in planned.making for step in part] == [200]
    assert [(step.op, step.route.metric) for step in planned.removing] == [(Op.REMOVE, 100)]


def test_what_hides_an_ipv6_gateway_goes_first() -> None:
    """ip6_route_check_nh: a gateway that is itself behind a gateway is no gateway."""
    link = there("2001:db8::/64 dev e0", Family.V6)
    hiding = there("2001:db8::5/128 via fe80::1 dev e0", Family.V6)
    planned = plan([link, hiding], [link, there("default via 2001:db8::5 dev e0", Family.V6)])
    assert _ops(planned) == [(Op.REMOVE, "2001:db8::5/128"), (Op.ADD, "::/0")]


def test_of_two_routes_the_one_that_hides_the_other_ones_gateway_is_last() -> None:
    link = there("2001:db8::/64 dev e0", Family.V6)
    planned = plan(
        [],
        [
            there("2001:db8::5/128 via fe80::1 dev e0", Family.V6),
            there("default via 2001:db8::5 dev e0", Family.V6),
            link,
        ],
    )
    assert _ops(planned)[1:] == [(Op.ADD, "::/0"), (Op.ADD, "2001:db8::5/128")]


def test_the_default_route_waits_for_its_successor_although_it_covers_every_gateway() -> None:
    link = there("2001:db8::/64 dev e0", Family.V6)
    old = there("default via fe80::1 dev e0 metric 10", Family.V6)
    new = there("default via 2001:db8::5 dev e0 metric 20", Family.V6)
    assert _ops(plan([link, old], [link, new])) == [(Op.ADD, "::/0"), (Op.REMOVE, "::/0")]


def test_the_same_is_no_change() -> None:
    routes = [there("default via 192.0.2.1 dev e0"), there("198.51.100.0/24 dev e1")]
    assert not plan(routes, list(reversed(routes)))


DESTINATIONS = ["default", "198.51.100.0/24", "198.51.100.0/25", "203.0.113.9/32"]
WAYS = ["via 192.0.2.1 dev e0", "via 192.0.2.1 dev e1", "dev e0", "dev e1 mtu 1400"]
_route = st.builds(
    lambda destination, way, metric: there(f"{destination} {way} metric {metric}"),
    st.sampled_from(DESTINATIONS),
    st.sampled_from(WAYS),
    st.sampled_from([0, 5]),
)
_routes = st.lists(_route, unique_by=lambda route: route.key, max_size=8)


@settings(max_examples=200, deadline=None)
@given(_routes, _routes)
def test_a_destination_that_stays_is_there_all_the_time(
    now: list[Route], target: list[Route]
) -> None:
    fib = Fib(now)
    staying = {r.destination for r in now} & {r.destination for r in target}
    for step in _steps(plan(now, target)):
        fib.do(step)
        assert staying <= {route.destination for route in fib.routes}
    assert set(fib.routes) == set(target)
    assert not plan(fib.routes, target)

"""Routes of one key, on the kernel's rules for their order (tests/fakes/fib.py)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.network import Family, Route
from agent.handlers.network.kernelroutes import is_kernels
from agent.handlers.network.routegroups import Op, group_plan
from tests.fakes.fib import Fib
from tests.fakes.route_words import there

pytestmark = [pytest.mark.unit, pytest.mark.network]

D4 = "198.51.100.0/24"
D6 = "2001:db8:d::/48"

V4_OURS = [
    f"{D4} via 192.0.2.1 dev e0",
    f"{D4} via 192.0.2.2 dev e0",
    f"{D4} via 192.0.2.1 dev e1",
    f"{D4} via 192.0.2.1 dev e0 mtu 1400",
    f"{D4} via 192.0.2.1 dev e0 src 192.0.2.9",
    f"{D4} dev e0",
    f"{D4} dev e0 scope global",
    f"{D4} dev e1 src 192.0.2.9",
    f"blackhole {D4}",
    f"{D4} nexthop via 192.0.2.1 dev e0 nexthop via 192.0.2.2 dev e1 weight 3",
]
V6_DEVICE = [f"{D6} dev e0", f"{D6} dev e1", f"{D6} dev e0 mtu 1400", f"prohibit {D6}"]
V6_GATEWAY = [
    f"{D6} via fe80::1 dev e0",
    f"{D6} via fe80::2 dev e0",
    f"{D6} via fe80::1 dev e1 mtu 1400",
    f"{D6} nexthop via fe80::1 dev e0 nexthop via fe80::2 dev e1 weight 2",
]


def _carry_out(now: list[Route], target: list[Route]) -> tuple[list[Route], bool]:
    """What is there afterwards, and whether something was there all the time."""
    fib = Fib(now)
    key = (now or target)[0].key
    plan = group_plan(now, target)
    steady = True
    for step in (*plan.making, *plan.removing):
        assert not is_kernels(step.route)
        fib.do(step)
        steady = steady and bool(fib.group(key))
    return fib.group(key), steady


def _ours(routes: list[Route]) -> list[Route]:
    return [route for route in routes if not is_kernels(route)]


@pytest.mark.parametrize("family", list(Family))
def test_one_for_one_is_a_replacement(family: Family) -> None:
    texts = V4_OURS if family is Family.V4 else V6_DEVICE + V6_GATEWAY
    for old in texts:
        for new in texts:
            if old != new:
                plan = group_plan([there(old, family)], [there(new, family)])
                assert [step.op for step in plan.making] == [Op.REPLACE], (old, new)
                assert not plan.removing


def test_a_route_of_the_kernel_is_not_replaced() -> None:
    """A REPLACE takes the first of the key, whoever made it."""
    kernels = there(f"{D4} dev e0 proto kernel src 198.51.100.7")
    new = there(f"{D4} via 192.0.2.1 dev e1")
    plan = group_plan([kernels], [new, kernels])
    assert [(step.op, step.route) for step in plan.making] == [(Op.PREPEND, new)]
    assert _carry_out([kernels], [new, kernels]) == ([new, kernels], True)


def test_an_ipv6_route_does_not_join_the_one_it_follows() -> None:
    """Without NLM_F_REPLACE the kernel makes two ways of one route of them."""
    old, new = (
        there(f"{D6} via fe80::1 dev e0", Family.V6),
        there(f"{D6} via fe80::2 dev e0", Family.V6),
    )
    router = there(f"{D6} via fe80::9 dev e1 proto ra", Family.V6)
    assert _carry_out([router, old], [router, new])[0] == [router, new]


def test_a_removal_does_not_take_the_one_that_says_more() -> None:
    """`ip route del D dev e0` takes the first one by e0, with or without a source."""
    more = there(f"{D4} dev e0 src 192.0.2.9")
    less = there(f"{D4} dev e0")
    assert _carry_out([more, less], [more])[0] == [more]
    assert _carry_out([less, more], [more])[0] == [more]


@st.composite
def _v4_lists(draw: st.DrawFn, size: int) -> tuple[list[Route], list[Route]]:
    """Two lists of one key, with the same routes of the kernel ahead, behind or not."""
    kernels = [there(f"{D4} dev e0 proto kernel src 198.51.100.7")] * draw(st.integers(0, 1))
    found = []
    for _ in range(2):
        ours = draw(st.lists(st.sampled_from(V4_OURS), unique=True, max_size=size))
        place = draw(st.integers(0, len(ours)))
        routes = [there(text) for text in ours]
        found.append([*routes[:place], *kernels, *routes[place:]])
    return found[0], found[1]


@settings(max_examples=300, deadline=None)
@given(_v4_lists(3))
def test_ipv4_ends_in_the_wanted_order(lists: tuple[list[Route], list[Route]]) -> None:
    now, target = lists
    if now or target:
        assert _carry_out(now, target)[0] == target


@settings(max_examples=200, deadline=None)
@given(_v4_lists(1))
def test_ipv4_is_never_without_a_route_meanwhile(lists: tuple[list[Route], list[Route]]) -> None:
    now, target = lists
    if now and target:
        assert _carry_out(now, target)[1]


@st.composite
def _v6_list(draw: st.DrawFn) -> list[Route]:
    gateway = draw(st.lists(st.sampled_from(V6_GATEWAY), max_size=1))
    device = draw(st.lists(st.sampled_from(V6_DEVICE[:2]), unique=True, max_size=2))
    single = draw(st.sampled_from([[], V6_DEVICE[2:3], V6_DEVICE[3:]]))
    texts = draw(st.sampled_from([gateway, device, single]))
    return [there(text, Family.V6) for text in texts]


@settings(max_examples=300, deadline=None)
@given(_v6_list(), _v6_list(), st.booleans())
def test_ipv6_ends_in_the_wanted_order(
    now: list[Route], target: list[Route], advertised: bool
) -> None:
    router = [there(f"{D6} via fe80::9 dev e1 proto ra", Family.V6)] * advertised
    if not now and not target:
        return
    there_now, steady = _carry_out([*router, *now], [*router, *target])
    assert _ours(there_now) == target
    assert there_now[: len(router)] == router
    if len(now) == len(target) == 1:
        assert steady

"""What was changed, in words."""

from __future__ import annotations

import pytest

from agent.core.network import Family
from agent.handlers.network.reportlines import capped
from agent.handlers.network.routereport import route_lines
from agent.handlers.network.routetexts import route_text
from tests.fakes.route_words import names, there

pytestmark = [pytest.mark.unit, pytest.mark.network]


@pytest.mark.parametrize(
    "text",
    [
        "default via 192.0.2.1 dev e0",
        "default via 192.0.2.1 dev e0 onlink src 192.0.2.9 metric 5 mtu 1400",
        "198.51.100.0/24 dev e1",
        "198.51.100.0/24 dev e1 scope host",
        "blackhole 198.51.100.0/24 metric 7",
        "default nexthop via 192.0.2.1 dev e0 weight 1 nexthop dev e1 weight 3",
        "203.0.113.9 via fe80::1 dev e0",
    ],
)
def test_a_route_reads_as_ip_writes_it(text: str) -> None:
    assert route_text(there(text), names()) == text


def test_what_a_route_was_comes_before_what_it_is() -> None:
    before = [there("default via 192.0.2.1 dev e0"), there("10.0.0.0/8 dev e0")]
    after = [there("default via 192.0.2.2 dev e0"), there("10.0.0.0/8 dev e0")]
    gone = [there("2001:db8::/32 dev e0", Family.V6, table=9)]
    lines = [
        "v4 table 254: -default via 192.0.2.1 dev e0",
        "v4 table 254: +default via 192.0.2.2 dev e0",
        "v6 table 9: -2001:db8::/32 dev e0 metric 1024",
    ]
    assert route_lines(before + gone, after, names()) == (lines, 0)


def test_routes_beyond_256_are_counted_alone() -> None:
    routes = [there(f"10.0.{number}.0/24 dev e0") for number in range(256)]
    routes += [there(f"10.1.{number}.0/24 dev e0") for number in range(256)]
    lines, more = route_lines([], reversed(routes), names())
    assert (len(lines), more) == (256, 256)
    assert lines[0] == "v4 table 254: +10.0.0.0/24 dev e0"
    assert capped(lines, more=more)[-1] == "and 257 more"


def test_at_most_256_lines_the_last_of_which_counts_the_rest() -> None:
    lines = [str(n) for n in range(1000)]
    assert capped(lines[:256]) == tuple(lines[:256])
    assert len(capped(lines)) == 256
    assert capped(lines)[-1] == "and 745 more"

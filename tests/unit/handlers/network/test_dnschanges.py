"""What changed in names, line by line."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from agent.core.network import DnsWish, HostEntry
from agent.handlers.network.dnschanges import wish_lines

pytestmark = [pytest.mark.unit, pytest.mark.network]

A, B, C = (ip_address(f"192.0.2.{number}") for number in (1, 2, 3))


def lines(before: DnsWish | None, after: DnsWish) -> list[str]:
    return list(wish_lines(before, after))


def test_each_kind_has_its_word() -> None:
    wish = DnsWish(
        servers=(A, "fe80::1%eth0"),
        searches=("example.org",),
        options=("ndots:5",),
        hosts=(HostEntry(address=B, names=("db.lab", "db")),),
    )
    told = [
        *("server 192.0.2.1", "server fe80::1%eth0", "search example.org"),
        *("option ndots:5", "hosts 192.0.2.2 db.lab db"),
    ]
    assert lines(None, wish) == [line.replace(" ", " +", 1) for line in told]
    assert lines(wish, DnsWish()) == [line.replace(" ", " -", 1) for line in told]
    assert lines(wish, wish) == []


def test_what_goes_is_told_before_what_comes() -> None:
    told = lines(DnsWish(servers=(A, B)), DnsWish(servers=(A, C)))
    assert told == ["server -192.0.2.2", "server +192.0.2.3"]


def test_another_order_is_a_change() -> None:
    """resolv.conf(5): the resolver queries them in the order listed."""
    assert lines(DnsWish(servers=(A, B)), DnsWish(servers=(B, A))) == ["server: another order"]
    told = lines(DnsWish(servers=(A, B)), DnsWish(servers=(B, A, C)))
    assert told == ["server +192.0.2.3", "server: another order"]


def test_one_that_is_there_twice_counts_twice() -> None:
    assert lines(DnsWish(servers=(A, A)), DnsWish(servers=(A,))) == ["server -192.0.2.1"]
    assert lines(DnsWish(servers=(A, B, A)), DnsWish(servers=(A, B))) == ["server -192.0.2.1"]


def test_a_name_is_no_change_of_the_kinds() -> None:
    assert lines(DnsWish(), DnsWish(hostname="web")) == []

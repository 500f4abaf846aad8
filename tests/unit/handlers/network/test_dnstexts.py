"""What resolv.conf, hosts and hostname say. Formats: resolv.conf(5), hosts(5)."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from agent.core.network import DnsWish, HostEntry
from agent.handlers.network.dnstexts import texts_of

pytestmark = [pytest.mark.unit, pytest.mark.network]

LOCALHOST = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
WISH = DnsWish(
    servers=(ip_address("192.0.2.53"), ip_address("2001:db8::53"), "fe80::1%eth0"),
    searches=("example.org", "_tcp.example.org.", "."),
    options=("ndots:5", "rotate", "edns0"),
    hosts=(HostEntry(address=ip_address("192.0.2.10"), names=("db.example.org", "db")),),
)


def test_the_three_files() -> None:
    texts = texts_of(WISH, "web")
    assert texts.resolv_conf == (
        "nameserver 192.0.2.53\nnameserver 2001:db8::53\nnameserver fe80::1%eth0\n"
        "search example.org _tcp.example.org. .\noptions ndots:5 rotate edns0\n"
    )
    assert texts.hosts == f"{LOCALHOST}127.0.1.1 web\n192.0.2.10 db.example.org db\n"
    assert texts.hostname == "web\n"


def test_nothing_wanted_is_nothing_but_localhost_and_the_name() -> None:
    texts = texts_of(DnsWish(), "web")
    assert texts.resolv_conf == ""
    assert texts.hosts == f"{LOCALHOST}127.0.1.1 web\n"


def test_a_name_with_a_domain_is_found_without_it_too() -> None:
    assert "127.0.1.1 web.example.org web\n" in texts_of(DnsWish(), "web.example.org").hosts


def test_the_hosts_own_name_is_where_the_request_says() -> None:
    entry = HostEntry(address=ip_address("192.0.2.7"), names=("web.example.org", "web"))
    assert texts_of(DnsWish(hosts=(entry,)), "web").hosts == (
        f"{LOCALHOST}192.0.2.7 web.example.org web\n"
    )


def test_localhost_is_no_name_of_its_own() -> None:
    assert texts_of(DnsWish(), "localhost").hosts == LOCALHOST

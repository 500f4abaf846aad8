"""IP and MAC addresses, from text and to text."""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv6Address,
    ip_address,
    ip_interface,
    ip_network,
)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError, Reason
from agent.core.network import Family
from agent.server.convert import inet

pytestmark = [pytest.mark.unit, pytest.mark.network]

V4, V6 = Family.V4, Family.V6


# RFC 5952 4 and 5, and what glibc's inet_ntop(3) makes of it, as `ip` shows it.
@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("2001:DB8::1", "2001:db8::1"),
        ("2000::0002", "2000::2"),
        ("2001:0db8:0:0:0:0:2:1", "2001:db8::2:1"),
        ("2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
        ("2001:0:0:1:0:0:0:1", "2001:0:0:1::1"),
        ("::ffff:c000:201", "::ffff:192.0.2.1"),
        ("0:0:0:0:0:0:0:0", "::"),
        ("192.0.2.1", "192.0.2.1"),
    ],
)
def test_texts_are_canonical(text: str, canonical: str) -> None:
    found = inet.address(text, None, "x")
    assert found == ip_address(text)
    assert inet.text_of(found) == canonical


def test_a_mapped_address_stays_ipv6() -> None:
    assert inet.address("::ffff:192.0.2.1", V6, "x") == IPv6Address("::ffff:192.0.2.1")
    with pytest.raises(AgentError):
        inet.address("::ffff:192.0.2.1", V4, "x")


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "192.0.2", "192.0.2.1.", "192.0.2.01", "0300.0.2.1", "0xc0.0.2.1"),
        *("192.0.2.256", " 192.0.2.1", "192.0.2.1\n", "192.0.2.1/24", "3221225985"),
        *("fe80::1%eth0", "fe80::1%1", ":::", "1::2::3", "12345::", "[::1]", "::1/64"),
        *("192.0.2.1\0", "\uff11.1.1.1", "localhost", "x" * 1_000_000),
    ],
)
def test_what_is_no_address(text: str) -> None:
    for family in (None, V4, V6):
        with pytest.raises(AgentError) as caught:
            inet.address(text, family, "routes[3].gateway")
        assert caught.value.reason is Reason.BAD_FIELD
        assert caught.value.fields["field"] == "routes[3].gateway"
        assert len(caught.value.message) < 300


@given(st.text(alphabet="0123456789abcf:.%/x \n", max_size=24))
def test_nothing_is_taken_that_ipaddress_refuses(text: str) -> None:
    for family, kind in ((V4, IPv4Address), (V6, IPv6Address)):
        try:
            found = inet.address(text, family, "x")
        except AgentError:
            continue
        assert found == kind(text)


@given(st.ip_addresses(), st.integers(0, 128))
def test_prefixes_come_back_as_they_went(address: IPv4Address | IPv6Address, length: int) -> None:
    prefix = ip_network((address, min(length, address.max_prefixlen)), strict=False)
    family = Family.of(address)
    text = inet.network_text(prefix)
    assert inet.network(text, family, "x") == prefix
    assert (text == "default") == (prefix.prefixlen == 0)


@given(st.ip_addresses(), st.integers(0, 128))
def test_interfaces_come_back_as_they_went(address: IPv4Address | IPv6Address, length: int) -> None:
    found = ip_interface((address, min(length, address.max_prefixlen)))
    if address.is_multicast or address.is_unspecified:
        with pytest.raises(AgentError):
            inet.interface(str(found), "x")
    else:
        again = inet.interface(inet.interface_text(found), "x")
        assert (again, type(again)) == (found, type(found))


@given(st.ip_addresses(), st.integers(0, 128))
def test_bits_behind_a_prefix_are_refused(address: IPv4Address | IPv6Address, length: int) -> None:
    length = min(length, address.max_prefixlen)
    meant = ip_network((address, length), strict=False)
    text = f"{address}/{length}"
    if meant.network_address == address:
        assert inet.network(text, Family.of(address), "x") == meant
        return
    with pytest.raises(AgentError) as caught:
        inet.network(text, Family.of(address), "x")
    assert caught.value.message.endswith(inet.network_text(meant))


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("02:00:00:AA:bb:01", "02:00:00:aa:bb:01"),
        ("02-00-00-aa-BB-01", "02:00:00:aa:bb:01"),
    ],
)
def test_a_mac_address_in_any_spelling(text: str, mac: str) -> None:
    assert str(inet.own_mac(text, "x")) == mac
    assert str(inet.device_mac(text, "x")) == mac
    assert inet.any_mac(text, "x") == mac


@pytest.mark.parametrize("text", ["01:00:5e:00:00:01", "00:00:00:00:00:00"])
def test_a_group_address_is_nobodys_own_and_an_entrys(text: str) -> None:
    assert inet.any_mac(text, "x") == text
    with pytest.raises(AgentError) as caught:
        inet.own_mac(text, "x")
    assert caught.value.reason is Reason.BAD_FIELD
    with pytest.raises(AgentError) as caught:
        inet.device_mac(text, "x")
    assert caught.value.reason is Reason.BAD_ADDRESS


@pytest.mark.parametrize(
    "text",
    [
        *("", "02:00:00:aa:bb", "02:00:00:aa:bb:01:02", "0200.00aa.bb01", "02:00:00:aa:bb:1"),
        *(":".join(["00"] * 20), "02:00:00:aa:bb:0g", "02:00:00:aa:bb:01\n", "x" * 1_000_000),
    ],
)
def test_what_is_no_mac_address(text: str) -> None:
    """InfiniBand's of 20 octets cannot be set."""
    for parse in (inet.own_mac, inet.device_mac, inet.any_mac):
        with pytest.raises(AgentError) as caught:
            parse(text, "x")
        assert len(caught.value.message) < 400

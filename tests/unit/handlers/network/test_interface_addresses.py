"""Which addresses come and go, proved on a model of what the kernel does by itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.network import Address, AddressFlag, AddressWish, Family, Link, LinkFlag, Scope
from agent.handlers.network.interface_addresses import (
    Add,
    AddressStep,
    Remove,
    is_kernels,
    key,
    plan,
    same,
    wanted_address,
)

pytestmark = [pytest.mark.unit, pytest.mark.network]

MAC = "52:54:00:12:34:56"
LINK = Link(index=2, name="eth0", flags=LinkFlag.BROADCAST | LinkFlag.UP, mtu=1500, mac=MAC)
EUI64 = "fe80::5054:ff:fe12:3456/64"

POOL = (
    "192.0.2.1/24",
    "192.0.2.2/24",
    "192.0.2.3/24",
    "192.0.2.3/25",
    "198.51.100.1/24",
    "198.51.100.2/24",
    "10.0.0.1/31",
    "2001:db8::1/64",
    "2001:db8::1/72",
    "2001:db8::2/64",
    "2001:db8:1::1/128",
)


def wished(text: str) -> Address:
    return wanted_address(AddressWish(interface=ipaddress.ip_interface(text)), LINK)


class Kernel:
    """IPv4: a second one of a subnet is a secondary, and goes with the primary. IPv6: an
    address once."""

    def __init__(self, there: Sequence[Address] = ()) -> None:
        self.there = list(there)

    def do(self, step: AddressStep) -> None:
        match step:
            case Add(address):
                self._add(address)
            case Remove(address):
                self._remove(address)

    def _add(self, address: Address) -> None:
        if address.family is Family.V6:
            assert all(each.interface.ip != address.interface.ip for each in self.there)
            self.there.append(address)
            return
        assert all(key(each) != key(address) for each in self.there), "File exists"
        mates = [each for each in self._v4() if _mates(each, address)]
        flags = AddressFlag.SECONDARY if mates else AddressFlag.NONE
        self.there.append(replace(address, flags=address.flags | flags))

    def _remove(self, address: Address) -> None:
        if address not in self.there:
            # Gone with its primary: the caller takes EADDRNOTAVAIL.
            return
        self.there.remove(address)
        if address.family is Family.V4 and AddressFlag.SECONDARY not in address.flags:
            self.there = [each for each in self.there if not _mates(each, address)]

    def _v4(self) -> list[Address]:
        return [each for each in self.there if each.family is Family.V4]


def _mates(one: Address, other: Address) -> bool:
    return one.interface.network == other.interface.network


def reached(kernel: Kernel, wanted: list[Address], *, keep: bool = False) -> int:
    """Plans and does until nothing is left; how often."""
    for rounds in range(3):
        steps = plan(kernel.there, wanted, link=LINK, keep=keep)
        if not steps:
            return rounds
        for step in steps:
            kernel.do(step)
    raise AssertionError(f"it does not end: {plan(kernel.there, wanted, link=LINK, keep=keep)}")


def texts(addresses: Sequence[Address]) -> set[str]:
    return {str(each.interface) for each in addresses}


def once_each(chosen: list[str]) -> list[str]:
    """An IPv6 address has one prefix."""
    return list({text.split("/")[0] if ":" in text else text: text for text in chosen}.values())


lists = st.lists(st.sampled_from(POOL), max_size=6, unique=True).map(once_each)


@given(lists, lists)
def test_it_ends_with_what_is_wanted_and_in_one_go(before: list[str], after: list[str]) -> None:
    kernel = Kernel()
    reached(kernel, [wished(text) for text in before])
    assert reached(kernel, [wished(text) for text in after]) <= 1
    assert texts(kernel.there) == set(after)


@given(lists, lists)
def test_the_first_of_a_subnet_is_its_primary(before: list[str], after: list[str]) -> None:
    """It is the one that the guest sends from."""
    kernel = Kernel()
    reached(kernel, [wished(text) for text in before])
    reached(kernel, [wished(text) for text in after])
    for text in after:
        mates = [each for each in after if ":" not in each and _same_subnet(each, text)]
        if ":" not in text:
            (there,) = [each for each in kernel.there if str(each.interface) == text]
            assert (AddressFlag.SECONDARY in there.flags) == (mates[0] != text)


def _same_subnet(one: str, other: str) -> bool:
    return ipaddress.ip_interface(one).network == ipaddress.ip_interface(other).network


@given(lists, lists)
def test_others_stay_where_they_are_kept(before: list[str], after: list[str]) -> None:
    kernel = Kernel()
    reached(kernel, [wished(text) for text in before])
    primaries = {each for each in kernel.there if each.flags == AddressFlag.NONE}
    reached(kernel, [wished(text) for text in after], keep=True)
    hosts = {text.split("/")[0] for text in after if ":" in text}
    kept = {text for text in before if ":" not in text or text.split("/")[0] not in hosts}
    assert texts(kernel.there) == set(after) | kept
    assert primaries <= set(kernel.there)


@given(lists, lists)
def test_what_is_right_is_not_touched(before: list[str], after: list[str]) -> None:
    """IPv6 at all; IPv4 where the subnet keeps its primary."""
    kernel = Kernel()
    reached(kernel, [wished(text) for text in before])
    steps = plan(kernel.there, [wished(text) for text in after], link=LINK)
    touched = texts([step.address for step in steps])
    assert not {text for text in before if ":" in text and text in after} & touched


@given(lists, lists)
def test_the_last_ipv4_address_goes_after_a_new_one_came(
    before: list[str], after: list[str]
) -> None:
    """With the last one go all routes (fib_disable_ip). Only in its own subnet a new one
    would be a secondary, and go with it."""
    kernel = Kernel()
    reached(kernel, [wished(text) for text in before])
    had = {_network(text) for text in before if ":" not in text}
    new = {_network(text) for text in after if ":" not in text}
    for step in plan(kernel.there, [wished(text) for text in after], link=LINK):
        kernel.do(step)
        if had and new - had:
            assert kernel._v4()


def _network(text: str) -> object:
    return ipaddress.ip_interface(text).network


def test_the_broadcast_address() -> None:
    """ip-address(8): the last of the prefix; none for /31 (RFC 3021), /32 and peers."""
    assert str(wished("192.0.2.10/24").broadcast) == "192.0.2.255"
    assert wished("10.0.0.1/31").broadcast is None
    assert wished("10.0.0.1/32").broadcast is None
    peer = AddressWish(
        interface=ipaddress.ip_interface("10.0.0.1/24"), peer=ipaddress.ip_address("10.0.0.2")
    )
    assert wanted_address(peer, LINK).broadcast is None
    odd = AddressWish(
        interface=ipaddress.ip_interface("10.0.0.1/24"),
        broadcast=ipaddress.IPv4Address("10.0.0.0"),
    )
    assert str(wanted_address(odd, LINK).broadcast) == "10.0.0.0"
    loopback = replace(LINK, flags=LinkFlag.LOOPBACK)
    inside = wanted_address(AddressWish(interface=ipaddress.ip_interface("127.0.0.2/8")), loopback)
    assert (inside.broadcast, inside.scope) == (None, Scope.HOST)


def test_another_broadcast_address_is_another_address() -> None:
    there = replace(wished("192.0.2.1/24"), broadcast=None)
    steps = plan([there], [wished("192.0.2.1/24")], link=LINK)
    assert [type(step) for step in steps] == [Remove, Add]


def test_ipv6_needs_no_duplicate_address_detection() -> None:
    (step,) = plan([], [wished("2001:db8::1/64")], link=LINK)
    assert isinstance(step, Add)
    assert AddressFlag.NODAD in step.address.flags


def test_one_that_is_not_usable_is_made_anew() -> None:
    for flag in (AddressFlag.TENTATIVE, AddressFlag.DADFAILED):
        there = replace(wished("2001:db8::1/64"), flags=flag)
        assert [type(s) for s in plan([there], [wished("2001:db8::1/64")], link=LINK)] == [
            Remove,
            Add,
        ]
    passed = replace(wished("2001:db8::1/64"), flags=AddressFlag.PERMANENT)
    assert plan([passed], [wished("2001:db8::1/64")], link=LINK) == ()


def local(text: str, **more: object) -> Address:
    return replace(
        Address(index=2, interface=ipaddress.ip_interface(text), scope=Scope.LINK),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("address", "kernels"),
    [
        (local(EUI64, protocol=3), True),
        (local(EUI64), True),
        (local("fe80::1/64"), False),
        (local("fe80::1/64", flags=AddressFlag.STABLE_PRIVACY), True),
        (local("2001:db8::5054:ff:fe12:3456/64", scope=0, valid=600), True),
        (local("2001:db8::5054:ff:fe12:3456/64", scope=0), False),
        (local("2001:db8::9/64", scope=0, protocol=2), True),
        (local("192.0.2.1/24", scope=0), False),
    ],
)
def test_what_the_kernel_made(address: Address, kernels: bool) -> None:
    """By its word (IFAP_KERNEL_LL is 3, _RA is 2), or by RFC 4291, appendix A."""
    assert is_kernels(address, LINK) is kernels
    assert (plan([address], [], link=LINK) == ()) is kernels


def test_the_loopbacks_own() -> None:
    loopback = replace(LINK, flags=LinkFlag.LOOPBACK, mac="")
    for text in ("127.0.0.1/8", "::1/128"):
        assert is_kernels(local(text), loopback)
    assert not is_kernels(local("127.0.0.2/32"), loopback)


def test_lifetimes_make_a_difference() -> None:
    """One that a lease gave is not the one that is wanted for good."""
    leased = replace(wished("192.0.2.1/24"), valid=3600, preferred=3600)
    assert not same(leased, wished("192.0.2.1/24"))

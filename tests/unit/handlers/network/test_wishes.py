"""What is refused before anything is looked at."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from agent.core.addresses import MacAddress, ScsiAddress
from agent.core.errors import AgentError, Reason
from agent.core.network import AddressWish, InterfaceWish, LinkKind, LinkMaking
from agent.core.pci import PciPath
from agent.handlers.network.wishes import canonical, canonical_mac, check

pytestmark = [pytest.mark.unit, pytest.mark.network]

PATH = PciPath.parse("02/00")


def eth0(**more: Any) -> InterfaceWish:
    return InterfaceWish(current_name="eth0", **more)


def on(*texts: str) -> tuple[AddressWish, ...]:
    return tuple(AddressWish(interface=ipaddress.ip_interface(text)) for text in texts)


@pytest.mark.parametrize("text", ["02:00:00:aa:BB:01", "02-00-00-AA-bb-01", "02:00:00:aa:bb:01"])
def test_any_spelling_of_a_mac_address(text: str) -> None:
    assert canonical_mac(text, "mac") == "02:00:00:aa:bb:01"
    assert canonical(eth0(mac=text)).mac == "02:00:00:aa:bb:01"


@pytest.mark.parametrize(
    "text",
    ["", "02:00:00:aa:bb", "02:00:00:aa:bb:01:02", "02:00-00:aa:bb:01", "0200:00aa:bb01",
     "01:00:5e:00:00:01", "00:00:00:00:00:00", "02:00:00:aa:bb:0g", "02:00:00:aa:bb:01\n"],
)  # fmt: skip
def test_what_is_no_interfaces_own(text: str) -> None:
    with pytest.raises(AgentError) as caught:
        canonical_mac(text, "mac")
    assert caught.value.reason is Reason.BAD_FIELD


def test_what_is_right() -> None:
    check(
        (
            InterfaceWish(address=PATH),
            InterfaceWish(address=MacAddress.parse("02:00:00:00:00:01"), name="lan"),
            eth0(name="eth1", addresses=on("192.0.2.1/24", "192.0.2.1/25", "::1/128")),
            InterfaceWish(current_name="eth1", name="eth0"),
            InterfaceWish(name="v", making=LinkMaking(kind=LinkKind.VLAN, parent="p", vlan_id=1)),
        )
    )


def making(kind: LinkKind, **more: Any) -> InterfaceWish:
    return InterfaceWish(name="x", making=LinkMaking(kind=kind, **more))


@pytest.mark.parametrize(
    ("wishes", "field"),
    [
        ((InterfaceWish(),), "address"),
        ((eth0(name="a/b"),), "name"),
        ((eth0(altnames=("a b",)),), "alternative_names"),
        ((eth0(name="lan"), InterfaceWish(current_name="eth1", name="lan")), "name"),
        ((eth0(name="lan"), InterfaceWish(current_name="eth1", altnames=("lan",))), "name"),
        ((eth0(), eth0()), "name"),
        ((eth0(addresses=on("192.0.2.1/24", "192.0.2.1/24")),), "addresses"),
        ((eth0(addresses=on("2001:db8::1/64", "2001:db8::1/128")),), "addresses"),
        ((eth0(ipv6=False, addresses=on("2001:db8::1/64")),), "addresses"),
        ((making(LinkKind.VLAN, vlan_id=1),), "vlan.parent"),
        ((making(LinkKind.VLAN, parent="p"),), "vlan.vlan_id"),
        ((making(LinkKind.VLAN, parent="p", vlan_id=4095),), "vlan.vlan_id"),
        ((making(LinkKind.VRF),), "vrf.table"),
        ((making(LinkKind.VRF, table=255),), "vrf.table"),
        ((making(LinkKind.BOND, mode="fast"),), "bond.mode"),
        ((making(LinkKind.VETH),), "veth.peer_name"),
        ((making(LinkKind.VETH, peer_name="x"),), "veth.peer_name"),
        (tuple(InterfaceWish(current_name=f"e{n}") for n in range(65)), "interfaces"),
    ],
)
def test_what_is_wrong(wishes: tuple[InterfaceWish, ...], field: str) -> None:
    with pytest.raises(AgentError) as caught:
        check(wishes)
    assert caught.value.reason in (Reason.BAD_FIELD, Reason.BAD_ADDRESS)
    assert caught.value.fields["field"] == field


def test_addresses_of_other_devices() -> None:
    scsi = ScsiAddress(channel=0, target=0, lun=1)
    for wish in (InterfaceWish(address=scsi), InterfaceWish(address=PATH, making=LinkMaking(kind=LinkKind.DUMMY))):  # fmt: skip  # noqa: E501
        with pytest.raises(AgentError):
            check((wish,))

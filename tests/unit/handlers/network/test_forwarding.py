"""Forwarding entries: which are there, which shall be, and the way."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import (
    Forwarding,
    ForwardingWish,
    Link,
    LinkFlag,
    NeighborFlag,
    NeighborState,
)
from agent.handlers.network.forwarding import (
    forwarding_as_it_was,
    forwarding_plan,
    forwarding_target,
    forwarding_wants,
)
from agent.handlers.network.linknames import LinkNames

pytestmark = [pytest.mark.unit, pytest.mark.network]

MAC, OTHER, ZERO = "02:00:00:00:00:01", "02:00:00:00:00:02", "00:00:00:00:00:00"
PORT_MAC, BRIDGE_MAC, ABOVE_MAC = "0a:00:00:00:00:01", "0a:00:00:00:00:02", "0a:00:00:00:00:03"
MASTER = NeighborFlag.MASTER


def _link(index: int, name: str, **parts: Any) -> Link:
    return Link(index=index, name=name, flags=LinkFlag.UP, mtu=1500, **parts)


NAMES = LinkNames(
    [
        _link(2, "e0", mac=PORT_MAC, master=3),
        _link(3, "br0", mac=BRIDGE_MAC, kind="bridge"),
        _link(4, "vx0", mac="0a:00:00:00:00:04", kind="vxlan"),
        _link(5, "e0.5", mac=ABOVE_MAC, parent=2, kind="vlan"),
    ]
)


def _there(mac: str = MAC, **parts: Any) -> Forwarding:
    usual: dict[str, Any] = {"index": 2, "mac": mac, "flags": MASTER}
    return Forwarding(**(usual | parts))


def _wish(mac: str = MAC, **parts: Any) -> ForwardingWish:
    usual: dict[str, Any] = {"mac": mac, "device": "e0", "of_master": True}
    return ForwardingWish(**(usual | parts))


def _changes(
    now: list[Forwarding], *wishes: ForwardingWish, exact: frozenset[int] = frozenset()
) -> list[str]:
    target = forwarding_target(now, forwarding_wants(wishes, NAMES), exact, NAMES)
    return [change.what for change in forwarding_plan(now, target, NAMES)]


def test_an_entry_is_permanent_unless_it_says_otherwise() -> None:
    assert _changes([], _wish()) == [f"set forwarding entry {MAC} dev e0 master permanent"]
    assert _changes([_there()], _wish()) == []
    static = _there(state=NeighborState.NOARP)
    assert len(_changes([static], _wish())) == 1
    assert _changes([static], _wish(state=NeighborState.NOARP)) == []
    learnt = _there(state=NeighborState.STALE)
    assert _changes([learnt], _wish(state=NeighborState.REACHABLE)) == []


def test_vlans_and_tables_are_apart() -> None:
    now = [_there(vlan_id=10), _there(flags=NeighborFlag.SELF)]
    assert len(_changes(now, _wish())) == 1
    assert _changes(now, _wish(vlan_id=10), _wish(of_master=False)) == []
    assert len(_changes(now, _wish(absent=True))) == 0


def test_a_unicast_address_has_one_destination_and_others_have_several() -> None:
    """vxlan_fdb_update: "Cannot replace non-unicast fdb entries"."""
    one, two = ip_address("192.0.2.1"), ip_address("192.0.2.2")
    vxlan = {"device": "vx0", "of_master": False}
    now = [_there(mac, index=4, flags=NeighborFlag.SELF, destination=one) for mac in (MAC, ZERO)]
    wants = forwarding_wants([_wish(mac, destination=two, **vxlan) for mac in (MAC, ZERO)], NAMES)
    target = forwarding_target(now, wants, frozenset(), NAMES)
    flags = [change.flags for change in forwarding_plan(now, target, NAMES)]
    assert flags == [0x400 | 0x100, 0x400 | 0x800], "CREATE|REPLACE, CREATE|APPEND"
    assert len(_changes(now, _wish(ZERO, absent=True, **vxlan))) == 1
    assert _changes(now, _wish(ZERO, absent=True, destination=two, **vxlan)) == []


def test_lasting_ones_of_exact_devices_go_but_the_kernels_own() -> None:
    own = NeighborFlag.SELF
    kernels = [
        _there(PORT_MAC),
        _there(BRIDGE_MAC),
        _there("33:33:00:00:00:01", flags=own),
        _there(ABOVE_MAC, flags=own),
        _there(OTHER, flags=MASTER | NeighborFlag.EXT_LEARNED),
    ]
    learnt = _there("02:00:00:00:00:09", state=NeighborState.REACHABLE)
    others = [_there(), _there(OTHER, state=NeighborState.NOARP), _there(flags=own)]
    exact = frozenset({2})
    assert _changes([*kernels, learnt], exact=exact) == []
    assert len(_changes([*kernels, learnt, *others], exact=exact)) == 3
    assert len(_changes([*kernels, learnt, *others], _wish(), exact=exact)) == 2
    assert len(_changes([_there(PORT_MAC, state=NeighborState.NOARP)], exact=exact)) == 1


def test_an_entry_of_no_vlan_brings_one_of_each_vlan_of_the_port() -> None:
    now = [_there(), _there(vlan_id=1), _there(OTHER, vlan_id=1)]
    (removal,) = _changes(now, _wish(), exact=frozenset({2}))
    assert OTHER in removal


def test_the_way_back_counts_all_vlans_of_an_address() -> None:
    """br_fdb_add: without a VLAN the entry is made for each VLAN of the port too."""
    before = [_there(vlan_id=10, state=NeighborState.NOARP)]
    target = forwarding_target(before, forwarding_wants([_wish()], NAMES), frozenset(), NAMES)
    back = forwarding_as_it_was(before, target)
    after = [_there(), _there(vlan_id=10)]
    assert [change.what for change in forwarding_plan(after, back, NAMES)] == [
        f"remove forwarding entry {MAC} dev e0 master permanent",
        f"set forwarding entry {MAC} dev e0 vlan 10 master static",
    ]


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (_wish("02:00"), Reason.BAD_FIELD),
        (_wish(vlan_id=4095), Reason.BAD_FIELD),
        (_wish(state=NeighborState.STALE), Reason.BAD_FIELD),
        (_wish(destination=ip_address("192.0.2.1")), Reason.BAD_FIELD),
        (_wish(device="vx0"), Reason.WRONG_STATE),
        (_wish(of_master=False, destination=ip_address("192.0.2.1")), Reason.WRONG_STATE),
        (_wish(device="e9"), Reason.UNKNOWN_INTERFACE),
    ],
)
def test_it_is_refused(wish: ForwardingWish, reason: Reason) -> None:
    with pytest.raises(AgentError) as caught:
        forwarding_wants([wish], NAMES)
    assert caught.value.reason is reason


def test_the_same_twice_is_refused() -> None:
    with pytest.raises(AgentError, match=r"forwarding\[0\] and forwarding\[1\]"):
        forwarding_wants([_wish(), _wish(state=NeighborState.NOARP)], NAMES)

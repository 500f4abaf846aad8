"""Neighbours and forwarding entries on the real kernel, told by ip(8) and bridge(8)."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import ForwardingWish, NeighborsState, NeighborState, NeighborsWish
from agent.core.network import NeighborWish as Wish
from agent.handlers.network.neighbors import Neighbors
from tests.fakes.failing_netlink import FailingNetlink
from tests.privileged.netlab import Lab
from tests.privileged.routelab import assert_put_back, batch, wired

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]

MAC, OTHER = "02:00:00:00:00:01", "02:00:00:00:00:02"


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with wired() as made:
        yield made


def _wish(text: str, **parts: Any) -> Wish:
    return Wish(address=ip_address(text), **({"device": "e0", "mac": MAC} | parts))


def _entry(mac: str = MAC, **parts: Any) -> ForwardingWish:
    return ForwardingWish(mac=mac, **({"device": "e0"} | parts))


async def _apply(
    net: Lab, *wishes: Wish | ForwardingWish, exact: tuple[str, ...] = ()
) -> NeighborsState:
    """Apply, and once more: the second time sends nothing."""
    wish = _all(*wishes, exact=exact)
    state = await Neighbors(net.netlink).apply(wish, net.deadline)
    counting = FailingNetlink(net.netlink, 0)
    again = await Neighbors(counting).apply(wish, net.deadline)
    assert (counting.seen, again.changed) == (0, ())
    return state


def _all(*wishes: Wish | ForwardingWish, exact: tuple[str, ...] = ()) -> NeighborsWish:
    return NeighborsWish(
        neighbors=tuple(wish for wish in wishes if isinstance(wish, Wish)),
        forwarding=tuple(wish for wish in wishes if isinstance(wish, ForwardingWish)),
        exact_devices=exact,
    )


def _told(net: Lab, device: str = "e0") -> dict[str, tuple[str, str]]:
    """By address: MAC and states, without the multicasts that the kernel knows by itself."""
    found = net.ip("-j", "neigh", "show", "nud", "all", "dev", device)
    return {
        each["dst"]: (each.get("lladdr", ""), *each["state"])
        for each in found
        if not ip_address(each["dst"]).is_multicast
    }


def _fdb(net: Lab, device: str) -> set[tuple[str, str, str, str]]:
    """MAC, whose, state, destination; of the addresses of these tests."""
    found = net.bridge("-j", "fdb", "show", "dev", device)
    return {
        (
            each["mac"],
            "self" if "self" in each["flags"] else "master",
            each["state"] or "dynamic",
            each.get("dst", ""),
        )
        for each in found
        if each["mac"].startswith(("02:00:00:00", "00:00:00:00"))
    }


async def test_an_entry_is_permanent_unless_it_says_otherwise(net: Lab) -> None:
    state = await _apply(
        net,
        _wish("192.0.2.1", mac=MAC.upper()),
        _wish("2001:db8::1"),
        _wish("192.0.2.2", state=NeighborState.NOARP),
        _wish("192.0.2.3", state=NeighborState.REACHABLE),
        _wish("192.0.2.4", state=NeighborState.STALE),
    )
    assert _told(net) == {
        "192.0.2.1": (MAC, "PERMANENT"),
        "2001:db8::1": (MAC, "PERMANENT"),
        "192.0.2.2": (MAC, "NOARP"),
        "192.0.2.3": (MAC, "REACHABLE"),
        "192.0.2.4": (MAC, "STALE"),
    }
    assert state.changed[0] == f"neighbour +192.0.2.1 dev e0 lladdr {MAC} permanent"


async def test_an_entry_is_replaced_and_others_stay(net: Lab) -> None:
    await _apply(net, _wish("192.0.2.1"), _wish("192.0.2.2"))
    await _apply(net, _wish("192.0.2.1", mac=OTHER))
    await _apply(net, _wish("192.0.2.1", mac=OTHER, state=NeighborState.STALE))
    assert _told(net) == {"192.0.2.1": (OTHER, "STALE"), "192.0.2.2": (MAC, "PERMANENT")}
    await _apply(net, _wish("192.0.2.1", mac="", absent=True), _wish("192.0.2.9", absent=True))
    assert _told(net) == {"192.0.2.2": (MAC, "PERMANENT")}


async def test_proxies_are_apart(net: Lab) -> None:
    await _apply(net, _wish("192.0.2.1"), _wish("192.0.2.1", mac="", proxy=True))
    await _apply(net, _wish("2001:db8::7", mac="", proxy=True))
    proxies = net.ip("-j", "neigh", "show", "proxy") + net.ip("-j", "-6", "neigh", "show", "proxy")
    assert {each["dst"] for each in proxies} == {"192.0.2.1", "2001:db8::7"}
    await _apply(net, _wish("192.0.2.1", proxy=True, absent=True))
    assert net.ip("-j", "-4", "neigh", "show", "proxy") == []
    assert _told(net)["192.0.2.1"] == (MAC, "PERMANENT")


async def test_permanent_ones_on_exact_devices_go(net: Lab) -> None:
    batch(
        net,
        f"""
        neigh add 192.0.2.1 lladdr {MAC} dev e0
        neigh add 192.0.2.2 lladdr {MAC} dev e0
        neigh add 192.0.2.3 lladdr {MAC} dev e0 nud stale
        neigh add 198.51.100.1 lladdr {MAC} dev e1
        """,
    )
    state = await _apply(net, _wish("192.0.2.1"), exact=("e0",))
    assert set(_told(net)) == {"192.0.2.1", "192.0.2.3"}
    assert set(_told(net, "e1")) == {"198.51.100.1"}
    assert state.changed == (f"neighbour -192.0.2.2 dev e0 lladdr {MAC} permanent",)


async def test_what_no_entry_can_be_is_refused(net: Lab) -> None:
    for wish, reason in (
        (_wish("192.0.2.1", mac=""), Reason.BAD_FIELD),
        (_wish("192.0.2.1", mac="02:00:00:00:00"[:-1]), Reason.BAD_FIELD),
        (_wish("192.0.2.1", mac="00:00:00:00:00:00"), Reason.BAD_FIELD),
        (_wish("0.0.0.0"), Reason.BAD_FIELD),
        (_wish("192.0.2.1", state=NeighborState.FAILED), Reason.BAD_FIELD),
        (_wish("192.0.2.1", device="e9"), Reason.UNKNOWN_INTERFACE),
        (_wish("192.0.2.1", device="lo"), Reason.WRONG_STATE),
        (_entry(of_master=True), Reason.WRONG_STATE),
        (_entry(destination=ip_address("192.0.2.1")), Reason.WRONG_STATE),
        (_entry(mac="02:00"), Reason.BAD_FIELD),
        (_entry(vlan_id=4095), Reason.BAD_FIELD),
    ):
        with pytest.raises(AgentError) as caught:
            await Neighbors(net.netlink).apply(_all(wish), net.deadline)
        assert caught.value.reason is reason, wish
    with pytest.raises(AgentError, match=r"neighbors\[0\] and neighbors\[1\]"):
        await Neighbors(net.netlink).apply(
            _all(_wish("192.0.2.1"), _wish("192.0.2.1", mac=OTHER)), net.deadline
        )
    assert _told(net) == {}


async def test_each_failure_puts_back_what_was(net: Lab) -> None:
    batch(
        net,
        f"""
        neigh add 192.0.2.1 lladdr {OTHER} dev e0
        neigh add 192.0.2.2 lladdr {MAC} dev e0 nud stale
        neigh add proxy 192.0.2.5 dev e0
        neigh add 192.0.2.6 lladdr {MAC} dev e0
        """,
    )
    wish = _all(
        _wish("192.0.2.1"),
        _wish("192.0.2.2"),
        _wish("192.0.2.3"),
        _wish("192.0.2.5", proxy=True, absent=True),
        _wish("192.0.2.4", mac="", proxy=True),
        exact=("e0",),
    )
    before = _told(net), net.ip("-j", "neigh", "show", "proxy")
    for number in range(1, 7):
        for done in (False, True):
            failing = FailingNetlink(net.netlink, number, done=done)
            with pytest.raises(AgentError, match="a fake failure") as caught:
                await Neighbors(failing).apply(wish, net.deadline)
            assert "not_undone" not in caught.value.fields
            assert (_told(net), net.ip("-j", "neigh", "show", "proxy")) == before
    state = await Neighbors(FailingNetlink(net.netlink, 7)).apply(wish, net.deadline)
    assert len(state.changed) == 8
    assert set(_told(net)) == {"192.0.2.1", "192.0.2.2", "192.0.2.3"}


# --- forwarding entries -----------------------------------------------------------------


def _bridged(net: Lab) -> None:
    batch(
        net,
        """
        link add br0 type bridge
        link set e0 master br0
        link set br0 up
        """,
    )


async def test_entries_of_a_bridge_and_of_its_port(net: Lab) -> None:
    _bridged(net)
    entries = [
        _entry("02:00:00:00:01:01", of_master=True),
        _entry("02:00:00:00:01:02", of_master=True, state=NeighborState.NOARP),
        _entry("02:00:00:00:01:03", of_master=True, state=NeighborState.REACHABLE),
        _entry("02:00:00:00:01:04"),
    ]
    state = await _apply(net, *entries, _entry("02:00:00:00:01:05", device="br0"))
    assert _fdb(net, "e0") == {
        ("02:00:00:00:01:01", "master", "permanent", ""),
        ("02:00:00:00:01:02", "master", "static", ""),
        ("02:00:00:00:01:03", "master", "dynamic", ""),
        ("02:00:00:00:01:04", "self", "permanent", ""),
    }
    assert ("02:00:00:00:01:05", "master", "permanent", "") in _fdb(net, "br0")
    assert "forwarding +02:00:00:00:01:02 dev e0 master static" in state.changed
    await _apply(net, _entry("02:00:00:00:01:01", of_master=True, state=NeighborState.REACHABLE))
    assert ("02:00:00:00:01:01", "master", "dynamic", "") in _fdb(net, "e0")
    kernels = _kernels(net)
    assert len(kernels) > 2
    await _apply(net, _entry("02:00:00:00:01:04"), exact=("e0", "br0"))
    assert _kernels(net) == kernels
    assert _fdb(net, "e0") == {
        ("02:00:00:00:01:01", "master", "dynamic", ""),
        ("02:00:00:00:01:03", "master", "dynamic", ""),
        ("02:00:00:00:01:04", "self", "permanent", ""),
    }
    await _apply(net, _entry("02:00:00:00:01:04", absent=True))
    assert ("02:00:00:00:01:04", "self", "permanent", "") not in _fdb(net, "e0")


def _kernels(net: Lab) -> list[str]:
    """The addresses of the port and the bridge, and the multicasts that they joined."""
    macs = {each["address"] for each in net.ip("-j", "link")}
    return [
        each["mac"]
        for device in ("e0", "br0")
        for each in net.bridge("-j", "fdb", "show", "dev", device)
        if each["state"] and (each["mac"] in macs or int(each["mac"][:2], 16) & 1)
    ]


async def test_destinations_of_a_vxlan(net: Lab) -> None:
    batch(net, "link add vx0 type vxlan id 7 dstport 4789 dev e0\nlink set vx0 up")

    def entry(mac: str, to: str, **parts: Any) -> ForwardingWish:
        return _entry(mac, device="vx0", destination=ip_address(to), **parts)

    zero = "00:00:00:00:00:00"
    await _apply(
        net, entry(zero, "192.0.2.51"), entry(zero, "192.0.2.52"), entry(MAC, "192.0.2.51")
    )
    await _apply(
        net, entry(MAC, "192.0.2.52"), entry(OTHER, "192.0.2.51", state=NeighborState.REACHABLE)
    )
    assert _fdb(net, "vx0") == {
        (zero, "self", "permanent", "192.0.2.51"),
        (zero, "self", "permanent", "192.0.2.52"),
        (MAC, "self", "permanent", "192.0.2.52"),
        (OTHER, "self", "dynamic", "192.0.2.51"),
    }
    await _apply(net, entry(zero, "192.0.2.51", absent=True))
    assert (zero, "self", "permanent", "192.0.2.52") in _fdb(net, "vx0")
    await _apply(net, entry(zero, "192.0.2.53"), exact=("vx0",))
    assert _fdb(net, "vx0") == {
        (zero, "self", "permanent", "192.0.2.53"),
        (OTHER, "self", "dynamic", "192.0.2.51"),
    }
    await _apply(net, _entry(zero, device="vx0", absent=True))
    assert _fdb(net, "vx0") == {(OTHER, "self", "dynamic", "192.0.2.51")}


async def test_each_failure_puts_back_the_forwarding_entries(net: Lab) -> None:
    _bridged(net)
    for line in (
        f"fdb add {MAC} dev e0 master static",
        f"fdb add {OTHER} dev e0 master permanent",
        "fdb add 02:00:00:00:00:03 dev e0 self",
    ):
        net.bridge(*line.split())
    wish = _all(
        _entry(MAC, of_master=True, state=NeighborState.REACHABLE),
        _entry(OTHER, of_master=True, absent=True),
        _entry("02:00:00:00:00:04", of_master=True),
        exact=("e0",),
    )
    before = _fdb(net, "e0")
    for number in itertools.count(1):
        failing = FailingNetlink(net.netlink, number, done=bool(number % 2))
        try:
            await Neighbors(failing).apply(wish, net.deadline)
        except AgentError as error:
            assert_put_back(error)
            assert _fdb(net, "e0") == before
        else:
            break
    # A kernel whose bridges have VLANs has entries of VLAN 1 as well.
    assert failing.seen >= 4


async def test_on_a_bridge_with_vlans_an_entry_is_of_one(net: Lab) -> None:
    _bridged(net)
    net.run("ip", "link", "set", "br0", "type", "bridge", "vlan_filtering", "1", fails=True)
    vlans = net.run("bridge", "vlan", "add", "vid", "10", "dev", "e0", fails=True)
    if "not supported" in vlans:
        pytest.skip("this kernel's bridges have no VLANs")
    await _apply(net, _entry(of_master=True, vlan_id=10), _entry(OTHER, of_master=True))
    found = net.bridge("-j", "fdb", "show", "dev", "e0")
    vlans_of = {
        mac: {each.get("vlan") for each in found if each["mac"] == mac} for mac in (MAC, OTHER)
    }
    assert vlans_of[MAC] == {10}
    assert None in vlans_of[OTHER]
    await _apply(net, _entry(of_master=True, vlan_id=10, absent=True))
    assert MAC not in {each["mac"] for each in net.bridge("-j", "fdb", "show", "dev", "e0")}


async def test_a_list_is_what_ip_and_bridge_tell(net: Lab) -> None:
    _bridged(net)
    await _apply(net, _wish("198.51.100.1", device="e1"), _entry(of_master=True))
    state = await Neighbors(net.netlink).list(net.deadline)
    told = net.ip("-j", "neigh", "show", "nud", "all")
    # Multicasts come by themselves at any time.
    mine = {str(each.address) for each in state.neighbors if not each.address.is_multicast}
    assert mine == {each["dst"] for each in told if not ip_address(each["dst"]).is_multicast}
    fdb = [each["mac"] for each in net.bridge("-j", "fdb", "show") if each["state"]]
    lasting = [each.mac for each in state.forwarding if each.state & NeighborState.PERMANENT]
    assert {mac for mac in lasting if _is_unicast(mac)} == {mac for mac in fdb if _is_unicast(mac)}
    assert [each.index for each in state.neighbors] == sorted(
        each.index for each in state.neighbors
    )


def _is_unicast(mac: str) -> bool:
    return not int(mac[:2], 16) & 1


async def test_a_refused_entry_says_what_would_do(net: Lab) -> None:
    _bridged(net)
    with pytest.raises(AgentError, match="permanent entries alone"):
        await _apply(net, _entry(state=NeighborState.REACHABLE))
    batch(net, "link set e0 down")
    with pytest.raises(AgentError, match="learns nothing"):
        await _apply(net, _entry(of_master=True, state=NeighborState.REACHABLE))

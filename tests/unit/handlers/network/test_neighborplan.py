"""Neighbours: which are there, which shall be, and the way."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import Neighbor, NeighborFlag, NeighborState, NeighborWish
from agent.handlers.network.neighborplan import (
    neighbor_lines,
    neighbor_plan,
    neighbor_target,
    neighbor_wants,
    neighbors_as_they_were,
)
from tests.fakes.route_words import names

pytestmark = [pytest.mark.unit, pytest.mark.network]

MAC, OTHER = "02:00:00:00:00:01", "02:00:00:00:00:02"
ADDRESS = ip_address("192.0.2.1")


def _there(state: NeighborState, mac: str = MAC, **parts: Any) -> Neighbor:
    return Neighbor(**({"index": 2, "address": ADDRESS, "mac": mac, "state": state} | parts))


def _wish(**parts: Any) -> NeighborWish:
    return NeighborWish(**({"address": ADDRESS, "device": "e0", "mac": MAC} | parts))


def _changes(now: list[Neighbor], *wishes: NeighborWish, exact: bool = False) -> list[str]:
    wants = neighbor_wants(wishes, names())
    target = neighbor_target(now, wants, frozenset({2} if exact else ()))
    return [change.what for change in neighbor_plan(now, target, names())]


SET = f"set neighbour 192.0.2.1 dev e0 lladdr {MAC} permanent"


@pytest.mark.parametrize(
    ("now", "wish", "expected"),
    [
        ([], _wish(), [SET]),
        ([_there(NeighborState.PERMANENT)], _wish(), []),
        ([_there(NeighborState.PERMANENT)], _wish(mac=MAC.upper()), []),
        ([_there(NeighborState.PERMANENT, OTHER)], _wish(), [SET]),
        ([_there(NeighborState.REACHABLE)], _wish(), [SET]),
        ([_there(NeighborState.FAILED, "")], _wish(absent=True), []),
        ([_there(NeighborState.INCOMPLETE, "")], _wish(absent=True, mac=""), []),
        ([], _wish(absent=True), []),
    ],
)
def test_what_is_changed(now: list[Neighbor], wish: NeighborWish, expected: list[str]) -> None:
    assert _changes(now, wish) == expected


@pytest.mark.parametrize("wanted", [NeighborState.REACHABLE, NeighborState.STALE])
@pytest.mark.parametrize(
    "now",
    [NeighborState.REACHABLE, NeighborState.STALE, NeighborState.DELAY, NeighborState.PROBE],
)
def test_what_is_learnt_moves_on_by_itself(now: NeighborState, wanted: NeighborState) -> None:
    """Documentation/networking/ip-sysctl.rst, base_reachable_time: reachable becomes stale."""
    assert _changes([_there(now)], _wish(state=wanted)) == []


def test_permanent_ones_of_exact_devices_go() -> None:
    proxy = _there(NeighborState.NONE, "", flags=NeighborFlag.PROXY)
    now = [
        _there(NeighborState.PERMANENT),
        _there(NeighborState.PERMANENT, address=ip_address("192.0.2.2")),
        _there(NeighborState.PERMANENT, address=ip_address("192.0.2.3"), index=3),
        _there(NeighborState.STALE, address=ip_address("192.0.2.4")),
        proxy,
    ]
    assert _changes(now, _wish(), exact=True) == [
        f"remove neighbour 192.0.2.2 dev e0 lladdr {MAC} permanent"
    ]


def test_the_way_back_is_to_what_was() -> None:
    before = [_there(NeighborState.PROBE, OTHER)]
    wants = neighbor_wants([_wish(), _wish(address=ip_address("192.0.2.2"))], names())
    target = neighbor_target(before, wants, frozenset())
    after = [
        _there(NeighborState.PERMANENT),
        _there(NeighborState.PERMANENT, address=ip_address("192.0.2.2")),
    ]
    back = neighbors_as_they_were(before, target)
    assert [change.what for change in neighbor_plan(after, back, names())] == [
        f"set neighbour 192.0.2.1 dev e0 lladdr {OTHER} probe",
        f"remove neighbour 192.0.2.2 dev e0 lladdr {MAC} permanent",
    ]
    lines = list(neighbor_lines(before, after, target, names()))
    assert lines == [
        f"neighbour -192.0.2.1 dev e0 lladdr {OTHER} probe",
        f"neighbour +192.0.2.1 dev e0 lladdr {MAC} permanent",
        f"neighbour +192.0.2.2 dev e0 lladdr {MAC} permanent",
    ]


def test_one_address_is_there_once_on_a_device() -> None:
    with pytest.raises(AgentError) as caught:
        neighbor_wants([_wish(), _wish(mac=OTHER)], names())
    assert caught.value.reason is Reason.BAD_FIELD
    assert "neighbors[0] and neighbors[1] are both 192.0.2.1 on e0" in caught.value.message
    neighbor_wants([_wish(), _wish(proxy=True), _wish(device="e1")], names())

"""How virtual interfaces are made: a VLAN, a bridge, a bond, a VRF, a dummy, a veth pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.core.errors import invalid
from agent.core.network import LinkKind, LinkMaking
from agent.server.convert import fields, linknames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innkeeper.v1 import network_pb2 as pb

_BOND_MODES: Final = (
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
)
_MIIMON: Final = 100
_LARGEST_INT: Final = 2**31 - 1
# BR_MIN_FORWARD_DELAY and BR_MAX_FORWARD_DELAY (net/bridge/br_private.h), in milliseconds.
_FORWARD_DELAYS: Final = (2_000, 30_000)


def making(told: pb.ApplyInterfaceRequest, at: str) -> LinkMaking | None:
    """None when nothing is to be made; raises BAD_FIELD."""
    kind = told.WhichOneof("link")
    if kind is None:
        return None
    made = _MAKERS[kind](getattr(told, kind), f"{at}{kind}")
    if made.peer_name and made.peer_name in {told.name, told.current_name}:
        field = f"{at}{kind}.peer_name"
        raise invalid(f"{field}: {made.peer_name} is the name of this end", field=field)
    return made


def _vlan(told: pb.VlanLink, field: str) -> LinkMaking:
    return LinkMaking(
        kind=LinkKind.VLAN,
        parent=linknames.device(told.parent, f"{field}.parent"),
        vlan_id=fields.within(told.vlan_id, 1, 4094, f"{field}.vlan_id"),
        service_tag=told.service_tag,
    )


def _bridge(told: pb.BridgeLink, field: str) -> LinkMaking:
    delay = told.forward_delay_millis
    if delay:
        fields.within(delay, *_FORWARD_DELAYS, f"{field}.forward_delay_millis")
    return LinkMaking(
        kind=LinkKind.BRIDGE,
        stp=told.stp,
        vlan_filtering=told.vlan_filtering,
        forward_delay_millis=delay,
    )


def _bond(told: pb.BondLink, field: str) -> LinkMaking:
    if told.mode and told.mode not in _BOND_MODES:
        raise invalid(
            f"{field}.mode: {told.mode[:80]!r} is none of {', '.join(_BOND_MODES)}",
            field=f"{field}.mode",
        )
    return LinkMaking(
        kind=LinkKind.BOND,
        mode=told.mode or _BOND_MODES[0],
        miimon=fields.within(told.miimon, 0, _LARGEST_INT, f"{field}.miimon") or _MIIMON,
    )


def _vrf(told: pb.VrfLink, field: str) -> LinkMaking:
    table = fields.within(told.table, 1, 2**32 - 1, f"{field}.table")
    return LinkMaking(kind=LinkKind.VRF, table=table)


def _dummy(_told: pb.DummyLink, _field: str) -> LinkMaking:
    return LinkMaking(kind=LinkKind.DUMMY)


def _veth(told: pb.VethLink, field: str) -> LinkMaking:
    return LinkMaking(
        kind=LinkKind.VETH, peer_name=linknames.new(told.peer_name, f"{field}.peer_name")
    )


_MAKERS: Final[Mapping[str, Callable[[Any, str], LinkMaking]]] = {
    "vlan": _vlan,
    "bridge": _bridge,
    "bond": _bond,
    "vrf": _vrf,
    "dummy": _dummy,
    "veth": _veth,
}

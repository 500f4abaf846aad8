"""The firewall's rules and their formats, each way."""

from __future__ import annotations

from typing import Final

from agent.core.errors import invalid
from agent.core.network import FirewallFormat
from agent.server.limits import FIREWALL_BYTES
from innkeeper.v1 import network_pb2 as pb

_FORMATS: Final = {
    pb.FIREWALL_FORMAT_NFTABLES: FirewallFormat.NFTABLES,
    pb.FIREWALL_FORMAT_IPTABLES: FirewallFormat.IPTABLES,
    pb.FIREWALL_FORMAT_IP6TABLES: FirewallFormat.IP6TABLES,
}
_WORDS: Final = {own: word for word, own in _FORMATS.items()}


def firewall_format(told: pb.FirewallFormat.ValueType) -> FirewallFormat:
    """The one that must be said; raises BAD_FIELD."""
    found = _FORMATS.get(told)
    if found is None:
        known = ", ".join(map(pb.FirewallFormat.Name, _FORMATS))
        raise invalid(f"format: {told} is none of {known}", field="format")
    return found


def format_or_any(told: pb.FirewallFormat.ValueType) -> FirewallFormat | None:
    """None leaves the choice to the guest; raises BAD_FIELD for a number without meaning."""
    return firewall_format(told) if told else None


def firewall_rules(told: pb.SetFirewallRequest) -> bytes:
    """The text, which its tool reads; raises BAD_FIELD."""
    if len(told.rules) > FIREWALL_BYTES:
        raise invalid(
            f"rules: {len(told.rules)} bytes are more than {FIREWALL_BYTES}",
            field="rules",
            limit=FIREWALL_BYTES,
        )
    if b"\0" in told.rules:
        raise invalid("rules: a NUL character is not possible here", field="rules")
    return told.rules


def firewall_state(form: FirewallFormat, rules: bytes) -> pb.FirewallState:
    return pb.FirewallState(format=_WORDS[form], rules=rules)

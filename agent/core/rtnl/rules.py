"""Policy rules (include/uapi/linux/fib_rules.h, net/core/fib_rules.c)."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from agent.core.netlink import NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Change, Question
from agent.core.network import Family, Rule, RuleAction
from agent.core.rtnl.messages import (
    RTM_DELRULE,
    RTM_GETRULE,
    RTM_NEWRULE,
    Attributes,
    body,
    decoded,
    rule_message,
)

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import IpNetwork

INVERT = 2  # FIB_RULE_INVERT
_ALL_BITS = 0xFFFFFFFF
_COMPAT = 252  # RT_TABLE_COMPAT: the table is in FRA_TABLE
_FAMILIES = frozenset(Family)
_ACTIONS = frozenset(RuleAction)

_KNOWN = frozenset(
    {
        "FRA_UNSPEC",
        "FRA_DST",
        "FRA_SRC",
        "FRA_IIFNAME",
        "FRA_OIFNAME",
        "FRA_PRIORITY",
        "FRA_FWMARK",
        "FRA_FWMASK",
        "FRA_SUPPRESS_PREFIXLEN",
        "FRA_TABLE",
        "FRA_PAD",
        "FRA_PROTOCOL",
        "FRA_IP_PROTO",
    }
)


async def all_rules(netlink: Netlink, deadline: Deadline, *, family: Family) -> tuple[Rule, ...]:
    """Every rule of a family, in the order in which the kernel looks at them."""
    question = Question(
        what=f"list the IP{family.word} rules",
        type=RTM_GETRULE,
        flags=NLM_F_DUMP,
        payload=body(rule_message, {"family": int(family)}),
        decode=decode,
    )
    found = await netlink.ask(question, deadline)
    return tuple(rule for rule in found if rule is not None)


def decode(data: bytes) -> Rule | None:
    """RTM_NEWRULE or RTM_DELRULE, header included; None for another family's.

    An action that the words have no name for (goto, nop) is told as `others`.
    """
    message = decoded(rule_message, data)
    if message["family"] not in _FAMILIES:
        return None
    found = Attributes(message)
    suppressed = found.number("FRA_SUPPRESS_PREFIXLEN", _ALL_BITS)
    action = message["action"]
    return Rule(
        family=Family(message["family"]),
        priority=found.number("FRA_PRIORITY"),
        action=RuleAction(action) if action in _ACTIONS else RuleAction.TABLE,
        table=found.number("FRA_TABLE", message["table"]),
        source=_network(found.raw("FRA_SRC"), message["src_len"]),
        destination=_network(found.raw("FRA_DST"), message["dst_len"]),
        incoming=found.text("FRA_IIFNAME"),
        outgoing=found.text("FRA_OIFNAME"),
        # The kernel leaves a mark of 0 out, but not its mask.
        mark=found.number("FRA_FWMARK") if "FRA_FWMASK" in found else None,
        mark_mask=found.number("FRA_FWMASK", _ALL_BITS),
        invert=bool(message["flags"] & INVERT),
        ip_protocol=found.number("FRA_IP_PROTO"),
        suppress_prefix_length=None if suppressed == _ALL_BITS else suppressed,
        protocol=found.number("FRA_PROTOCOL"),
        others=bool(message["tos"] or action not in _ACTIONS or found.names - _KNOWN),
    )


def _network(raw: bytes | None, length: int) -> IpNetwork | None:
    return None if raw is None else ipaddress.ip_network((raw, length), strict=False)


def added(rule: Rule, what: str) -> Change:
    """Add a rule; EEXIST where the same one is there."""
    flags = NLM_F_CREATE | NLM_F_EXCL
    return Change(what=what, type=RTM_NEWRULE, flags=flags, payload=_payload(rule))


def removed(rule: Rule, what: str) -> Change:
    """Remove a rule: the first of its priority that has all its parts, and may have more."""
    return Change(what=what, type=RTM_DELRULE, flags=0, payload=_payload(rule))


def _payload(rule: Rule) -> bytes:
    marked = rule.mark is not None
    return body(
        rule_message,
        _fields(rule),
        ("FRA_SRC", _text(rule.source)),
        ("FRA_DST", _text(rule.destination)),
        ("FRA_PRIORITY", rule.priority),
        ("FRA_TABLE", rule.table or None),
        ("FRA_IIFNAME", rule.incoming or None),
        ("FRA_OIFNAME", rule.outgoing or None),
        ("FRA_FWMARK", rule.mark),
        ("FRA_FWMASK", rule.mark_mask if marked else None),
        ("FRA_IP_PROTO", rule.ip_protocol or None),
        ("FRA_SUPPRESS_PREFIXLEN", rule.suppress_prefix_length),
        ("FRA_PROTOCOL", int(rule.protocol) or None),
    )


def _fields(rule: Rule) -> dict[str, Any]:
    return {
        "family": int(rule.family),
        "dst_len": rule.destination.prefixlen if rule.destination else 0,
        "src_len": rule.source.prefixlen if rule.source else 0,
        "table": rule.table if rule.table < 256 else _COMPAT,
        # Unspecified matches any action when a rule is removed.
        "action": 0 if rule.others else int(rule.action),
        "flags": INVERT if rule.invert else 0,
    }


def _text(network: IpNetwork | None) -> str | None:
    return str(network.network_address) if network and network.prefixlen else None

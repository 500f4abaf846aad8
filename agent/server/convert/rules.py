"""Policy rules, each way."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.network import Family, Rule, RuleAction, RuleSet
from agent.server.convert import fields, inet, linknames
from agent.server.convert.families import family_of, family_word
from agent.server.limits import RULES
from innkeeper.v1 import network_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from agent.core.network import IpNetwork

_ACTIONS: Final = {
    pb.RULE_ACTION_UNSPECIFIED: RuleAction.TABLE,
    pb.RULE_ACTION_TABLE: RuleAction.TABLE,
    pb.RULE_ACTION_BLACKHOLE: RuleAction.BLACKHOLE,
    pb.RULE_ACTION_UNREACHABLE: RuleAction.UNREACHABLE,
    pb.RULE_ACTION_PROHIBIT: RuleAction.PROHIBIT,
}
_LOOKING: Final = (pb.RULE_ACTION_UNSPECIFIED, pb.RULE_ACTION_TABLE)
_WORDS: Final = {action: word for word, action in _ACTIONS.items()}
# The tables local, main and default, looked into for all packets (fib_default_rules_init
# of net/ipv4/fib_rules.c; IPv6 has no default table), and with the first VRF the table of
# the packet's interface, which is no number (vrf_fib_rule of drivers/net/vrf.c).
_KERNELS_OWN: Final = {0: 255, 1000: 0, 32766: 254, 32767: 253}
_LAST: Final = 32_765
_WHOLE_MARK: Final = 0xFFFFFFFF


def rule_sets(told: Collection[pb.RuleSet]) -> tuple[RuleSet, ...]:
    """At most one set for each family; raises BAD_FIELD."""
    count = sum(len(each.rules) for each in told)
    if count > RULES:
        raise invalid(f"rules: {count} rules are more than {RULES}", field="rules", limit=RULES)
    sets = tuple(_rule_set(each, f"rules[{index}]") for index, each in enumerate(told))
    fields.no_doubles((each.family.word for each in sets), "rules")
    return sets


def _rule_set(told: pb.RuleSet, field: str) -> RuleSet:
    family = family_of(told.family, f"{field}.family")
    rules = tuple(_rules(told.rules, family, field))
    fields.no_doubles((f"priority {rule.priority}" for rule in rules), f"{field}.rules")
    return RuleSet(family=family, rules=rules)


def _rules(told: Iterable[pb.Rule], family: Family, field: str) -> Iterator[Rule]:
    for index, each in enumerate(told):
        if not _is_kernels(each):
            yield _rule(each, family, f"{field}.rules[{index}]")


def _is_kernels(told: pb.Rule) -> bool:
    if told.priority not in _KERNELS_OWN or told.action not in _LOOKING:
        return False
    table = _KERNELS_OWN[told.priority]
    # The table of a VRF's rule is no number, so no list tells all of it.
    incomplete = told.incomplete and not table
    return told == pb.Rule(
        priority=told.priority, table=table, action=told.action, incomplete=incomplete
    )


def _rule(told: pb.Rule, family: Family, field: str) -> Rule:
    action = _ACTIONS.get(told.action)
    if action is None:
        raise invalid(f"{field}.action: {told.action} is not known", field=f"{field}.action")
    if (action is RuleAction.TABLE) != bool(told.table):
        word = "is needed" if action is RuleAction.TABLE else "is only for RULE_ACTION_TABLE"
        raise invalid(f"{field}.table: it {word}", field=f"{field}.table")
    if told.incomplete:
        raise invalid(
            f"{field}: a rule that was listed as incomplete has parts that no request can say:"
            " without them it would apply to more",
            field=f"{field}.incomplete",
        )
    mark = _mark(told, field)
    return Rule(
        family=family,
        priority=fields.within(told.priority, 1, _LAST, f"{field}.priority"),
        action=action,
        table=told.table,
        source=_some(told.source, family, f"{field}.source"),
        destination=_some(told.destination, family, f"{field}.destination"),
        incoming=linknames.new(told.incoming, f"{field}.incoming") if told.incoming else "",
        outgoing=linknames.new(told.outgoing, f"{field}.outgoing") if told.outgoing else "",
        mark=mark,
        mark_mask=told.mark_mask or _WHOLE_MARK,
        invert=told.invert,
        ip_protocol=fields.within(told.ip_protocol, 0, 255, f"{field}.ip_protocol"),
        suppress_prefix_length=_suppressed(told, family, field),
    )


def _some(text: str, family: Family, field: str) -> IpNetwork | None:
    """None for everything, which is how the kernel has it."""
    found = inet.network(text, family, field)
    return found if found.prefixlen else None


def _mark(told: pb.Rule, field: str) -> int | None:
    if told.HasField("mark"):
        return told.mark
    if told.mark_mask:
        raise invalid(f"{field}.mark_mask: only with mark", field=f"{field}.mark_mask")
    return None


def _suppressed(told: pb.Rule, family: Family, field: str) -> int | None:
    if not told.HasField("suppress_prefix_length"):
        return None
    name = f"{field}.suppress_prefix_length"
    return fields.within(told.suppress_prefix_length, 0, family.bits, name)


def rule_list(rules: Iterable[Rule]) -> list[pb.RuleSet]:
    """By family, by priority."""
    ordered = sorted(rules, key=lambda rule: (rule.family, rule.priority))
    return [
        pb.RuleSet(family=family_word(family), rules=map(_as_told, members))
        for family, members in groupby(ordered, key=lambda rule: rule.family)
    ]


def _as_told(rule: Rule) -> pb.Rule:
    partial = rule.mark is not None and rule.mark_mask != _WHOLE_MARK
    return pb.Rule(
        priority=rule.priority,
        source=inet.network_text(rule.source) if rule.source else "",
        destination=inet.network_text(rule.destination) if rule.destination else "",
        incoming=rule.incoming,
        outgoing=rule.outgoing,
        mark=rule.mark,
        mark_mask=rule.mark_mask if partial else 0,
        invert=rule.invert,
        action=_WORDS[rule.action],
        table=rule.table if rule.action is RuleAction.TABLE else 0,
        ip_protocol=rule.ip_protocol,
        suppress_prefix_length=rule.suppress_prefix_length,
        incomplete=rule.others,
    )

"""Policy rules: checked, matched, planned."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import Family, Protocol, Rule, RuleAction, RuleSet
from agent.handlers.network.rules import (
    RULE_LIMIT,
    HeldRule,
    check_rule_sets,
    rule_plan,
    rule_target,
)

pytestmark = [pytest.mark.unit, pytest.mark.network]

# struct fib_rule_hdr of `goto 200` (FR_ACT_GOTO is 2) and of `l3mdev` (FR_ACT_TO_TBL is 1).
GOTO = bytes([2, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0])
L3MDEV = bytes([2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])


def _rule(priority: int = 100, **parts: Any) -> Rule:
    return Rule(**({"family": Family.V4, "priority": priority, "table": 7} | parts))


def _held(*rules: Rule) -> list[HeldRule]:
    return [HeldRule(rule=rule) for rule in rules]


def _set(*rules: Rule) -> RuleSet:
    return RuleSet(family=Family.V4, rules=rules)


KERNELS = _held(
    _rule(0, table=255, protocol=Protocol.KERNEL),
    _rule(32766, table=254, protocol=Protocol.KERNEL),
    _rule(32767, table=253, protocol=Protocol.KERNEL),
)


def _whats(now: list[HeldRule], target: list[HeldRule]) -> list[str]:
    return [change.what for change in rule_plan(now, target)]


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (_rule(source=ip_network("2001:db8::/32")), "source"),
        (_rule(destination=ip_network("2001:db8::/32")), "destination"),
        (_rule(table=0), "table"),
        (_rule(table=2**32), "table"),
        (_rule(mark=2**32), "mark"),
        (_rule(mark=1, mark_mask=2**32), "mark_mask"),
        (_rule(ip_protocol=256), "ip_protocol"),
        (_rule(suppress_prefix_length=33), "suppress_prefix_length"),
        (_rule(incoming="a" * 16), "incoming"),
        (_rule(action=RuleAction.PROHIBIT), "rules[0]"),
    ],
)
def test_it_is_refused_at_its_field(rule: Rule, field: str) -> None:
    with pytest.raises(AgentError) as caught:
        check_rule_sets([_set(rule)])
    assert caught.value.reason is Reason.BAD_FIELD
    assert caught.value.fields["field"].endswith(field)


def test_priorities_are_there_once() -> None:
    with pytest.raises(AgentError, match=r"rules\[0\] and rules\[1\] of v4 both have priority 5"):
        check_rule_sets([_set(_rule(5), _rule(5, mark=1))])
    with pytest.raises(AgentError, match="rules"):
        check_rule_sets([_set(), _set()])
    with pytest.raises(AgentError, match="4,097 rules"):
        check_rule_sets([_set(*(_rule(5),) * (RULE_LIMIT + 1))])


@pytest.mark.parametrize("priority", [0, 32766, 32767, 40000])
def test_priorities_of_the_kernel_are_refused(priority: int) -> None:
    with pytest.raises(AgentError) as caught:
        rule_target(KERNELS, _set(_rule(priority)))
    assert "1 to 32765" in str(caught.value)


def test_the_kernels_rules_may_be_repeated() -> None:
    listed = [held.rule for held in KERNELS]
    check_rule_sets([_set(*listed)])
    assert rule_target(KERNELS, _set(*listed)) == KERNELS


def test_everything_but_the_kernels_goes() -> None:
    vrf = HeldRule(rule=_rule(1000, table=0, others=True), raw=L3MDEV)
    jump = HeldRule(rule=_rule(50, table=0, others=True), raw=GOTO)
    late = HeldRule(rule=_rule(40000))
    now = [*KERNELS, vrf, jump, late]
    assert rule_target(now, _set()) == [*KERNELS, vrf]
    assert _whats(now, rule_target(now, _set())) == [
        "remove v4 rule 50: from all (and more) lookup elsewhere",
        "remove v4 rule 40000: from all lookup 7",
    ]


def test_what_means_the_same_is_no_change() -> None:
    there = _held(_rule(mark=1, mark_mask=0xFFFFFFFF, protocol=Protocol.STATIC), _rule(200))
    wanted = _set(
        _rule(200, mark_mask=5, source=ip_network("0.0.0.0/0")), _rule(mark=1, mark_mask=0)
    )
    assert _whats(there, rule_target(there, wanted)) == []


def test_a_mark_of_zero_is_not_no_mark() -> None:
    there = _held(_rule(mark=0, mark_mask=0xFF))
    assert len(_whats(there, rule_target(there, _set(_rule())))) == 2


def test_the_new_one_is_there_before_the_old_one_goes() -> None:
    there = _held(_rule(100), _rule(200))
    target = rule_target(there, _set(_rule(100, table=9), _rule(200)))
    assert _whats(there, target) == [
        "add v4 rule 100: from all lookup 9",
        "remove v4 rule 100: from all lookup 7",
    ]


def test_a_removal_that_could_take_the_one_that_stays_takes_both_and_one_is_new() -> None:
    """The kernel takes the first of the priority that has what the message says."""
    more = _rule(source=ip_network("192.0.2.0/24"))
    now, shall = _held(more, _rule()), _held(more)
    changes = rule_plan(now, shall)
    assert [change.what.split()[0] for change in changes] == ["add", "remove", "remove"]
    assert changes[0].flags & 0x200 == 0, "NLM_F_EXCL would refuse it while it is there"


def test_a_rule_with_other_parts_is_sent_as_the_kernel_told_it() -> None:
    jump = HeldRule(rule=_rule(50, table=0, others=True), raw=GOTO)
    (removal,) = rule_plan([jump], [])
    (making,) = rule_plan([], [jump])
    assert removal.payload == making.payload == GOTO


def test_rules_of_one_priority_are_told_apart_by_their_other_parts() -> None:
    one = HeldRule(rule=replace(_rule(), others=True), raw=GOTO + b"1")
    other = HeldRule(rule=replace(_rule(), others=True), raw=GOTO + b"2")
    assert [change.payload[-1:] for change in rule_plan([one, other], [one])] == [
        b"1",
        b"1",
        b"2",
    ]

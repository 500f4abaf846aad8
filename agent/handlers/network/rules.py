"""Policy rules: checked, read with all their parts, and planned.

The kernel tells rules apart by all their parts; two of one priority are looked at in the
order in which they came. A removal takes the first one of its priority that has all the
parts that the message has, and may have more (rule_find in net/core/fib_rules.c). So the
kernel's own message of a rule is kept where our words don't cover it: sent back it removes
exactly that rule, as `ip rule flush` does, or makes it again.
"""

from __future__ import annotations

import dataclasses
import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.core.netlink import NLM_F_CREATE, NLM_F_DUMP, Change, Question
from agent.core.network import Family, RuleAction
from agent.core.rtnl import rules as rtnl
from agent.core.rtnl.messages import HEADER_SIZE, RTM_GETRULE, RTM_NEWRULE
from agent.handlers.network.kernelroutes import KERNEL_PRIORITIES, is_kernels_rule
from agent.handlers.network.routetexts import rule_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.core.deadlines import Deadline
    from agent.core.netlink import Netlink
    from agent.core.network import Rule, RuleSet

RULE_LIMIT: Final = 4096

_ALL_BITS: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct("=BBBBBBBBI")
"""struct fib_rule_hdr: family, dst_len, src_len, tos, table, res1, res2, action, flags."""
_FLAGS_OFFSET: Final = 8
_INVERT: Final = 2
"""FIB_RULE_INVERT; the other flags tell how things are, and are not the rule's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRule:
    """A rule; `raw` is the kernel's message of it where the words don't cover it."""

    rule: Rule
    raw: bytes = b""

    @property
    def is_kernels(self) -> bool:
        """A goto and a nop look into no table either, but are not VRFs' rules."""
        jumps = bool(self.raw) and self.raw[7] != RuleAction.TABLE
        if jumps:
            return is_kernels_rule(dataclasses.replace(self.rule, table=1))
        return is_kernels_rule(self.rule)

    def add(self, *, twice: bool = False) -> Change:
        """`twice`: also where the same rule is there."""
        what = f"add {self.text}"
        change = rtnl.added(self.rule, what)
        if self.raw:
            change = dataclasses.replace(change, type=RTM_NEWRULE, payload=self.raw)
        return dataclasses.replace(change, flags=NLM_F_CREATE) if twice else change

    def remove(self) -> Change:
        change = rtnl.removed(self.rule, f"remove {self.text}")
        gone = frozenset({errno.ENOENT})
        if self.raw:
            return dataclasses.replace(change, payload=self.raw, fine=gone)
        return dataclasses.replace(change, fine=gone)

    @property
    def text(self) -> str:
        return f"{self.rule.family.word} rule {self.rule.priority}: {rule_text(self.rule)}"


def _settable(raw: bytes) -> bytes:
    """As it can be sent back: without the flags that say how things stand."""
    (flags,) = struct.unpack_from("=I", raw, _FLAGS_OFFSET)
    return raw[:_FLAGS_OFFSET] + struct.pack("=I", flags & _INVERT) + raw[_HEADER.size :]


async def held_rules(netlink: Netlink, family: Family, deadline: Deadline) -> list[HeldRule]:
    """All rules of a family in the kernel's order."""
    question = Question(
        what=f"list the IP{family.word} rules",
        type=RTM_GETRULE,
        flags=NLM_F_DUMP,
        payload=_HEADER.pack(family, 0, 0, 0, 0, 0, 0, 0, 0),
        decode=_decode,
    )
    return [held for held in await netlink.ask(question, deadline) if held is not None]


def _decode(data: bytes) -> HeldRule | None:
    rule = rtnl.decode(data)
    if rule is None:
        return None
    return HeldRule(rule=rule, raw=_settable(data[HEADER_SIZE:]) if rule.others else b"")


# --- checks -----------------------------------------------------------------------------


def check_rule_sets(sets: Sequence[RuleSet]) -> None:
    """Raises BAD_FIELD."""
    count = sum(len(each.rules) for each in sets)
    if count > RULE_LIMIT:
        raise _bad("rules", f"{count:,} rules are more than {RULE_LIMIT:,}")
    families: dict[Family, int] = {}
    for number, each in enumerate(sets):
        former = families.setdefault(each.family, number)
        if former != number:
            raise _bad(
                f"rules[{number}]",
                f"the {each.family.word} rules are in rules[{former}] and rules[{number}]",
            )
        _check_set(each, f"rules[{number}]")


def _check_set(each: RuleSet, where: str) -> None:
    seen: dict[int, int] = {}
    for place, rule in enumerate(each.rules):
        field = f"{where}.rules[{place}]"
        former = seen.setdefault(rule.priority, place)
        if former != place:
            raise _bad(
                f"{field}.priority",
                f"rules[{former}] and rules[{place}] of {each.family.word} both have "
                f"priority {rule.priority}",
                hint="rules of one priority have no order that can be relied on",
            )
        _check_rule(rule, each.family, field)


def _check_rule(rule: Rule, family: Family, where: str) -> None:
    text = f"{family.word} rule {rule.priority}"
    for name, prefix in (("source", rule.source), ("destination", rule.destination)):
        if prefix is not None and Family.of(prefix) is not family:
            raise _bad(f"{where}.{name}", f"{text}: {prefix} is not {family.word}")
    if not 0 <= rule.priority <= _ALL_BITS:
        raise _bad(f"{where}.priority", f"{text}: the priority has over 32 bits")
    if rule.mark is not None and not 0 <= rule.mark <= _ALL_BITS:
        raise _bad(f"{where}.mark", f"{text}: mark {rule.mark} has over 32 bits")
    if not 0 <= rule.mark_mask <= _ALL_BITS:
        raise _bad(f"{where}.mark_mask", f"{text}: mask {rule.mark_mask} has over 32 bits")
    if not 0 <= rule.ip_protocol <= 255:
        raise _bad(f"{where}.ip_protocol", f"{text}: protocol {rule.ip_protocol} is over 255")
    _check_names(rule, where, text)
    _check_action(rule, family, where, text)


def _check_names(rule: Rule, where: str, text: str) -> None:
    """An interface need not be there: the kernel keeps the rule for when it comes."""
    for name, device in (("incoming", rule.incoming), ("outgoing", rule.outgoing)):
        if len(device.encode(errors="surrogateescape")) > 15 or "\0" in device:
            raise _bad(f"{where}.{name}", f"{text}: {device!r} is no name of an interface")


def _check_action(rule: Rule, family: Family, where: str, text: str) -> None:
    suppressed = rule.suppress_prefix_length
    if rule.action is not RuleAction.TABLE:
        if rule.table or suppressed is not None:
            word = rule.action.name.lower()
            raise _bad(where, f"{text}: {word} looks into no table")
        return
    if rule.priority in KERNEL_PRIORITIES:
        return
    if not 1 <= rule.table <= _ALL_BITS:
        raise _bad(f"{where}.table", f"{text}: table {rule.table} is not between 1 and {_ALL_BITS}")
    if suppressed is not None and not 0 <= suppressed <= family.bits:
        raise _bad(
            f"{where}.suppress_prefix_length",
            f"{text}: a prefix of {family.word} has 0 to {family.bits} bits, not {suppressed}",
        )


# --- what shall be there ----------------------------------------------------------------


def rule_target(now: Sequence[HeldRule], wanted: RuleSet) -> list[HeldRule]:
    """The rules of one family that shall be there: the kernel's, those that satisfy a
    wanted one, new ones. Raises BAD_FIELD for a priority of the kernel's."""
    staying: set[int] = set()
    new: list[HeldRule] = []
    by_priority: dict[int, list[int]] = {}
    for place, held in enumerate(now):
        by_priority.setdefault(held.rule.priority, []).append(place)
    for number, rule in enumerate(wanted.rules):
        same = [
            place
            for place in by_priority.get(rule.priority, ())
            if _canonical(now[place].rule) == _canonical(rule)
        ]
        staying.update(same[:1])
        if not same:
            _check_priority(rule, number)
            new.append(HeldRule(rule=_canonical(rule, keep_protocol=True)))
    kept = [held for place, held in enumerate(now) if held.is_kernels or place in staying]
    return kept + new


def _check_priority(rule: Rule, number: int) -> None:
    if rule.priority in KERNEL_PRIORITIES or rule.priority > max(KERNEL_PRIORITIES):
        raise _bad(
            f"rules[{number}].priority",
            f"{rule.family.word} rule {rule.priority} ({rule_text(rule)}) can't be made",
            hint="0, 32766 and 32767 are the kernel's own; use 1 to 32765",
        )


def _canonical(rule: Rule, *, keep_protocol: bool = False) -> Rule:
    """With what means the same written the same."""
    mask = rule.mark_mask or _ALL_BITS
    return dataclasses.replace(
        rule,
        source=rule.source if rule.source is not None and rule.source.prefixlen else None,
        destination=rule.destination
        if rule.destination is not None and rule.destination.prefixlen
        else None,
        mark_mask=_ALL_BITS if rule.mark is None else mask,
        protocol=rule.protocol if keep_protocol else 0,
    )


# --- planning ---------------------------------------------------------------------------


def rule_plan(now: Sequence[HeldRule], target: Sequence[HeldRule]) -> tuple[Change, ...]:
    """From `now` to `target`, the rules of one family, priority by priority: what is new
    comes first, then what is too much goes."""
    priorities: dict[int, tuple[list[HeldRule], list[HeldRule]]] = {}
    for place, rules in enumerate((now, target)):
        for held in rules:
            if not held.is_kernels:
                priorities.setdefault(held.rule.priority, ([], []))[place].append(held)
    changes: list[Change] = []
    for _, (has, shall) in sorted(priorities.items()):
        if has != shall:
            changes += _of_priority(has, shall)
    return tuple(changes)


def _of_priority(has: list[HeldRule], shall: list[HeldRule]) -> Iterable[Change]:
    kept = [held for held in has if held in shall]
    new = [held for held in shall if held not in has]
    gone = [held for held in has if held not in shall]
    if kept + new != shall or any(_could_mean(old, other) for old in gone for other in kept):
        # All of them once more, then the former ones, which are the first, go in order.
        return (*(held.add(twice=True) for held in shall), *(held.remove() for held in has))
    return (*(held.add() for held in new), *(held.remove() for held in gone))


def _could_mean(removed: HeldRule, other: HeldRule) -> bool:
    """Whether a removal might take another one: unless a part differs that both have."""
    one, another = removed.rule, other.rule
    if one.table and another.table and one.table != another.table:
        return False
    return not any(
        mine is not None and mine != "" and mine != theirs
        for mine, theirs in (
            (one.source, another.source),
            (one.destination, another.destination),
            (one.incoming, another.incoming),
            (one.outgoing, another.outgoing),
        )
    )


def _bad(field: str, message: str, *, hint: str | None = None) -> Exception:
    return invalid(message, field=field, hint=hint)

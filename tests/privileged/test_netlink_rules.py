"""Policy rules in the kernel's messages and back, with ip(8) as the witness."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest

from agent.core.netlink import NetlinkRefusal
from agent.core.network import (
    MAIN_TABLE,
    Family,
    LinkKind,
    LinkMaking,
    Protocol,
    Rule,
    RuleAction,
)
from agent.core.rtnl import rules
from tests.privileged.netlab import (
    Lab,
    lab,
)

pytestmark = [pytest.mark.privileged, pytest.mark.network]

V4, V6 = Family.V4, Family.V6
VETH = LinkMaking(kind=LinkKind.VETH, peer_name="v1")


@pytest.fixture
async def net() -> AsyncIterator[Lab]:
    async with lab() as made:
        yield made


RULES = (
    Rule(family=V4, priority=100, table=100, source=ip_network("192.0.2.0/24")),
    Rule(family=V4, priority=0, table=5000),
    Rule(family=V4, priority=101, table=101, destination=ip_network("198.51.100.7/32")),
    Rule(family=V4, priority=102, table=102, incoming="v0", outgoing="v1"),
    Rule(family=V4, priority=103, table=103, mark=0x10, mark_mask=0xF0),
    Rule(family=V4, priority=104, table=104, mark=0, mark_mask=0xF0),
    Rule(family=V4, priority=105, table=105, mark=7),
    Rule(family=V4, priority=106, action=RuleAction.BLACKHOLE, source=ip_network("10.0.0.0/8")),
    Rule(family=V4, priority=107, action=RuleAction.UNREACHABLE, incoming="v0"),
    Rule(family=V4, priority=108, action=RuleAction.PROHIBIT, incoming="v0"),
    Rule(family=V4, priority=109, table=MAIN_TABLE, suppress_prefix_length=0),
    Rule(family=V4, priority=110, table=110, ip_protocol=6, protocol=Protocol.STATIC),
    Rule(family=V4, priority=111, table=111, mark=9, invert=True),
    Rule(family=V6, priority=100, table=1_000_000, source=ip_network("2001:db8::/32")),
    Rule(family=V6, priority=101, table=101, destination=ip_network("2001:db8::9/128")),
)


KEYS = (
    *("priority", "src", "srclen", "dst", "dstlen", "not", "iif", "oif", "table"),
    *("fwmark", "fwmask", "action"),
)
TABLES = {253: "default", 254: "main", 255: "local"}


def rule_as_ip_has_it(rule: Rule) -> dict[str, object]:
    def end(network: Any, key: str) -> dict[str, object]:
        if network is None:
            return {}
        alone = network.prefixlen == rule.family.bits
        length = {} if alone else {f"{key}len": network.prefixlen}
        return {key: str(network.network_address)} | length

    action = rule.action.name.lower()
    shown: dict[str, object] = {"priority": rule.priority, "src": "all"}
    shown |= end(rule.source, "src") | end(rule.destination, "dst")
    shown |= {"not": None} if rule.invert else {}
    shown |= {"iif": rule.incoming} if rule.incoming else {}
    shown |= {"oif": rule.outgoing} if rule.outgoing else {}
    if rule.mark is not None:
        shown |= {"fwmark": hex(rule.mark)}
        full = rule.mark_mask == 0xFFFFFFFF
        shown |= {} if full else {"fwmask": hex(rule.mark_mask)}
    if rule.action is RuleAction.TABLE:
        shown |= {"table": TABLES.get(rule.table, str(rule.table))}
    else:
        shown |= {"action": action}
    return shown


async def rules_agree(net: Lab, family: Family) -> tuple[Rule, ...]:
    found = await rules.all_rules(net.netlink, net.deadline, family=family)
    told = net.ip("-4" if family is V4 else "-6", "-j", "rule", "show")
    shown = [{key: rule[key] for key in KEYS if key in rule} for rule in told]
    for rule in shown:
        if rule.get("fwmark") == "0":  # ip does not spell this one 0x0
            rule["fwmark"] = "0x0"
    assert [rule_as_ip_has_it(rule) for rule in found] == shown
    return found


@pytest.mark.parametrize("family", Family)
async def test_rules_of_every_sort_are_made_shown_and_removed(net: Lab, family: Family) -> None:
    await net.make("v0", VETH)
    before = await rules.all_rules(net.netlink, net.deadline, family=family)
    assert all(rule.protocol == Protocol.KERNEL for rule in before)
    wanted = [rule for rule in RULES if rule.family is family]
    await net.do(*(rules.added(rule, f"add rule {rule.priority}") for rule in wanted))
    found = await rules_agree(net, family)
    assert set(found) - set(before) == set(wanted)
    with pytest.raises(NetlinkRefusal) as caught:
        await net.do(rules.added(wanted[0], "add it again"))
    assert caught.value.errno == 17
    await net.do(*(rules.removed(rule, f"remove rule {rule.priority}") for rule in wanted))
    assert await rules.all_rules(net.netlink, net.deadline, family=family) == before


@pytest.mark.parametrize(
    "parts",
    [
        ("sport", "80", "table", "7"),
        ("uidrange", "1-5", "table", "7"),
        ("tos", "0x10", "table", "7"),
        ("goto", "32766"),
    ],
)
async def test_a_rule_with_parts_that_have_no_word_is_told_and_removed(
    net: Lab, parts: tuple[str, ...]
) -> None:
    before = await rules.all_rules(net.netlink, net.deadline, family=V4)
    net.ip("rule", "add", "pref", "50", *parts)
    found = await rules.all_rules(net.netlink, net.deadline, family=V4)
    (odd,) = set(found) - set(before)
    assert (odd.others, odd.priority) == (True, 50)
    assert not any(rule.others for rule in before)
    await net.do(rules.removed(odd, "remove it"))
    assert await rules.all_rules(net.netlink, net.deadline, family=V4) == before

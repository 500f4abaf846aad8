"""Policy rules in the kernel's messages and back, against layouts by hand."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.deadlines import Deadline
from agent.core.network import Family, Protocol, Rule, RuleAction
from agent.core.rtnl import rules
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import attribute, frame

pytestmark = [pytest.mark.unit, pytest.mark.network]

HEADER = "=BBBBBBBBI"
INET = 2
# include/uapi/linux/fib_rules.h
FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_PRIORITY, FRA_FWMARK = 1, 2, 3, 6, 10
FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_FWMASK, FRA_OIFNAME = 14, 15, 16, 17
FRA_L3MDEV, FRA_UID_RANGE, FRA_PROTOCOL, FRA_IP_PROTO, FRA_SPORT_RANGE = 19, 20, 21, 22, 23
FRA_DSCP = 25
ALL = 0xFFFFFFFF


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def test_a_rule_with_everything() -> None:
    rule = Rule(
        family=Family.V4,
        priority=100,
        table=100_000,
        source=ip_network("10.0.0.0/8"),
        destination=ip_network("192.0.2.9"),
        incoming="eth0",
        outgoing="eth1",
        mark=0x10,
        mark_mask=0xF0,
        invert=True,
        ip_protocol=6,
        suppress_prefix_length=0,
    )
    change = rules.added(rule, "add it")
    assert (change.what, change.type, change.flags) == ("add it", 32, 0x600)
    fields, attributes = raw.parts(change.payload, HEADER)
    # family, lengths, tos, RT_TABLE_COMPAT, FR_ACT_TO_TBL, FIB_RULE_INVERT
    assert fields == (INET, 32, 8, 0, 252, 0, 0, 1, 2)
    assert dict(attributes) == {
        FRA_SRC: IPv4Address("10.0.0.0").packed,
        FRA_DST: IPv4Address("192.0.2.9").packed,
        FRA_PRIORITY: u32(100),
        FRA_TABLE: u32(100_000),
        FRA_IIFNAME: b"eth0\0",
        FRA_OIFNAME: b"eth1\0",
        FRA_FWMARK: u32(0x10),
        FRA_FWMASK: u32(0xF0),
        FRA_IP_PROTO: b"\6",
        FRA_SUPPRESS_PREFIXLEN: u32(0),
        FRA_PROTOCOL: bytes([3]),
    }


def test_a_rule_that_is_as_bare_as_can_be() -> None:
    """Priority 0 has to be said: without it the kernel chooses one."""
    fields, attributes = raw.parts(
        rules.added(Rule(family=Family.V4, priority=0, table=7), "x").payload, HEADER
    )
    assert fields == (INET, 0, 0, 0, 7, 0, 0, 1, 0)
    assert dict(attributes) == {
        FRA_PRIORITY: u32(0),
        FRA_TABLE: u32(7),
        FRA_PROTOCOL: bytes([3]),
    }


@pytest.mark.parametrize(
    ("action", "number"),
    [(RuleAction.BLACKHOLE, 6), (RuleAction.UNREACHABLE, 7), (RuleAction.PROHIBIT, 8)],
)
def test_a_rule_that_refuses(action: RuleAction, number: int) -> None:
    change = rules.removed(Rule(family=Family.V6, priority=5, action=action), "x")
    fields, attributes = raw.parts(change.payload, HEADER)
    assert (change.type, fields[7]) == (33, number)
    assert FRA_TABLE not in dict(attributes)


def test_a_mark_of_0_is_told_by_its_mask() -> None:
    def mark(*attributes: bytes) -> tuple[int | None, int]:
        found = rules.decode(raw.rule(INET, *attributes))
        assert found is not None
        return found.mark, found.mark_mask

    assert mark() == (None, ALL)
    assert mark(raw.number(FRA_FWMASK, 0xF0)) == (0, 0xF0)
    assert mark(raw.number(FRA_FWMARK, 7), raw.number(FRA_FWMASK, ALL)) == (7, ALL)


def test_all_bits_suppress_nothing() -> None:
    def suppressed(value: int) -> int | None:
        found = rules.decode(raw.rule(INET, raw.number(FRA_SUPPRESS_PREFIXLEN, value)))
        assert found is not None
        return found.suppress_prefix_length

    assert (suppressed(ALL), suppressed(0), suppressed(32)) == (None, 0, 32)


@pytest.mark.parametrize(
    "message",
    [
        raw.rule(INET, attribute(FRA_L3MDEV, b"\1")),
        raw.rule(INET, attribute(FRA_UID_RANGE, struct.pack("=II", 1, 5))),
        raw.rule(INET, attribute(FRA_SPORT_RANGE, struct.pack("=HH", 80, 80))),
        raw.rule(INET, attribute(FRA_DSCP, b"\1")),
        raw.rule(INET, attribute(99, b"\1")),
        raw.rule(INET, tos=0x10),
        raw.rule(INET, action=2),
        raw.rule(INET, action=3),
    ],
    ids=["l3mdev", "uids", "ports", "dscp", "unknown", "tos", "goto", "nop"],
)
def test_parts_without_a_word(message: bytes) -> None:
    found = rules.decode(message)
    assert found is not None
    assert found.others
    # It is removed by what is known of it: FR_ACT_UNSPEC is any action.
    assert raw.parts(rules.removed(found, "x").payload, HEADER)[0][7] == 0


def test_what_the_kernel_always_tells_is_no_other_part() -> None:
    always = (
        raw.number(FRA_TABLE, 254),
        raw.number(FRA_SUPPRESS_PREFIXLEN, ALL),
        attribute(FRA_PROTOCOL, b"\2"),
    )
    assert rules.decode(raw.rule(INET, *always)) == Rule(
        family=Family.V4, priority=0, table=254, protocol=Protocol.KERNEL
    )


def test_rules_of_another_family_are_left_out() -> None:
    """Multicast routing has rules of its own (RTNL_FAMILY_IPMR, 128)."""
    assert rules.decode(raw.rule(128)) is None


async def test_a_listing() -> None:
    netlink = raw.AnsweringNetlink(lambda _: [raw.rule(INET, raw.number(FRA_PRIORITY, 7))])
    found = await rules.all_rules(netlink, Deadline.after(60), family=Family.V4)
    assert [rule.priority for rule in found] == [7]
    (question,) = netlink.questions
    assert (question.type, question.flags) == (34, 0x300)
    assert raw.parts(question.payload, HEADER) == ((INET, 0, 0, 0, 0, 0, 0, 0, 0), [])


@st.composite
def any_rule(draw: st.DrawFn) -> Rule:
    family = draw(st.sampled_from(Family))
    addresses = st.ip_addresses(v=4 if family is Family.V4 else 6)
    networks = st.builds(
        lambda address, length: ip_network((address, length), strict=False),
        addresses,
        st.integers(1, family.bits),
    )
    names = st.sampled_from(("", "eth0", "ein-name-15-lang"))
    action = draw(st.sampled_from(RuleAction))
    marked = draw(st.booleans())
    return Rule(
        family=family,
        priority=draw(st.integers(0, ALL)),
        action=action,
        table=draw(st.integers(1, ALL)) if action is RuleAction.TABLE else 0,
        source=draw(st.none() | networks),
        destination=draw(st.none() | networks),
        incoming=draw(names),
        outgoing=draw(names),
        mark=draw(st.integers(0, ALL)) if marked else None,
        mark_mask=draw(st.integers(0, ALL)) if marked else ALL,
        invert=draw(st.booleans()),
        ip_protocol=draw(st.integers(0, 255)),
        suppress_prefix_length=draw(st.none() | st.integers(0, 128)),
        protocol=draw(st.integers(0, 255)),
    )


@given(any_rule())
def test_what_is_written_is_what_is_read(rule: Rule) -> None:
    assert rules.decode(frame(32, rules.added(rule, "x").payload, sequence=1)) == rule

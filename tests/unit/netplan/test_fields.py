"""Values by their keys, and no key left over."""

from __future__ import annotations

import pytest

from innkeeper.netplan.fields import Fields
from innkeeper.netplan.tree import NetplanError, parse

pytestmark = [pytest.mark.unit, pytest.mark.network]


def fields(text: str) -> Fields:
    return Fields(parse(text), "eth0")


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        *((word, True) for word in ("true", "True", "TRUE", "yes", "Yes", "on", "y")),
        *((word, False) for word in ("false", "no", "NO", "off", "n")),
    ],
)
def test_flags_are_those_of_yaml_1_1(text: str, flag: bool) -> None:
    """yaml.org/type/bool."""
    assert fields(f"optional: {text}").flag("optional") is flag


def test_a_key_that_is_not_there_says_nothing() -> None:
    found = fields("other: 1")
    assert (found.flag("x"), found.number("x", range(9)), found.text("x")) == (None, None, "")
    assert (found.texts("x"), found.fields("x"), found.has("x")) == ((), None, False)


@pytest.mark.parametrize(("text", "number"), [("16", 16), ("0x10", 16), ("010", 10), ("0", 0)])
def test_numbers_are_decimal_or_say_that_they_are_not(text: str, number: int) -> None:
    assert fields(f"mark: {text}").number("mark", range(100)) == number


@pytest.mark.parametrize(
    ("text", "unit", "millis"),
    [("4", "s", 4000), ("4", "ms", 4), ("4s", "ms", 4000), ("9ms", "s", 9)],
)
def test_durations_have_a_suffix_or_their_keys_unit(text: str, unit: str, millis: int) -> None:
    """As netplan's reference has it for parameters of bonds and bridges."""
    assert fields(f"forward-delay: {text}").milliseconds("forward-delay", unit) == millis


@pytest.mark.parametrize(
    ("text", "read", "told"),
    [
        ("a: maybe", lambda f: f.flag("a"), "'maybe' is neither true nor false"),
        ("a: ten", lambda f: f.number("a", range(9)), "0 to 8 is possible"),
        ("a: 9", lambda f: f.number("a", range(9)), "0 to 8 is possible"),
        ("a: -1", lambda f: f.number("a", range(9)), "0 to 8 is possible"),
        ("a: [x]", lambda f: f.text("a"), "one value is wanted"),
        ("a:", lambda f: f.text("a"), "one value is wanted"),
        ("a: x", lambda f: f.texts("a"), "a list is wanted"),
        ("a: [{b: c}]", lambda f: f.texts("a"), "plain values"),
        ("a: [b]", lambda f: f.fields("a"), "keys are wanted"),
        ("a: 4h", lambda f: f.milliseconds("a", "s"), "with ms or s"),
        ("a: x", lambda f: f.choice("a", frozenset({"y", "z"})), "none of y, z"),
    ],
)
def test_what_a_key_can_not_be_is_told_with_line_and_place(
    text: str, read: object, told: str
) -> None:
    with pytest.raises(NetplanError, match=f"line 1: eth0: a: .*{told}"):
        read(fields(text))  # type: ignore[operator]


def test_a_key_that_nobody_knows_is_told_with_the_nearest() -> None:
    found = fields("mtu: 1500\nadresses: []\n")
    found.number("mtu", range(9000))
    found.texts("addresses")
    with pytest.raises(NetplanError, match="line 2: eth0: no key 'adresses'") as caught:
        found.finish()
    assert caught.value.hint == "is addresses meant?"


def test_a_key_that_is_like_none_is_told_with_all() -> None:
    found = fields("zzz: 1")
    found.ignore("mtu", "routes")
    with pytest.raises(NetplanError) as caught:
        found.finish()
    assert caught.value.hint == "it has mtu, routes"


def test_a_key_that_is_refused_says_why() -> None:
    with pytest.raises(NetplanError, match="line 1: eth0: auth: nothing here does that"):
        fields("auth: {}").refuse("nothing here does that", "mtu", "auth")


def test_nothing_is_a_mapping_without_keys() -> None:
    found = Fields(parse("eth0:"), "the file").fields("eth0")
    assert found is not None
    assert found.items() == ()

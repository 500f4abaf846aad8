"""YAML as texts with lines: what a text means is not guessed (YAML 1.1, 10.3: a MAC address
is an integer in base 60 there, `no` is false)."""

from __future__ import annotations

import pytest

from innkeeper.netplan.tree import Items, NetplanError, Table, Text, parse

pytestmark = [pytest.mark.unit, pytest.mark.network]


def test_texts_stay_what_they_are() -> None:
    node = parse("a: 52:54:00:12:34:56\nb: no\nc: 0x10\nd: 010\ne: 2001:db8::1/64\nf: '7'\n")
    assert isinstance(node, Table)
    texts = [each.text for each in node.entries.values() if isinstance(each, Text)]
    assert texts == ["52:54:00:12:34:56", "no", "0x10", "010", "2001:db8::1/64", "7"]


def test_lines_are_counted_from_one() -> None:
    node = parse("# of nothing\na:\n  - x\n\n  - {k: v}\n")
    assert isinstance(node, Table)
    assert node.lines == {"a": 2}
    items = node.entries["a"]
    assert isinstance(items, Items)
    assert [each.line for each in items.items] == [3, 5]


@pytest.mark.parametrize("nothing", ["a:", "a: ~", "a: null"])
def test_nothing_is_an_empty_text(nothing: str) -> None:
    node = parse(nothing)
    assert isinstance(node, Table)
    assert node.entries["a"] == Text(line=1, text="")


def test_a_quoted_null_is_a_word() -> None:
    node = parse('a: "null"')
    assert isinstance(node, Table)
    assert node.entries["a"] == Text(line=1, text="null")


def test_anchors_are_what_they_stand_for() -> None:
    node = parse("a: &x [1]\nb: *x\n")
    assert isinstance(node, Table)
    assert node.entries["a"] == node.entries["b"]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a: is there twice, first in line 1"),
        ("a: 1\n b: 2\n", 2, "no YAML"),
        ("a: [1, 2\n", 2, "no YAML"),
        ("a: *x\n", 1, "no YAML"),
        ("a: 1\n---\nb: 2\n", 2, "no YAML"),
        ("? [a]\n: b\n", 1, "no plain word"),
        ("a:\n\tb: 1\n", 2, "no YAML"),
        ("", 0, "nothing is in it"),
        ("# only a comment\n", 0, "nothing is in it"),
        ("[" * 10_000, 0, "nested too deeply"),
        ("a: \x00", 0, "no YAML"),
        ("x" * (1 << 20) + "x", 0, "too large"),
    ],
)
def test_what_is_no_tree_is_told_with_its_line(text: str, line: int, told: str) -> None:
    with pytest.raises(NetplanError, match=told) as caught:
        parse(text)
    assert caught.value.line == line


def test_a_tree_that_holds_itself_ends() -> None:
    with pytest.raises(NetplanError):
        parse("a: &x\n  b: *x\n")

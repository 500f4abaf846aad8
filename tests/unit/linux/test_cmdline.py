"""The kernel's own quoting rules; expectations are what `next_arg()` of lib/cmdline.c gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.linux.cmdline import last_value, parse, parse_size

pytestmark = [pytest.mark.unit, pytest.mark.boot]

NAMES = st.text("abcdefghijklmnopqrstuvwxyz._-0123456789", min_size=1).filter(
    lambda name: name != "--"
)
VALUES = st.text().filter(lambda value: '"' not in value)


def test_quotes_protect_spaces_and_double_spaces() -> None:
    text = 'dm-mod.create="a,,,ro,0 1 verity agent.log=trace" agent.log=debug\t"agent.x=a  b" flag'
    assert parse(text) == [
        ("dm-mod.create", "a,,,ro,0 1 verity agent.log=trace"),
        ("agent.log", "debug"),
        ("agent.x", "a  b"),
        ("flag", None),
    ]


def test_single_quotes_and_backslashes_are_ordinary() -> None:
    assert parse(r"a='x y' b=c\ d") == [("a", "'x"), ("y'", None), ("b", "c\\"), ("d", None)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\n", []),
        ("agent.server_addr=vsock://-1:1024", [("agent.server_addr", "vsock://-1:1024")]),
        ("agent.y=a=b=c", [("agent.y", "a=b=c")]),
        ("agent.log=", [("agent.log", "")]),
        ("agent.log", [("agent.log", None)]),
        ("=x", [("=x", None)]),
        ("=a=b", [("=a", "b")]),
        ("a -- b", [("a", None)]),
        ("a --b c", [("a", None), ("--b", None), ("c", None)]),
        ("--=1 c", [("--", "1"), ("c", None)]),
        ('a="b c', [("a", "b c")]),
        ('a="', [("a", "")]),
        ('a=""', [("a", "")]),
        ('"a b"', [("a b", None)]),
        ('"', [("", None)]),
        ('a=b" "c', [("a", 'b" "c')]),
        ('a="b"c', [("a", 'b"c')]),
        ("à=é", [("à", "é")]),
    ],
)
def test_words(text: str, words: list[tuple[str, str | None]]) -> None:
    assert parse(text) == words


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_quoted_words_come_back_whole(words: list[tuple[str, str]]) -> None:
    text = " ".join(f'{name}="{value}"' for name, value in words)
    assert parse(text) == words


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_words_in_outer_quotes_come_back_whole(words: list[tuple[str, str]]) -> None:
    text = "\t".join(f'"{name}={value}"' for name, value in words)
    assert parse(text) == words


@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    assert all(name != "--" or value is not None for name, value in parse(text))


def test_last_value() -> None:
    words = parse("a=1 b a=2 c=3")
    assert last_value(words, "a") == "2"
    assert last_value(words, "b") is None
    assert last_value(words, "missing") is None


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64K", 65536), ("2m", 2 << 20), ("1G", 1 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "K", "-1", "1.5M", "64KB", "0x10", "²"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)

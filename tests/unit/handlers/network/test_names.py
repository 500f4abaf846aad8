"""Names are checked in bytes, before the kernel is asked (cases of many agents and tools)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError, Reason
from agent.handlers.network.names import (
    check_altname,
    check_name,
    fallback_name,
    is_temporary,
    temporary_name,
)

pytestmark = [pytest.mark.unit, pytest.mark.network]

GOOD = ("eth0", "abcdefghijklmno", "é" * 6, "a.b", "...", "eth0.100", "-", "~", "@x", "if0")
BAD = (
    "",
    "abcdefghijklmnop",  # 16 bytes: IFNAMSIZ with its zero
    "é" * 8,  # 16 bytes
    "a/b",
    "a b",
    "a:b",
    "e%d",  # a template: the kernel would give another name
    ".",
    "..",
    "a\tb",
    "a\n",
    "a\x00b",
    "\x7f",
    "a\u00a0b",  # the kernel's isspace() takes the byte 0xa0 for a blank
    "\udcff",  # a byte that is no UTF-8
    "all",
    "default",
    "~ik3",  # the agent's own for a moment
)


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_a_name(name: str) -> None:
    check_name(name, "name")


@pytest.mark.parametrize("name", BAD)
def test_what_may_not(name: str) -> None:
    with pytest.raises(AgentError) as caught:
        check_name(name, "name")
    assert caught.value.reason is Reason.BAD_FIELD
    assert caught.value.fields["field"] == "name"


def test_alternative_names_are_longer() -> None:
    """ALTIFNAMSIZ is 128 with its zero."""
    check_altname("a" * 127, "alternative_names")
    for name in ("", "a" * 128, "é" * 64, "a/b", ".."):
        with pytest.raises(AgentError):
            check_altname(name, "alternative_names")


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1))
def test_temporary_names(one: int, other: int) -> None:
    """They fit whatever the index is, are known again, and nobody can ask for them."""
    name = temporary_name(one)
    assert len(name.encode()) <= 15
    assert is_temporary(name)
    assert (name == temporary_name(other)) == (one == other)
    with pytest.raises(AgentError):
        check_name(name, "name")


def test_the_first_free_one() -> None:
    assert fallback_name({"if0", "if1", "if3"}) == "if2"

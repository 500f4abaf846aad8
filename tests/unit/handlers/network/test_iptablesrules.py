"""Text of iptables-save, completed. What a section is: iptables-restore(8), iptables(8)."""

from __future__ import annotations

import pytest

from agent.handlers.network.iptablesrules import completed, tables_of

pytestmark = [pytest.mark.unit, pytest.mark.network]

FILTER = b"*filter\n:INPUT DROP [3:180]\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n"
EMPTY_NAT = (
    b"*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n"
    b":POSTROUTING ACCEPT [0:0]\nCOMMIT\n"
)


def test_chains_without_a_line_get_their_default() -> None:
    assert completed(FILTER, ()).text == (
        b"*filter\n:INPUT DROP [3:180]\n-A INPUT -i lo -j ACCEPT\n"
        b":FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"
    )


def test_tables_that_are_there_and_not_given_are_emptied() -> None:
    assert completed(FILTER, ("nat", "filter")).text.endswith(b"COMMIT\n" + EMPTY_NAT)


def test_nothing_given_empties_all_tables() -> None:
    assert completed(b"", ("nat",)).text == EMPTY_NAT
    assert completed(b"", ()).text == b""


def test_line_numbers_in_messages_are_the_callers() -> None:
    """The second section's lines come after those that were put into the first."""
    wanted = completed(FILTER + b"*nat\n-A INPUT -j MASQUERADE\nCOMMIT\n", ())
    sent = wanted.lines.index(b"-A INPUT -j MASQUERADE") + 1
    assert sent == 8
    for said in (
        "line {}: RULE_APPEND failed (Invalid argument): rule in chain INPUT",
        "Error occurred at line: {}",
        "iptables-restore: line {} failed",
    ):
        assert wanted.in_their_words(said.format(sent)) == said.format(6)
    assert wanted.in_their_words("COMMIT expected at line 99") == "COMMIT expected at line 99"


def test_tables_of_a_text() -> None:
    assert tables_of(FILTER + b"# *raw\n*nat\nCOMMIT\n") == {"filter", "nat"}
    assert tables_of(b"*\n") == {""}

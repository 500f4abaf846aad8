"""nft's JSON as one transaction. Format: libnftables-json(5)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.handlers.network.nftrules import hint_for, transaction

pytestmark = [pytest.mark.unit, pytest.mark.network]

FLUSH = {"flush": {"ruleset": None}}
INFO = {"metainfo": {"version": "1.1.3", "json_schema_version": 1}}
TABLE = {"table": {"family": "inet", "name": "t", "handle": 1}}
MAP = {"map": {"family": "inet", "table": "t", "name": "m", "handle": 2, "elem": []}}
CHAIN = {"chain": {"family": "inet", "table": "t", "name": "c", "handle": 3}}
RULE = {
    "rule": {
        "family": "inet",
        "table": "t",
        "chain": "c",
        "handle": 4,
        "expr": [{"match": {"left": {"rt": {"key": "mtu"}}, "op": "==", "right": {"handle": 7}}}],
    }
}


def made(*objects: object) -> list[Any]:
    text = json.dumps({"nftables": objects}).encode()
    result: list[Any] = json.loads(transaction(text).text)["nftables"]
    return result


@pytest.mark.parametrize("rules", [b"", b" \n", b'{"nftables": []}'])
def test_no_rules_leave_none(rules: bytes) -> None:
    assert json.loads(transaction(rules).text) == {"nftables": [FLUSH]}


def test_everything_goes_first_in_the_same_transaction() -> None:
    assert made(TABLE)[0] == FLUSH


def test_handles_of_a_list_go_and_nothing_else() -> None:
    """Some versions take a rule's handle for the place to put it."""
    _, table, rule = made(TABLE, RULE)
    assert table == {"table": {"family": "inet", "name": "t"}}
    assert rule["rule"] == {key: RULE["rule"][key] for key in RULE["rule"] if key != "handle"}


def test_chains_come_before_the_maps_that_jump_to_them() -> None:
    """nft before 1.0.7 lists maps first, and the kernel takes a batch in its order."""
    kinds = [next(iter(item)) for item in made(INFO, TABLE, MAP, CHAIN, RULE)]
    assert kinds == ["flush", "metainfo", "table", "chain", "map", "rule"]


def test_commands_stay_as_they_are() -> None:
    commands = [{"add": TABLE}, {"add": RULE}, {"add": CHAIN}]
    assert made(*commands) == [FLUSH, *commands]


def test_indexes_in_messages_are_the_callers() -> None:
    text = json.dumps({"nftables": [TABLE, MAP, CHAIN]}).encode()
    wanted = transaction(text)
    said = "internal:0:0-0: Error: Parsing command array at index 3 failed."
    assert wanted.in_their_words(said) == said.replace("index 3", "index 1")
    expression = "Parsing expr array at index 3 failed."
    assert wanted.in_their_words(expression) == expression


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (b'{"nftables": [\n  {"table": {}},\n  oops]}', "line 3 column 3"),
        (b'{"rules": []}', "no member nftables"),
        (b"[]", "no member nftables"),
        (b'{"nftables": {}}', "no list of objects"),
        (b'{"nftables": [3]}', "no list of objects"),
        (b'include "/etc/passwd"', "line 1 column 1"),
        (b"\xff\xfe\xff", "JSON"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_list_of_objects_is_refused(rules: bytes, said: str) -> None:
    """nft would take it for its own language, whose `include` reads files."""
    with pytest.raises(AgentError) as caught:
        transaction(rules)
    assert caught.value.reason is Reason.FIREWALL_REFUSED
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert said in caught.value.message


def test_rules_of_iptables_have_a_hint() -> None:
    said = "Error: unsupported xtables compat expression, use iptables-nft with this ruleset"
    assert "iptables" in (hint_for(said) or "")
    assert hint_for("Error: syntax error") is None

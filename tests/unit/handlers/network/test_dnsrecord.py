"""What an agent leaves of names for the next one."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

import pytest

from agent.core.network import DnsWish, HostEntry
from agent.handlers.network.dnsrecord import record_of, state_from, state_of, texts_of_state
from agent.handlers.network.dnstexts import texts_of

pytestmark = [pytest.mark.unit, pytest.mark.network]

WISH = DnsWish(
    servers=(ip_address("192.0.2.53"), ip_address("2001:db8::53"), "fe80::1%eth0"),
    searches=("example.org",),
    options=("ndots:5",),
    hosts=(HostEntry(address=ip_address("2001:db8::1"), names=("db.lab", "db")),),
    hostname="web",
)
TEXTS = texts_of(WISH, "web")


def test_all_of_it_comes_back_out_of_json() -> None:
    state = state_from(json.loads(json.dumps(record_of(TEXTS, WISH))))
    assert state == state_of(TEXTS, WISH)
    assert state is not None
    assert (state.wanted, texts_of_state(state)) == (WISH, TEXTS)


def test_the_record_is_what_json_gives_back() -> None:
    """So that a record that is the same is seen to be."""
    record = record_of(TEXTS, WISH)
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize(
    "spoilt",
    [{"wanted": None}, {"wanted": {}}, {"wanted": {"servers": ["x"]}}, {"other": 1}],
)
def test_a_record_of_another_kind_is_not_used(spoilt: dict[str, Any]) -> None:
    assert state_from({**record_of(TEXTS, WISH), **spoilt}) is None
    assert state_from(None) is None

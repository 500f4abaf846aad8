"""Which interface is the one that was lent, wherever it is by now."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent.core.network import Link, LinkFlag
from agent.handlers.network.holding import Holding
from agent.handlers.network.loans import Loan, LoanRecord
from agent.handlers.network.moving import free_name

pytestmark = [pytest.mark.unit, pytest.mark.network]

MAC, OTHER = "52:54:00:00:00:01", "52:54:00:00:00:02"
CARD = Link(
    index=4, name="eth0", flags=LinkFlag.UP, mtu=1500, mac=MAC, permanent_mac=MAC, altnames=("a",)
)
LOAN = Loan(holding=Holding(link=CARD), name="net0", index=9)


def test_there_it_is_told_by_its_index_whatever_the_container_made_of_it() -> None:
    changed = replace(CARD, index=9, name="mine", mac="02:00:00:00:00:09", mtu=9000)
    assert LOAN.is_there(changed)
    assert not LOAN.is_there(replace(changed, index=4))


def test_another_card_or_kind_at_its_index_is_not_it() -> None:
    assert not LOAN.is_there(replace(CARD, index=9, permanent_mac=OTHER))
    assert not LOAN.is_there(replace(CARD, index=9, permanent_mac="", kind="tun"))


def test_before_its_index_is_known_it_is_told_by_its_address() -> None:
    loan = replace(LOAN, index=0)
    assert loan.is_there(replace(CARD, index=33, name="net0"))
    assert not loan.is_there(replace(CARD, index=33, mac=OTHER, permanent_mac=OTHER))


def test_at_home_by_either_index() -> None:
    assert LOAN.is_home(CARD)
    assert LOAN.is_home(replace(CARD, index=9, name="dev0"))


def test_at_home_by_the_name_that_it_came_back_under() -> None:
    coming = replace(LOAN, home_name="eth0")
    assert coming.is_home(replace(CARD, index=50))
    assert not coming.is_home(replace(CARD, index=50, name="eth1"))


def test_a_card_that_was_plugged_in_again_is_another_one() -> None:
    """It has the same address, and was configured anew: nothing of the old comes over it."""
    assert not LOAN.is_home(replace(CARD, index=50))


def test_its_record_comes_back_from_json() -> None:
    record = LoanRecord(container_id="c1", loans=(LOAN, replace(LOAN, stays=True, driver="x")))
    assert LoanRecord.from_data(json.loads(json.dumps(record.to_data()))) == record


@pytest.mark.parametrize(
    ("taken", "name"),
    [
        (frozenset[str](), "eth0"),
        (frozenset({"eth0"}), "net0"),
        (frozenset({"eth0", "net0"}), "if0"),
        (frozenset({"eth0", "net0", "if0"}), "if1"),
    ],
)
def test_a_name_that_is_free(taken: frozenset[str], name: str) -> None:
    assert free_name("eth0", "net0", taken) == name

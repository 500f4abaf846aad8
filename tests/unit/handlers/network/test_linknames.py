"""Interfaces by any of their names."""

from __future__ import annotations

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.network import Link, LinkFlag
from agent.handlers.network.linknames import LinkNames

pytestmark = [pytest.mark.unit, pytest.mark.network]


def _link(index: int, name: str, *altnames: str) -> Link:
    return Link(index=index, name=name, flags=LinkFlag.UP, mtu=1500, altnames=altnames)


def test_alternative_names_count() -> None:
    names = LinkNames([_link(1, "lo"), _link(7, "n2s0", "eth0", "02/00")])
    assert [names.index(name, of="route") for name in ("n2s0", "eth0", "02/00", "lo")] == [
        7,
        7,
        7,
        1,
    ]
    assert names.name(7) == "n2s0"


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(AgentError) as caught:
        LinkNames([_link(1, "lo"), _link(7, "n2s0", "eth0")]).index("eth1", of="route default")
    error = caught.value
    assert (error.code, error.reason) == (Code.NOT_FOUND, Reason.UNKNOWN_INTERFACE)
    assert error.message == "route default: there is no interface 'eth1'; there are lo, n2s0"


def test_a_thousand_interfaces_are_not_all_listed() -> None:
    with pytest.raises(AgentError) as caught:
        LinkNames(_link(n, f"e{n}") for n in range(1, 1000)).index("x", of="route default")
    assert len(caught.value.message) < 500


def test_an_interface_that_went_has_its_number() -> None:
    assert LinkNames([]).name(9) == "if9"

"""Alternative names in the way of names: both share one space (net/core/dev.c)."""

from __future__ import annotations

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import Link, LinkFlag
from agent.handlers.network.listing import World
from agent.handlers.network.names import temporary_name
from agent.handlers.network.naming import displaced, plan

pytestmark = [pytest.mark.unit, pytest.mark.network]


def world(**altnames: tuple[str, ...]) -> World:
    """Interfaces eth0 and eth1 and so on, by their alternative names."""
    links = [
        Link(index=index, name=name, flags=LinkFlag.UP, mtu=1500, altnames=others)
        for index, (name, others) in enumerate(altnames.items(), start=2)
    ]
    return World(links={link.index: link for link in links})


def test_its_own_is_swapped() -> None:
    made = plan(world(eth0=("lan",)), {2: "lan"}, {}, {})
    assert (made.final, made.off, made.swapped) == (
        {2: "lan"},
        ((2, "lan"),),
        ((2, "eth0"),),
    )


def test_its_own_while_another_gets_the_name_that_it_had() -> None:
    made = plan(world(eth0=("lan",), eth1=()), {2: "lan", 3: "eth0"}, {}, {})
    assert made.final == {2: "lan", 3: "eth0"}
    assert made.swapped == ()


def test_another_ones_that_nobody_asked_for() -> None:
    there = world(n2s0=("eth0", "pci-02-00"), eth1=())
    made = plan(there, {3: "eth0"}, {}, {2: ["eth0", "pci-02-00"]})
    assert (made.final[3], made.off, made.swapped) == ("eth0", ((2, "eth0"),), ())


def test_another_ones_that_somebody_asked_for() -> None:
    with pytest.raises(AgentError) as caught:
        plan(world(eth0=("lan",), eth1=()), {3: "lan"}, {}, {})
    assert caught.value.reason is Reason.NAME_IN_USE
    assert caught.value.fields == {"name": "lan", "interface": "eth0"}


def test_one_that_gives_its_name_up_gets_no_alternative_one() -> None:
    there = world(eth0=("if0",), eth1=(), eth2=())
    made = plan(there, {3: "eth2", 2: "eth1"}, {}, {})
    assert made.final == {2: "eth1", 3: "eth2", 4: "if1"}
    assert list(displaced(there, made, {3: "eth2", 2: "eth1"})) == [
        (4, "name of another interface: eth2 -> if1")
    ]


def test_a_temporary_name_is_nobodys_alternative_one() -> None:
    left = temporary_name(2)
    made = plan(world(**{left: ("lan",)}), {2: "lan"}, {}, {})
    assert made.swapped == ()

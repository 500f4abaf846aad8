"""Interfaces in containers' network namespaces and back, on this kernel; ip(8) is the witness."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, timed_out
from agent.core.netlink import Change, Netlink, NetlinkRefusal, Question, open_netlink
from agent.core.network import InterfaceGrant, LendingOrder, LinkKind, LinkMaking
from agent.core.rtnl.messages import RTM_GETLINK
from agent.core.state import StateStore
from agent.handlers.network.lending import Lending, Sandbox
from tests.fakes.keeper import FakeKeeper
from tests.privileged import netlab
from tests.privileged.counts import STEP
from tests.privileged.netlab import Lab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces"),
]

HAS = """
link set vb up
link set va mtu 1400
link set va up
link property add dev va altname the-interface-of-the-test
address add 192.0.2.1/24 dev va
address add 192.0.2.2/24 dev va
address add 2001:db8::1/64 dev va nodad
route add default via 192.0.2.254
route add 198.18.0.0/24 via 192.0.2.253 metric 7 src 192.0.2.2
route add 198.18.1.0/24 dev va table 77
-6 route add default via 2001:db8::ff
neigh add 192.0.2.77 lladdr 02:00:00:00:00:01 dev va
"""


@dataclass(slots=True)
class Bed:
    """A sandbox's network with va and its other end vb, and a container's."""

    home: Lab
    there: Lab
    keeper: FakeKeeper
    state: StateStore

    def lending(
        self,
        netlink: Netlink | None = None,
        opened: Callable[[int], Netlink] = open_netlink,
    ) -> Lending:
        sandbox = Sandbox(
            netlink=netlink or self.home.netlink,
            namespace=Path(f"/proc/self/fd/{self.home.namespace}"),
        )
        return Lending(sandbox, state=self.state, keeper=self.keeper, opened=opened)

    def order(self, *grants: str, moved: tuple[str, ...] = ()) -> LendingOrder:
        """Grants are "name" or "name:container_name"."""
        return LendingOrder(
            container_id="c1",
            namespace=self.there.namespace,
            lent=tuple(map(grant, grants)),
            moved=tuple(map(grant, moved)),
        )

    def give(self, *lines: str) -> None:
        for line in lines:
            self.home.ip(*line.split())

    def nothing_is_left(self) -> bool:
        return self.keeper.kept == {} and self.state.load_all("loans") == {}


def grant(text: str) -> InterfaceGrant:
    name, _, container_name = text.partition(":")
    return InterfaceGrant(name=name, container_name=container_name)


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    async with netlab.lab() as home, netlab.lab() as there:
        await home.up("lo")
        await home.make("va", LinkMaking(kind=LinkKind.VETH, peer_name="vb"))
        made = Bed(home=home, there=there, keeper=FakeKeeper(), state=StateStore(tmp_path))
        made.give(*HAS.strip().splitlines())
        yield made
        made.keeper.close()


def seen(net: Lab, name: str = "va") -> dict[str, Any]:
    """What an interface has by ip(8), without its name and what the kernel makes by itself."""
    [link] = net.ip("-j", "address", "show", "dev", name)
    addresses = [
        (each["local"], each["prefixlen"], each.get("secondary", False))
        for each in link["addr_info"]
        if each["scope"] == "global"
    ]
    routes = [
        {key: value for key, value in route.items() if key not in ("dev", "flags")}
        for family in ("-4", "-6")
        for route in net.ip("-j", family, "route", "show", "table", "all")
        if route.get("dev") == name and route.get("protocol") != "kernel"
    ]
    kept = ("mtu", "address", "txqlen", "altnames")
    return {
        "link": {key: link.get(key) for key in kept} | {"up": "UP" in link["flags"]},
        "addresses": addresses,
        "routes": sorted(routes, key=str),
        "neighbours": net.ip("-j", "neigh", "show", "dev", name, "nud", "permanent"),
    }


def names(net: Lab) -> set[str]:
    return {link["ifname"] for link in net.ip("-j", "link")}


async def test_there_and_back_with_everything(bed: Bed) -> None:
    before, lending = seen(bed.home), bed.lending()
    await lending.lend(bed.order("va"), bed.home.deadline)
    assert names(bed.home) == {"lo", "vb"}
    assert seen(bed.there) == before
    assert "UP" in bed.there.ip("-j", "link", "show", "lo")[0]["flags"]
    await lending.take_back("c1", bed.home.deadline)
    assert names(bed.there) == {"lo"}
    assert seen(bed.home) == before
    assert bed.nothing_is_left()


async def test_under_another_name(bed: Bed) -> None:
    before, lending = seen(bed.home), bed.lending()
    await lending.lend(bed.order("va:eth0"), bed.home.deadline)
    assert seen(bed.there, "eth0") == before
    await lending.take_back("c1", bed.home.deadline)
    assert seen(bed.home) == before


async def test_by_its_alternative_name_which_becomes_its_name(bed: Bed) -> None:
    before, lending = seen(bed.home), bed.lending()
    bed.give("link property add dev va altname eth7")
    await lending.lend(bed.order("the-interface-of-the-test:eth7"), bed.home.deadline)
    assert seen(bed.there, "eth7") == before
    await lending.take_back("c1", bed.home.deadline)
    assert sorted(seen(bed.home)["link"]["altnames"]) == ["eth7", "the-interface-of-the-test"]


async def test_it_comes_back_as_it_was_and_not_as_the_container_made_it(bed: Bed) -> None:
    """Routes and addresses of the container's choice would take the sandbox's traffic."""
    before, lending = seen(bed.home), bed.lending()
    await lending.lend(bed.order("va:eth0"), bed.home.deadline)
    for line in (
        "link set eth0 down",
        "link set eth0 name mine",
        "link set mine address 02:00:00:00:00:55",
        "link set mine mtu 1300",
        "link set mine up",
        "address flush dev mine",
        "address add 203.0.113.1/24 dev mine",
        "route add 0.0.0.0/1 via 203.0.113.9",
        "link property add dev mine altname its-own",
    ):
        bed.there.ip(*line.split())
    await lending.take_back("c1", bed.home.deadline)
    assert seen(bed.home) == before


async def test_a_name_that_would_keep_it_from_coming_back(bed: Bed) -> None:
    """An alternative name that the sandbox has refuses a move (since Linux 6.6)."""
    before, lending = seen(bed.home), bed.lending()
    await lending.lend(bed.order("va"), bed.home.deadline)
    bed.there.ip("link", "property", "add", "dev", "va", "altname", "vb")
    await lending.take_back("c1", bed.home.deadline)
    assert seen(bed.home) == before


async def test_its_name_is_taken_meanwhile(bed: Bed) -> None:
    """The other one keeps it: somebody has asked for that."""
    before, lending = seen(bed.home), bed.lending()
    await lending.lend(bed.order("va:eth0"), bed.home.deadline)
    bed.give("link set vb name va")
    await lending.take_back("c1", bed.home.deadline)
    assert names(bed.home) == {"lo", "va", "eth0"}
    assert seen(bed.home, "eth0") == before


async def test_its_index_is_taken_there_and_here(bed: Bed) -> None:
    index = (await bed.home.link("va")).index
    before, lending = seen(bed.home), bed.lending()
    await bed.there.make("v1", LinkMaking(kind=LinkKind.VETH, peer_name="v2"))
    assert index in {link["ifindex"] for link in bed.there.ip("-j", "link")}
    await lending.lend(bed.order("va"), bed.home.deadline)
    assert seen(bed.there) == before
    await lending.take_back("c1", bed.home.deadline)
    assert seen(bed.home) == before


async def test_one_that_is_down_stays_down(bed: Bed) -> None:
    bed.give("link set va down")
    before, lending = seen(bed.home), bed.lending()
    await lending.lend(bed.order("va"), bed.home.deadline)
    assert seen(bed.there) == before
    await lending.take_back("c1", bed.home.deadline)
    assert seen(bed.home) == before


async def test_it_outlives_the_last_process_and_the_agent(bed: Bed) -> None:
    """A veth ends with its namespace, unless somebody keeps that."""
    before = seen(bed.home)
    with netlab.namespace() as container:
        order = LendingOrder(container_id="c1", namespace=container, lent=(grant("va"),))
        await bed.lending().lend(order, bed.home.deadline)
    await bed.lending().take_back("c1", bed.home.deadline)
    assert seen(bed.home) == before
    assert bed.nothing_is_left()


async def test_an_interface_that_was_removed_in_the_container(bed: Bed) -> None:
    lending = bed.lending()
    await lending.lend(bed.order("va"), bed.home.deadline)
    bed.there.ip("link", "del", "va")
    await lending.take_back("c1", bed.home.deadline)
    assert names(bed.home) == {"lo"}
    assert bed.nothing_is_left()


async def test_another_one_in_its_place_stays_there(bed: Bed) -> None:
    """Of another kind at the same index: made by the container, no business of the sandbox."""
    lending = bed.lending()
    await lending.lend(bed.order("va"), bed.home.deadline)
    [link] = bed.there.ip("-j", "link", "show", "va")
    bed.there.ip("link", "del", "va")
    index = str(link["ifindex"])
    bed.there.ip("link", "add", "name", "va", "index", index, "type", "bridge")
    await lending.take_back("c1", bed.home.deadline)
    assert names(bed.there) == {"lo", "va"}
    assert names(bed.home) == {"lo"}


async def test_taken_back_twice_and_never_given(bed: Bed) -> None:
    lending = bed.lending()
    await lending.take_back("c1", bed.home.deadline)
    await lending.lend(bed.order("va"), bed.home.deadline)
    await lending.take_back("c1", bed.home.deadline)
    before = seen(bed.home)
    await lending.take_back("c1", bed.home.deadline)
    assert seen(bed.home) == before


async def test_what_containers_have_is_listed(bed: Bed) -> None:
    lending = bed.lending()
    await lending.lend(bed.order("va:eth0"), bed.home.deadline)
    [state] = await bed.lending().list(bed.home.deadline)
    assert (state.link.name, state.container_id, state.link.up) == ("eth0", "c1", True)
    assert "192.0.2.2/24" in {str(each.interface) for each in state.addresses}
    await lending.take_back("c1", bed.home.deadline)
    assert await lending.list(bed.home.deadline) == ()


# --- linux.netDevices -------------------------------------------------------------------


class EndlessList:
    """A container that makes interfaces all the time: each list of them is interrupted."""

    def __init__(self, namespace: int) -> None:
        self._netlink = open_netlink(namespace)

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        await self._netlink.change(*changes, deadline=deadline)

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        if question.type == RTM_GETLINK and question.dump:
            raise timed_out(question.what)
        return await self._netlink.ask(question, deadline)

    def close(self) -> None:
        self._netlink.close()


async def test_a_container_whose_interfaces_can_not_be_listed(bed: Bed) -> None:
    """What it was given is told all the same, and comes back."""
    before = seen(bed.home)
    await bed.lending().lend(bed.order("va:eth0"), bed.home.deadline)
    lending = bed.lending(opened=EndlessList)
    [state] = await lending.list(bed.home.deadline)
    assert (state.link.name, state.link.mtu, state.container_id) == ("eth0", 1400, "c1")
    assert {"192.0.2.1/24", "192.0.2.2/24"} <= {str(each.interface) for each in state.addresses}
    await lending.take_back("c1", bed.home.deadline)
    assert seen(bed.home) == before
    assert bed.nothing_is_left()


async def test_net_devices_as_the_specification_says(bed: Bed) -> None:
    """Attributes, permanent addresses of global scope, up; no routes, and it stays there."""
    bed.give(
        "address add 192.0.2.9/24 dev va valid_lft 3600 preferred_lft 3600",
        "address add 198.51.100.1/24 dev va scope link",
    )
    before, lending = seen(bed.home), bed.lending()
    await lending.lend(bed.order(moved=("va:eth0",)), bed.home.deadline)
    found = seen(bed.there, "eth0")
    assert found["link"] == before["link"]
    assert [address for address, _, _ in found["addresses"]] == [
        "192.0.2.1",
        "192.0.2.2",
        "2001:db8::1",
    ]
    assert found["routes"] == []
    await lending.take_back("c1", bed.home.deadline)
    assert "eth0" in names(bed.there)
    assert bed.nothing_is_left()


async def test_net_devices_are_up_afterwards(bed: Bed) -> None:
    bed.give("link set va down")
    await bed.lending().lend(bed.order(moved=("va",)), bed.home.deadline)
    assert seen(bed.there)["link"]["up"]


async def test_a_template_for_a_name(bed: Bed) -> None:
    await bed.there.make("net0", LinkMaking(kind=LinkKind.VETH, peer_name="net1"))
    await bed.lending().lend(bed.order(moved=("va:net%d",)), bed.home.deadline)
    assert names(bed.there) == {"lo", "net0", "net1", "net2"}


async def test_net_devices_of_a_container_that_was_never_made(bed: Bed) -> None:
    before, lending = seen(bed.home), bed.lending()
    await lending.lend(bed.order(moved=("va:eth0",)), bed.home.deadline)
    await lending.take_back("c1", bed.home.deadline, undone=True)
    assert seen(bed.home) == before


# --- refusals ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grants", "reason"),
    [
        (["none"], Reason.UNKNOWN_INTERFACE),
        (["lo"], Reason.BAD_FIELD),
        (["va", "the-interface-of-the-test"], Reason.BAD_FIELD),
        (["va:lo"], Reason.NAME_IN_USE),
        (["va:eth0", "vb:eth0"], Reason.NAME_IN_USE),
        (["vb:the-interface-of-the-test", "va"], Reason.NAME_IN_USE),
    ],
)
async def test_what_can_not_go_leaves_all_as_it_was(
    bed: Bed, grants: list[str], reason: Reason
) -> None:
    before = seen(bed.home)
    with pytest.raises(AgentError) as caught:
        await bed.lending().lend(bed.order(*grants), bed.home.deadline)
    assert caught.value.reason is reason
    assert seen(bed.home) == before
    assert names(bed.there) == {"lo"}
    assert bed.nothing_is_left()


async def test_one_that_belongs_to_a_bridge(bed: Bed) -> None:
    bed.give("link add name br0 type bridge", "link set va master br0")
    with pytest.raises(AgentError) as caught:
        await bed.lending().lend(bed.order("va"), bed.home.deadline)
    assert caught.value.reason is Reason.WRONG_STATE


async def test_one_that_the_kernel_does_not_let_go(bed: Bed) -> None:
    """A bridge is bound to its namespace (NETNS_LOCAL); what went before it comes back."""
    bed.give("link add name br0 type bridge")
    before = seen(bed.home)
    with pytest.raises(AgentError) as caught:
        await bed.lending().lend(bed.order("va", "br0"), bed.home.deadline)
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert caught.value.fields["errno"] == "EINVAL"
    assert seen(bed.home) == before
    assert bed.nothing_is_left()


async def test_a_route_that_needs_another_interface(bed: Bed) -> None:
    """Its source address is not this interface's: the container could not have it."""
    bed.give("address add 203.0.113.5/32 dev lo", "route add 10.0.0.0/8 dev va src 203.0.113.5")
    before = seen(bed.home)
    with pytest.raises(AgentError) as caught:
        await bed.lending().lend(bed.order("va"), bed.home.deadline)
    assert caught.value.reason is Reason.KERNEL_REFUSED
    assert "10.0.0.0/8" in caught.value.message
    assert seen(bed.home) == before
    assert bed.nothing_is_left()


# --- failures and crashes ---------------------------------------------------------------


@pytest.mark.parametrize("done", [False, True])
async def test_any_change_fails_once(bed: Bed, done: bool) -> None:
    """Whichever it is: the order is carried out, or all is as it was."""
    before = seen(bed.home)
    number, carried_out = 1, 0
    refusals: list[AgentError] = []
    while True:
        failing = _Failing(number, done=done)
        lending = bed.lending(failing.wrap(bed.home.netlink), failing.opened)
        try:
            await lending.lend(bed.order("va:eth0", "vb:eth1"), bed.home.deadline)
        except AgentError as error:
            refusals.append(error)
        else:
            carried_out += 1
            await bed.lending().take_back("c1", bed.home.deadline)
        assert seen(bed.home) == before
        assert names(bed.there) == {"lo"}
        assert bed.nothing_is_left()
        if failing.seen < number:
            break
        number += STEP
    assert carried_out
    assert {error.reason for error in refusals} == {Reason.KERNEL_REFUSED}
    assert [error.fields["not_undone"] for error in refusals if "not_undone" in error.fields] == []


@pytest.mark.parametrize("done", [False, True])
async def test_the_agent_dies_at_any_change_on_the_way_there(bed: Bed, done: bool) -> None:
    """The next one takes back what was half done."""
    before, number = seen(bed.home), 1
    while True:
        dying = _Dying(number, done=done)
        lending = bed.lending(dying.wrap(bed.home.netlink), dying.opened)
        if not await _dies(lending.lend(bed.order("va:eth0", "vb:eth1"), bed.home.deadline)):
            return
        await bed.lending().take_back("c1", bed.home.deadline, undone=True)
        assert seen(bed.home) == before
        assert names(bed.there) == {"lo"}
        assert bed.nothing_is_left()
        number += STEP


@pytest.mark.parametrize("done", [False, True])
async def test_the_agent_dies_at_any_change_on_the_way_back(bed: Bed, done: bool) -> None:
    before, number = seen(bed.home), 1
    while True:
        await bed.lending().lend(bed.order("va:eth0", "vb:eth1"), bed.home.deadline)
        dying = _Dying(number, done=done)
        lending = bed.lending(dying.wrap(bed.home.netlink), dying.opened)
        died = await _dies(lending.take_back("c1", bed.home.deadline))
        await bed.lending().take_back("c1", bed.home.deadline)
        assert seen(bed.home) == before
        assert names(bed.there) == {"lo"}
        assert bed.nothing_is_left()
        if not died:
            return
        number += STEP


class _Failing:
    """Of all changes through all of its ways the n-th fails once."""

    def __init__(self, n: int, *, done: bool) -> None:
        self._n = n
        self._done = done
        self.seen = 0

    def wrap(self, netlink: Netlink) -> Netlink:
        return _Counted(netlink, self)

    def opened(self, namespace: int) -> Netlink:
        return self.wrap(open_netlink(namespace))

    async def pass_on(self, netlink: Netlink, change: Any, deadline: Any) -> None:
        self.seen += 1
        if self.seen == self._n and not self._done:
            raise NetlinkRefusal(errno.EIO, "a fake failure", change)
        await netlink.change(change, deadline=deadline)
        if self.seen == self._n:
            raise NetlinkRefusal(errno.EIO, "a fake failure", change)


class _Dying(_Failing):
    """From the n-th change on, which may still be made, nothing happens any more."""

    async def pass_on(self, netlink: Netlink, change: Any, deadline: Any) -> None:
        self.seen += 1
        if self.seen < self._n or (self._done and self.seen == self._n):
            await netlink.change(change, deadline=deadline)
        if self.seen >= self._n:
            raise _Killed


class _Killed(BaseException):
    """Nothing of ours stops it, as nothing stops SIGKILL."""


class _Counted:
    def __init__(self, netlink: Netlink, counter: _Failing) -> None:
        self._netlink = netlink
        self._counter = counter

    async def change(self, *changes: Any, deadline: Any) -> None:
        for change in changes:
            await self._counter.pass_on(self._netlink, change, deadline)

    async def ask(self, question: Any, deadline: Any) -> list[Any]:
        return await self._netlink.ask(question, deadline)

    def close(self) -> None:
        self._netlink.close()


async def _dies(work: Any) -> bool:
    try:
        await work
    except _Killed:
        return True
    return False

"""Names of interfaces on the real kernel: every one as asked, none left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.addresses import MacAddress
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.netlink import Change, Netlink, Question
from agent.core.network import InterfaceWish, LinkKind, LinkMaking
from agent.core.pci import PciPath
from agent.core.rtnl.ethtool import open_ethtool
from agent.handlers.network.interface_records import InterfaceRecords
from agent.handlers.network.interfaces import Interfaces
from agent.handlers.network.names import is_temporary, temporary_name, unborn_name
from tests.fakes import nic_trees
from tests.fakes.sysfs import FakeSysfs
from tests.privileged.counts import often
from tests.privileged.interfacelab import InterfaceLab, WantsItDown, at, interface_lab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces"),
]


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    """The one that the fixture `net` looks at; it has to be there first."""
    return FakeSysfs(tmp_path)


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[InterfaceLab]:
    async with interface_lab(tmp_path) as made:
        yield made


def mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


async def numbered(net: InterfaceLab, count: int, *, up: bool = True) -> None:
    """Interfaces eth0, eth1, ... whose MAC addresses end with their numbers."""
    for number in range(count):
        await net.veth(f"eth{number}", f"far{number}", up=up)
        net.lab.ip("link", "set", f"eth{number}", "address", mac(number))


def named(number: int, name: str, **more: Any) -> InterfaceWish:
    return InterfaceWish(
        address=MacAddress.parse(mac(number)), name=name, keep_addresses=True, **more
    )


def own_names(net: InterfaceLab) -> list[str]:
    known = net.names()
    return [name for address, name in sorted(known.items()) if address.startswith("02:00:00:00")]


async def test_a_swap_by_two_requests(net: InterfaceLab) -> None:
    """The other one gets the name that this one had, so the second has nothing to do."""
    await numbered(net, 2)
    (state,) = await net.apply(named(0, "eth1"))
    assert own_names(net) == ["eth1", "eth0"]
    assert state.changed == ("name eth0 -> eth1", "name of another interface: eth1 -> eth0")
    (state,) = await net.apply(named(1, "eth0"))
    assert state.changed == ()
    assert own_names(net) == ["eth1", "eth0"]


@pytest.mark.parametrize("length", [1, 2, 3, 7])
async def test_rotations_of_any_length_in_one_request(net: InterfaceLab, length: int) -> None:
    await numbered(net, length)
    wanted = [f"eth{(number + 1) % length}" for number in range(length)]
    wishes = [named(number, name) for number, name in enumerate(wanted)]
    await net.apply(*wishes)
    assert own_names(net) == wanted
    assert [state.changed for state in await net.apply(*wishes)] == [()] * length


async def test_a_rotation_by_three_requests(net: InterfaceLab) -> None:
    await numbered(net, 3)
    for number, name in enumerate(("eth1", "eth2", "eth0")):
        await net.apply(named(number, name))
    assert own_names(net) == ["eth1", "eth2", "eth0"]


async def test_to_its_own_name(net: InterfaceLab) -> None:
    await numbered(net, 1)
    (state,) = await net.apply(named(0, "eth0"))
    assert state.changed == ()


async def test_an_interface_that_is_up_keeps_everything(net: InterfaceLab) -> None:
    await numbered(net, 1)
    net.lab.ip("addr", "add", "192.0.2.10/24", "dev", "eth0")
    net.lab.ip("addr", "add", "2001:db8::10/64", "dev", "eth0", "nodad")
    net.lab.ip("route", "add", "default", "via", "192.0.2.1")
    net.lab.ip("-6", "route", "add", "default", "via", "2001:db8::1")
    before = net.snapshot()
    await net.apply(named(0, "web0"))
    after = net.snapshot()
    assert after["links"]["web0"]["addr_info"] == [
        text.replace("'eth0'", "'web0'") for text in before["links"]["eth0"]["addr_info"]
    ]
    for family in ("v4", "v6"):
        assert [text.replace("'web0'", "'eth0'") for text in after[family]] == before[family]


async def test_where_it_has_to_go_down_for_its_name(net: InterfaceLab) -> None:
    """Both of a swap: the one asked for and the one in the way."""
    await numbered(net, 2)
    for number in range(2):
        net.lab.ip("addr", "add", f"192.0.{number}.10/24", "dev", f"eth{number}")
        net.lab.ip("addr", "add", f"2001:db8:{number}::10/64", "dev", f"eth{number}", "nodad")
        net.lab.ip("route", "add", f"198.51.{number}.0/24", "via", f"192.0.{number}.1")
        net.lab.ip("neigh", "add", f"192.0.{number}.7", "lladdr", mac(9), "dev", f"eth{number}")
    before = net.snapshot()
    kernel = WantsItDown(net.lab.netlink, "rename")  # as before Linux 6.2
    await net.failing(kernel, named(0, "eth1"))
    assert kernel.lowered == 2
    assert own_names(net) == ["eth1", "eth0"]
    after = net.snapshot()
    swapped = {"'eth0'": "'eth1'", "'eth1'": "'eth0'"}
    for family in ("v4", "v6"):
        assert sorted(_exchanged(text, swapped) for text in after[family]) == before[family]
    for one, other in (("eth0", "eth1"), ("eth1", "eth0")):
        told = [_exchanged(text, swapped) for text in after["links"][other]["addr_info"]]
        assert told == before["links"][one]["addr_info"]
        assert "UP" in after["links"][one]["flags"]
    assert {each["dst"] for each in net.lab.ip("-j", "neigh")} == {"192.0.0.7", "192.0.1.7"}


def _exchanged(text: str, words: dict[str, str]) -> str:
    one, other = words
    return text.replace(one, "'~'").replace(other, one).replace("'~'", other)


async def test_an_alternative_name_in_the_way(net: InterfaceLab) -> None:
    """Of the same interface: swapped. Of another: refused, as somebody asked for it there."""
    await numbered(net, 2)
    net.lab.ip("link", "property", "add", "dev", "eth0", "altname", "lan")
    await net.apply(named(0, "lan"))
    (told,) = net.lab.ip("-j", "link", "show", "dev", "lan")
    assert (told["ifname"], told["altnames"]) == ("lan", ["eth0"])
    net.lab.ip("link", "property", "add", "dev", "lan", "altname", "wan")
    with pytest.raises(AgentError) as caught:
        await net.apply(named(1, "wan"))
    assert caught.value.reason is Reason.NAME_IN_USE
    assert "lan" in caught.value.message
    # The agent itself left "eth0" there: whoever asks for it gets it.
    await net.apply(named(1, "eth0"))
    assert own_names(net) == ["lan", "eth0"]
    (told,) = net.lab.ip("-j", "link", "show", "dev", "lan")
    assert told["altnames"] == ["wan"]


async def test_found_again_by_the_name_that_it_had(net: InterfaceLab) -> None:
    await numbered(net, 2)
    wish = InterfaceWish(current_name="eth0", name="web0", timeout=0.1)
    await net.apply(wish)
    (state,) = await net.apply(wish)
    assert (state.link.name, state.changed) == ("web0", ())
    stranger = InterfaceWish(current_name="eth7", name="web0", timeout=0.1)
    with pytest.raises(AgentError) as caught:
        await net.apply(stranger)
    assert caught.value.reason is Reason.UNKNOWN_INTERFACE


async def test_failures_in_the_middle_of_a_rotation(net: InterfaceLab) -> None:
    """Each change of it fails once, before or after it was made."""
    await numbered(net, 3)
    wishes = [named(number, f"eth{(number + 1) % 3}") for number in range(3)]
    turns = itertools.cycle([True, False])
    await net.failing_once_each(tuple(wishes), lambda: next(turns))
    assert own_names(net) == ["eth1", "eth2", "eth0"]


class Leaving:
    """The caller is cancelled while the n-th change is under way."""

    def __init__(self, netlink: Netlink, n: int) -> None:
        self._netlink = netlink
        self._left = n
        self.task: asyncio.Task[Any] | None = None

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        for change in changes:
            self._left -= 1
            if self._left == 0 and self.task is not None:
                self.task.cancel()
            await self._netlink.change(change, deadline=deadline)

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        return await self._netlink.ask(question, deadline)

    def close(self) -> None:
        self._netlink.close()


async def test_a_caller_that_leaves(net: InterfaceLab) -> None:
    await numbered(net, 2)
    before = net.snapshot()
    wishes = [named(0, "eth1"), named(1, "eth0", mtu=9000)]
    for n in range(1, 5):
        leaving = Leaving(net.lab.netlink, n)
        leaving.task = asyncio.ensure_future(net.failing(leaving, *wishes))
        with pytest.raises(asyncio.CancelledError):
            await leaving.task
        assert net.snapshot() == before, n


@contextlib.contextmanager
def successor(net: InterfaceLab) -> Iterator[Interfaces]:
    """What a new agent has, with what an earlier one saved."""
    with contextlib.closing(open_ethtool(net.lab.namespace)) as ethtool:
        yield Interfaces(
            netlink=net.lab.netlink,
            ethtool=ethtool,
            board=net.board,
            state=net.state,
            namespace=net.lab.namespace,
        )


async def test_an_agent_that_was_killed(net: InterfaceLab) -> None:
    """What its successor finds: names as they were in the middle, and the record of before.
    It puts all of them back, so that a request which says present names can be made again."""
    await numbered(net, 2)
    indexes = [(await net.lab.link(f"eth{number}")).index for number in range(2)]
    records = InterfaceRecords(net.state)
    records.renaming({indexes[0]: "eth0", indexes[1]: "eth1"})
    net.lab.ip("link", "set", "eth0", "name", temporary_name(indexes[0]))
    net.lab.ip("link", "set", "eth1", "name", "eth0")
    with successor(net) as interfaces:
        await interfaces.restore(net.lab.deadline)
        assert own_names(net) == ["eth0", "eth1"]
        await interfaces.restore(net.lab.deadline)
    assert own_names(net) == ["eth0", "eth1"]
    assert InterfaceRecords(net.state).former == {}


async def test_an_agent_that_was_killed_and_the_name_has_been_given_away(
    net: InterfaceLab,
) -> None:
    """Somebody gave it to another for an alternative one: no temporary name stays all the same."""
    await numbered(net, 2)
    index = (await net.lab.link("eth0")).index
    InterfaceRecords(net.state).renaming({index: "eth0"})
    net.lab.ip("link", "set", "eth0", "name", temporary_name(index))
    net.lab.ip("link", "property", "add", "dev", "eth1", "altname", "eth0")
    with successor(net) as interfaces:
        await interfaces.restore(net.lab.deadline)
    assert own_names(net) == ["if0", "eth1"]


async def test_an_agent_that_was_killed_while_it_made_a_pair(net: InterfaceLab) -> None:
    """Both ends have names of what was never named, and one end takes the other along. What
    can't be removed only looks so, and keeps nothing from being taken back."""
    await numbered(net, 1)
    index = (await net.lab.link("eth0")).index
    InterfaceRecords(net.state).renaming({index: "eth0"})
    net.lab.ip("link", "set", "lo", "name", unborn_name(7))
    net.lab.ip("link", "add", unborn_name(0), "type", "veth", "peer", "name", unborn_name(1))
    net.lab.ip("link", "set", "eth0", "name", temporary_name(index))
    with successor(net) as interfaces:
        await interfaces.restore(net.lab.deadline)
    assert own_names(net) == ["eth0"]
    present = {each["ifname"] for each in net.lab.ip("-j", "link")}
    assert present == {"if0", "eth0", "far0"}


async def test_one_that_only_looks_like_a_temporary_one_is_not_removed(net: InterfaceLab) -> None:
    await net.veth("~ik77", "far")
    with successor(net) as interfaces:
        await interfaces.restore(net.lab.deadline)
    assert set(net.names().values()) == {"if0", "far"}


async def test_two_whose_names_look_alike(net: InterfaceLab) -> None:
    """A byte that is not UTF-8 is shown as a word that another one has for its name."""
    await numbered(net, 2)
    net.lab.ip("link", "add", r"\xff", "type", "bridge")
    net.lab.run("sh", "-c", r"ip link add $(printf '\377') type bridge")
    await net.apply(named(0, "eth1"), named(1, "eth0"))
    names = [each.link.name for each in await net.interfaces.list(net.lab.deadline)]
    assert sorted(names) == sorted(["lo", "far0", "far1", "eth0", "eth1", r"\xff", r"\xff"])


async def test_a_name_that_is_not_utf8_is_found_as_it_is_shown(net: InterfaceLab) -> None:
    net.lab.run("sh", "-c", r"ip link add $(printf 'br\377') type bridge")
    [state] = await net.apply(InterfaceWish(current_name=r"br\xff", mtu=1400, timeout=0.1))
    assert (state.link.name, state.link.mtu) == (r"br\xff", 1400)
    await net.interfaces.remove(r"br\xff", net.lab.deadline)
    assert list(net.names().values()) == []


async def test_random_permutations(net: InterfaceLab) -> None:
    count = 5
    await numbered(net, count, up=False)
    chance = random.Random(20261130)
    pool = [f"eth{number}" for number in range(count)] + ["web0", "abcdefghijklmno", "é" * 7]
    for _ in range(50 if os.environ.get("INNKEEPER_SOAK") else often(10)):
        wanted = chance.sample(pool, count)
        await net.apply(*(named(number, name, up=False) for number, name in enumerate(wanted)))
        assert own_names(net) == wanted


class Intruder:
    """When a name is free for a moment, a new interface takes it, as the kernel gives names."""

    def __init__(self, net: InterfaceLab, name: str) -> None:
        self._net = net
        self._name = name
        self.came = False

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        for change in changes:
            await self._net.lab.netlink.change(change, deadline=deadline)
            if not self.came and self._name not in self._net.names().values():
                self.came = True
                await self._net.veth(self._name, "stranger", up=False)

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        return await self._net.lab.netlink.ask(question, deadline)

    def close(self) -> None:
        pass


async def test_one_that_comes_in_the_middle(net: InterfaceLab) -> None:
    """The request fails, and the two have their names again; the new one has another."""
    await numbered(net, 2)
    intruder = Intruder(net, "eth0")
    with pytest.raises(AgentError) as caught:
        await net.failing(intruder, named(0, "eth1"), named(1, "eth0"))
    assert "File exists" in caught.value.message
    assert intruder.came
    assert own_names(net) == ["eth0", "eth1"]
    assert not any(map(is_temporary, net.names().values()))


async def test_names_that_are_none(net: InterfaceLab) -> None:
    """In bytes, before the kernel is asked: it would take `e%d` for a template."""
    await numbered(net, 1)
    bad = ["a" * 16, "é" * 8, "a/b", "a b", ".", "..", "a:b", "e%d", "a\n", "all", "\ud8ff"]
    for name in bad:
        with pytest.raises(AgentError) as caught:
            await net.apply(named(0, name))
        assert caught.value.reason is Reason.BAD_FIELD, name
    assert own_names(net) == ["eth0"]
    await net.apply(InterfaceWish(current_name="eth0", addresses=at("192.0.2.1/24")))


async def test_made_under_a_name_that_is_another_ones(net: InterfaceLab) -> None:
    """The bridge gets the name; the one that had it gets one that nobody else has."""
    await numbered(net, 1)
    making = LinkMaking(kind=LinkKind.BRIDGE)
    wish = InterfaceWish(current_name="br0", name="eth0", making=making)
    with pytest.raises(AgentError) as caught:
        await net.apply(wish)
    assert caught.value.reason is Reason.WRONG_STATE
    assert own_names(net) == ["eth0"]


def on_pci(net: InterfaceLab, sysfs: FakeSysfs, slot: str, name: str, number: str = "0") -> None:
    """Shows an interface of the namespace in sysfs as one of a function behind a port."""
    bus = f"{int(slot, 16):02x}"
    function = sysfs.sys / f"devices/pci0000:00/0000:00:{slot}.0/0000:{bus}:00.0"
    if not function.exists():
        nic_trees.ethernet(sysfs, sysfs.port_with_slot(slot, bus), f"0000:{bus}:00.0")
    (told,) = net.lab.ip("-j", "link", "show", "dev", name)
    path = nic_trees.interface(sysfs, function, name, mac=told["address"], index=told["ifindex"])
    sysfs.write(path / "dev_port", number)


def by_path(path: str, **more: Any) -> InterfaceWish:
    return InterfaceWish(address=PciPath.parse(path), **more)


async def test_names_of_the_path_whatever_the_order(sysfs: FakeSysfs, net: InterfaceLab) -> None:
    """As the kernel numbered them: the last port first, and one that has another's name."""
    for number, slot in enumerate(("04", "02", "03")):
        await net.veth(f"eth{number}", f"far{number}", up=False)
        on_pci(net, sysfs, slot, f"eth{number}")
    net.lab.ip("link", "set", "far0", "name", "n2s0")
    states = await net.apply(*(by_path(f"0{slot}/00") for slot in (2, 3, 4)))
    assert [state.link.name for state in states] == ["n2s0", "n3s0", "n4s0"]
    assert [state.link.altnames for state in states] == [
        ("pci-02-00",),  # its former name is that of the one that had its own
        ("eth2", "pci-03-00"),
        ("eth0", "pci-04-00"),
    ]
    assert "name of another interface: n2s0 -> eth1" in states[0].changed
    again = await net.apply(by_path("03/00"))
    assert again[0].changed == ()


async def test_ports_of_one_function(sysfs: FakeSysfs, net: InterfaceLab) -> None:
    for number in range(2):
        await net.veth(f"eth{number}", f"far{number}", up=False)
        on_pci(net, sysfs, "02", f"eth{number}", str(number))
    (one,) = await net.apply(by_path("02/00", current_name="eth1"))
    assert (one.link.name, one.link.altnames) == ("n2s0d1", ("eth1", "pci-02-00-d1"))
    (told,) = net.lab.ip("-j", "link", "show", "dev", "eth0")
    (other,) = await net.apply(by_path("02/00", mac=told["address"].upper()))
    assert other.link.name == "n2s0"


async def test_a_name_that_was_only_left_behind_is_free(
    sysfs: FakeSysfs, net: InterfaceLab
) -> None:
    await net.veth("eth0", "far0", up=False)
    on_pci(net, sysfs, "02", "eth0")
    await net.apply(by_path("02/00"))
    await net.apply(InterfaceWish(current_name="far0", name="eth0"))
    assert sorted(net.names().values()) == ["eth0", "n2s0"]

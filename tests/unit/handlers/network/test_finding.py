"""Which interface a wish means: by PCI address, by MAC, by name, whenever it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.addresses import MacAddress
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.network import InterfaceWish, Link, LinkFlag, LinkKind, LinkMaking
from agent.core.pci import Bdf, PciPath
from agent.core.state import StateStore
from agent.handlers.network.finding import Finder, physical
from agent.handlers.network.interface_records import InterfaceRecords
from tests.fakes import nic_trees
from tests.fakes.hotplug import Bench, bench, turns
from tests.fakes.link_table import LinkTable

pytestmark = [pytest.mark.unit, pytest.mark.network]

MAC = "02:00:00:aa:bb:01"
OTHER = "02:00:00:aa:bb:02"
ETH0 = Link(index=2, name="eth0", flags=LinkFlag.BROADCAST, mtu=1500, mac=MAC)
LATE = 20.0
SOON = 0.05


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


@pytest.fixture
def table() -> LinkTable:
    return LinkTable()


@pytest.fixture
def records(tmp_path: Path) -> InterfaceRecords:
    return InterfaceRecords(StateStore(tmp_path / "state"))


@pytest.fixture
def finder(guest: Bench, table: LinkTable, records: InterfaceRecords) -> Finder:
    return Finder(netlink=table, board=guest.board, records=records)


async def index_of(finder: Finder, wish: InterfaceWish, timeout: float = LATE) -> int:
    (found,) = await finder.find([wish], Deadline.after(timeout))
    return found.index


async def test_by_name_and_by_alternative_name(finder: Finder, table: LinkTable) -> None:
    table.links = [replace(ETH0, altnames=("lan",))]
    for name in ("eth0", "lan"):
        assert await index_of(finder, InterfaceWish(current_name=name)) == 2
    assert await index_of(finder, InterfaceWish(name="eth0")) == 2


@pytest.mark.parametrize(
    "wish",
    [InterfaceWish(current_name="eth0"), InterfaceWish(address=MacAddress.parse(MAC))],
)
async def test_one_that_comes_later(
    guest: Bench, finder: Finder, table: LinkTable, wish: InterfaceWish
) -> None:
    """An event of the kernel, or a notice of netlink, has everybody look again."""
    waiting = asyncio.ensure_future(index_of(finder, wish))
    await turns()
    table.links = [ETH0]
    await turns()
    assert not waiting.done()
    if wish.address is None:
        guest.kernel.send("add", "/devices/virtual/net/eth0", "net")
    else:
        guest.board.look_again()
    assert await waiting == 2


async def test_one_that_does_not_come(finder: Finder, table: LinkTable) -> None:
    """The error says what there is instead."""
    table.links = [replace(ETH0, mac=OTHER)]
    with pytest.raises(AgentError) as caught:
        await index_of(finder, InterfaceWish(address=MacAddress.parse(MAC)), SOON)
    assert (caught.value.code, caught.value.reason) == (
        Code.NOT_FOUND,
        Reason.UNKNOWN_INTERFACE,
    )
    assert f"eth0 ({OTHER})" in caught.value.message
    own = InterfaceWish(current_name="eth9", timeout=SOON)
    with pytest.raises(AgentError):
        await index_of(finder, own)


def link(name: str, kind: str = "", **more: object) -> Link:
    made = replace(ETH0, index=sum(name.encode()), name=name, kind=kind)
    return replace(made, **more)  # type: ignore[arg-type]


def test_by_mac_never_what_is_on_top() -> None:
    """A VLAN, a bond, a bridge have the address of what is below them; a veth's parent is
    its other end, and it is below them too."""
    top = [link(kind, kind, parent=2) for kind in ("vlan", "bond", "bridge", "macvlan", "team")]
    assert physical(MAC, [*top, ETH0]) == [ETH0]
    veth = link("veth0", "veth", parent=7)
    assert physical(MAC, [*top, veth]) == [veth]
    assert physical(OTHER, [*top, ETH0]) == []


def test_by_mac_the_members_of_a_bond() -> None:
    """All have the bond's; the kernel tells each one's own (IFLA_PERM_ADDRESS)."""
    members = [
        link("eth0", permanent_mac=MAC, master=9),
        link("eth1", permanent_mac=OTHER, master=9),
    ]
    assert physical(MAC, members) == [members[0]]
    assert physical(OTHER, members) == [members[1]]


async def test_by_mac_two_that_have_it(finder: Finder, table: LinkTable) -> None:
    table.links = [link("a", "veth"), link("b", "veth")]
    with pytest.raises(AgentError) as caught:
        await index_of(finder, InterfaceWish(address=MacAddress.parse(MAC)))
    assert caught.value.reason is Reason.WRONG_STATE
    assert "a, b" in caught.value.message


async def test_what_is_to_be_made_is_not_waited_for(finder: Finder, table: LinkTable) -> None:
    pair = LinkMaking(kind=LinkKind.VETH, peer_name="inner")
    wishes = [
        InterfaceWish(current_name="inner", name="eth0"),
        InterfaceWish(name="outer", making=pair),
    ]
    found = await finder.find(wishes, Deadline.after(LATE))
    assert [each.index for each in found] == [0, 0]
    table.links = [link("outer", "veth")]
    found = await finder.find(wishes, Deadline.after(LATE))
    assert [each.index for each in found] == [0, table.links[0].index]


async def test_found_again_after_it_was_renamed(
    finder: Finder, table: LinkTable, records: InterfaceRecords
) -> None:
    """Only what this agent renamed: another one of that name may be a stranger."""
    table.links = [replace(ETH0, name="web0")]
    wish = InterfaceWish(current_name="eth0", name="web0", timeout=SOON)
    with pytest.raises(AgentError):
        await index_of(finder, wish)
    records.found(2, "eth0")
    assert await index_of(finder, wish) == 2


class TestByPciAddress:
    """The same wait as for any device; of several interfaces the wish says which."""

    async def test_by_path_and_by_bdf(self, guest: Bench, finder: Finder) -> None:
        device = nic_trees.virtio_net(guest.sysfs, guest.sysfs.port_with_slot(), "0000:01:00.0")
        nic_trees.interface(guest.sysfs, device, "eth0", mac=MAC, index=7)
        for address in (PciPath.parse("02/00"), Bdf.parse("0000:01:00.0")):
            assert await index_of(finder, InterfaceWish(address=address)) == 7

    async def test_of_several_the_one_by_mac_or_name(self, guest: Bench, finder: Finder) -> None:
        device = nic_trees.ethernet(guest.sysfs, guest.sysfs.port_with_slot(), "0000:01:00.0")
        nic_trees.interface(guest.sysfs, device, "eth0", mac=MAC, index=7)
        nic_trees.interface(guest.sysfs, device, "eth1", mac=OTHER, index=8)
        path = PciPath.parse("02/00")
        assert await index_of(finder, InterfaceWish(address=path, mac=OTHER)) == 8
        assert await index_of(finder, InterfaceWish(address=path, current_name="eth0")) == 7
        with pytest.raises(AgentError) as caught:
            await index_of(finder, InterfaceWish(address=path), SOON)
        assert "eth0" in caught.value.message
        assert "eth1" in caught.value.message

    async def test_a_mac_that_is_to_be_set(self, guest: Bench, finder: Finder) -> None:
        device = nic_trees.virtio_net(guest.sysfs, guest.sysfs.port_with_slot(), "0000:01:00.0")
        nic_trees.interface(guest.sysfs, device, "eth0", mac=MAC, index=7)
        wish = InterfaceWish(address=PciPath.parse("02/00"), mac=OTHER)
        assert await index_of(finder, wish) == 7

    async def test_one_that_is_plugged_later(self, guest: Bench, finder: Finder) -> None:
        port = guest.sysfs.port_with_slot()
        waiting = asyncio.ensure_future(
            index_of(finder, InterfaceWish(address=PciPath.parse("02/00")))
        )
        await turns()
        device = nic_trees.virtio_net(guest.sysfs, port, "0000:01:00.0")
        path = nic_trees.interface(guest.sysfs, device, "eth0", mac=MAC, index=7)
        guest.announce("add", path, "net")
        assert await waiting == 7

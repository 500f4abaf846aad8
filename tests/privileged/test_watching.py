"""What ip(8), another program, changes in a real network, as events."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from itertools import pairwise

import pytest

from agent.core.network import Hop, LinkKind, LinkMaking, Scope
from agent.core.rtnl import links, routes
from agent.core.rtnl.monitor import open_monitor
from agent.handlers.network import watching
from agent.handlers.network.watching import NetworkWatcher
from tests.privileged.netlab import TIMEOUT, Lab, lab, namespace, r4

pytestmark = [pytest.mark.privileged, pytest.mark.network]

VETH = LinkMaking(kind=LinkKind.VETH, peer_name="v1")


class Told:
    """Events as they are published, and a wait for one."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, str]]] = []
        self._news = asyncio.Event()

    def publish(self, kind: str, subject: str, details: Mapping[str, str] | None = None) -> None:
        self.events.append((kind, subject, dict(details or {})))
        self._news.set()

    async def until(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not wanted():
                self._news.clear()
                await self._news.wait()

    def of(self, subject: str, kind: str = "") -> list[dict[str, str]]:
        return [
            details
            for each, name, details in self.events
            if name == subject and each.startswith(kind)
        ]

    def changes(self, subject: str, kind: str = "") -> list[str]:
        return [details["change"] for details in self.of(subject, kind)]


class Watch:
    """A lab whose network is watched."""

    def __init__(self, net: Lab, watcher: NetworkWatcher, told: Told) -> None:
        self.net = net
        self.watcher = watcher
        self.told = told
        self._mtu = 60_000

    async def settled(self) -> None:
        """Until everything before this is told: notices come in order."""
        self._mtu += 1
        self.net.ip("link", "set", "lo", "mtu", str(self._mtu))
        await self.told.until(
            lambda: any(one["mtu"] == str(self._mtu) for one in self.told.of("lo", "interface"))
        )


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    async with lab() as net:
        told = Told()
        with contextlib.closing(open_monitor(net.namespace, own={net.netlink.port})) as monitor:
            watcher = NetworkWatcher(monitor, partial(watching.look, net.netlink), told)
            task = asyncio.create_task(watcher.run())
            async with asyncio.timeout(TIMEOUT):
                await watcher.ready.wait()
            yield Watch(net, watcher, told)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def v0(watch: Watch) -> Watch:
    """A pair, v0 and v1, both up."""
    await watch.net.make("v0", VETH)
    watch.net.ip("link", "set", "v0", "up")
    watch.net.ip("link", "set", "v1", "up")
    # The kernel tells of carriers a moment later.
    await watch.told.until(
        lambda: all(
            watch.told.of(name, "interface")[-1]["carrier"] == "yes" for name in ("v0", "v1")
        )
    )
    watch.told.events.clear()
    return watch


async def test_an_interface_comes_changes_and_goes(watch: Watch) -> None:
    net, told = watch.net, watch.told
    await net.make("v0", VETH)
    for command in (
        ("set", "v0", "address", "02:00:00:00:00:01"),
        ("set", "v0", "up"),
        ("set", "v1", "up"),
        ("set", "v0", "mtu", "1400"),
        ("set", "v0", "name", "web0"),
        ("del", "web0"),
    ):
        net.ip("link", *command)
    await watch.settled()
    assert told.changes("v0", "interface")[0] == "appeared"
    assert told.changes("web0", "interface")[:1] == ["renamed"]
    assert told.changes("web0", "interface")[-1] == "gone"
    assert told.of("web0", "interface")[0]["former_name"] == "v0"
    states = told.of("v0", "interface")
    last = states[-1]
    assert (last["up"], last["carrier"], last["mtu"]) == ("yes", "yes", "1400")
    assert last["mac"] == "02:00:00:00:00:01"
    # Each tells something that the one before did not.
    assert all(one != other for one, other in pairwise(states))


async def test_what_nobody_sees_is_no_event(v0: Watch) -> None:
    for command in (
        ("set", "v0", "txqueuelen", "77"),
        ("set", "v0", "promisc", "on"),
        ("set", "v0", "alias", "an-alias"),
        ("set", "v0", "mtu", "1500"),
        ("set", "v0", "up"),
    ):
        v0.net.ip("link", *command)
    await v0.settled()
    assert v0.told.changes("v0", "interface") == []


async def test_a_port_of_a_bridge_is_no_interface_that_goes(v0: Watch) -> None:
    """Bridges tell of ports that leave in messages of the interfaces' group."""
    await v0.net.make("br0", LinkMaking(kind=LinkKind.BRIDGE))
    v0.net.ip("link", "set", "v0", "master", "br0")
    v0.net.ip("link", "set", "v0", "nomaster")
    await v0.settled()
    told = v0.told.of("v0", "interface")
    assert {one["change"] for one in told} == {"changed"}
    assert told[0]["master"] == "br0"
    assert told[-1]["master"] == ""


async def test_addresses_come_and_go(v0: Watch) -> None:
    v0.net.ip("addr", "add", "192.0.2.10/24", "dev", "v0")
    v0.net.ip("addr", "add", "2001:db8::10/64", "dev", "v0")
    # Only its lifetime.
    v0.net.ip(
        "addr", "change", "192.0.2.10/24", "dev", "v0", "valid_lft", "300", "preferred_lft", "200"
    )
    v0.net.ip("addr", "del", "192.0.2.10/24", "dev", "v0")
    v0.net.ip("link", "del", "v0")
    await v0.settled()
    told = [(one["change"], one["address"]) for one in v0.told.of("v0", "address")]
    wanted = {"192.0.2.10/24", "2001:db8::10/64"}
    assert [one for one in told if one[1] in wanted] == [
        ("added", "192.0.2.10/24"),
        ("added", "2001:db8::10/64"),
        ("removed", "192.0.2.10/24"),
        ("removed", "2001:db8::10/64"),
    ]
    # The kernel's own of fe80:: goes with its interface.
    local = [change for change, address in told if address.startswith("fe80:")]
    assert local in ([], ["removed"], ["added", "removed"])


async def test_routes_of_others_are_told_and_the_kernels_are_not(v0: Watch) -> None:
    v0.net.ip("addr", "add", "192.0.2.10/24", "dev", "v0")
    route = ("198.51.100.0/24", "via", "192.0.2.1", "metric", "100")
    v0.net.ip("route", "add", *route, "proto", "dhcp")
    v0.net.ip("route", "replace", *route, "mtu", "1400")
    v0.net.ip("route", "del", *route)
    v0.net.ip("-6", "route", "add", "default", "dev", "v0", "table", "7")
    v0.net.ip("route", "add", "blackhole", "203.0.113.0/24")
    await v0.settled()
    told = v0.told.of("v0", "route")
    assert told[0] == {
        "change": "added",
        "family": "v4",
        "table": "254",
        "destination": "198.51.100.0/24",
        "gateway": "192.0.2.1",
        "metric": "100",
        "protocol": "dhcp",
    }
    assert [(one["change"], one["protocol"], one["destination"]) for one in told[1:]] == [
        ("replaced", "boot", "198.51.100.0/24"),
        ("removed", "boot", "198.51.100.0/24"),
        ("added", "boot", "default"),
    ]
    assert (told[3]["family"], told[3]["table"], told[3]["gateway"]) == ("v6", "7", "")
    (nowhere,) = v0.told.of("", "route")
    assert (nowhere["change"], nowhere["destination"]) == ("added", "203.0.113.0/24")


async def test_our_own_routes_are_no_event(v0: Watch) -> None:
    """By the port of the socket that asked for them."""
    v0.net.ip("addr", "add", "192.0.2.10/24", "dev", "v0")
    index = (await v0.net.link("v0")).index
    route = r4("198.51.100.0/24", Hop(gateway=IPv4Address("192.0.2.1"), index=index))
    on_link = r4("203.0.113.0/24", Hop(index=index), scope=Scope.LINK)
    await v0.net.do(
        routes.added(route, "add"),
        routes.added(on_link, "add"),
        routes.replaced(replace(route, mtu=1400), "replace"),
        routes.removed(route, "remove"),
    )
    v0.net.ip("route", "del", "203.0.113.0/24")
    await v0.settled()
    assert v0.told.changes("v0", "route") == ["removed"]


@pytest.fixture
def elsewhere() -> Iterator[int]:
    with namespace() as descriptor:
        yield descriptor


async def test_an_interface_goes_into_another_namespace(v0: Watch, elsewhere: int) -> None:
    index = (await v0.net.link("v0")).index
    change = links.moved(index, "move v0", namespace=elsewhere)
    with v0.watcher.moving(index, "web"):
        await v0.net.netlink.change(change, deadline=v0.net.deadline)
    other = (await v0.net.link("v1")).index
    await v0.net.netlink.change(
        links.moved(other, "move v1", namespace=elsewhere), deadline=v0.net.deadline
    )
    await v0.settled()
    assert v0.told.of("v0", "interface")[-1]["container_id"] == "web"
    assert v0.told.changes("v0", "interface")[-1] == "moved"
    assert v0.told.changes("v1", "interface")[-1] == "gone"


async def test_a_flood_of_routes_is_told_in_whole_by_a_few(v0: Watch) -> None:
    v0.net.ip("addr", "add", "192.0.2.10/24", "dev", "v0")
    await v0.settled()
    lines = [f"route add 10.0.{n >> 8}.{n & 255} via 192.0.2.1\n" for n in range(1000)]
    # By its path: busybox's shell has an `ip` of its own.
    program = shutil.which("ip")
    v0.net.run("sh", "-c", f"{program} -batch - <<'END'\n{''.join(lines)}END")

    def counted() -> int:
        single = v0.told.of("v0", "route")
        many = v0.told.of("", "route")
        assert all(one["change"] == "many" for one in many)
        return len(single) + sum(int(one["count"]) for one in many)

    await v0.told.until(lambda: counted() == 1000)

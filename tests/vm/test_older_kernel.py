"""A guest with an older kernel: Linux 6.1 gives no interface that is up another name.

Newer kernels do (6.2 and up: "net: Allow live renaming when an interface is up"), so that
the way round it, down and up again with all that it had, is walked on this one alone. The
witness is `ip`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from innkeeper.image.builder import build
from innkeeper.image.model import BuildOptions, ImageError
from innkeeper.image.progress import Silent
from innkeeper.shim import commands
from innkeeper.shim.client import VmSpec
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import network_pb2 as network
from innkeeper.v1 import network_pb2_grpc
from tests.fakes.plugs import plug
from tests.vm.guest import PROBE, Finished, booted
from tests.vm.iproute import PLACE, IpRoute, iproute
from tests.vm.kernel12 import kernel_of_debian_12

pytestmark = [pytest.mark.vm, pytest.mark.network, pytest.mark.timeout(900)]

V4, V6 = network.ADDRESS_FAMILY_V4, network.ADDRESS_FAMILY_V6
ADDRESSES = {"192.0.2.10/24", "198.51.100.1/32", "2001:db8::10/64", "2001:db8:1::1/128"}
IP = f"{PLACE}/ip"
EVERYTHING = f"{IP} -j address; {IP} -j route; {IP} -j -6 route; {IP} -j route show table 100"


@dataclass(frozen=True, slots=True)
class Older:
    """The VM, an interface of it, and `ip` in it."""

    ip: IpRoute
    path: str

    @property
    def stub(self) -> network_pb2_grpc.NetworkAsyncStub:
        return network_pb2_grpc.NetworkStub(self.ip.guest.channel)

    async def run(self, script: str) -> Finished:
        return await self.ip.guest.run(script, **PROBE, storages=(self.ip.mount,))

    async def everything(self) -> dict[str, Any]:
        """Flags and addresses of the one interface, and all routes."""
        finished = await self.run(EVERYTHING)
        assert finished.code == 0, finished
        links, *routes = map(json.loads, finished.text.splitlines())
        (link,) = (each for each in links if each["link_type"] != "loopback")
        return {
            "name": link["ifname"],
            "up": "UP" in link["flags"],
            "addresses": {f"{each['local']}/{each['prefixlen']}" for each in link["addr_info"]},
            "routes": [route for several in routes for route in several],
        }


@pytest.fixture(scope="module")
def kernel(root: Path) -> Path:
    try:
        return kernel_of_debian_12(root)
    except (ImageError, commands.CommandError) as error:
        pytest.skip(f"no kernel of Debian 12 can be had here: {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def older(kernel: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Older]:
    place = tmp_path_factory.mktemp("older")
    image = build(BuildOptions(kernel=kernel, out=place / "images"), Silent())
    spec = VmSpec(name="older", image=f"{image.directory}/", transport="serial", cpus=2)
    async with booted(spec) as guest, iproute(guest, place) as ip:
        attached = (await guest.host.Plug(plug("lan", nic=host.Nic()))).attached[0]
        yield Older(ip=ip, path=attached.pci_path)


async def test_an_interface_that_is_up_gets_its_name_and_keeps_all_it_has(older: Older) -> None:
    assert (await older.ip.guest.describe()).kernel.startswith("6.1.")
    await older.stub.ApplyInterface(
        network.ApplyInterfaceRequest(
            address=devices.DeviceAddress(pci_path=older.path),
            name="before",
            accept_router_advertisements=False,
            addresses=[network.InterfaceAddress(cidr=each) for each in sorted(ADDRESSES)],
        )
    )
    await older.stub.ApplyRoutes(routes("before"))
    had = await older.everything()
    assert (had["name"], had["up"]) == ("before", True)
    assert had["addresses"] >= ADDRESSES
    by_hand = await older.run(f"{IP} link set dev before name after")
    assert (by_hand.code, b"Device or resource busy" in by_hand.stderr) == (2, True), by_hand

    renamed = network.ApplyInterfaceRequest(
        current_name="before", name="after", keep_addresses=True
    )
    state = await older.stub.ApplyInterface(renamed)

    assert list(state.changed) == ["name before -> after"]
    has = await older.everything()
    text = json.dumps(had["routes"]).replace('"before"', '"after"')
    assert has == {**had, "name": "after", "routes": json.loads(text)}
    assert {route["gateway"] for route in has["routes"] if route["dst"] == "default"} == {
        "192.0.2.1",
        "2001:db8::1",
    }
    assert list((await older.stub.ApplyInterface(renamed)).changed) == []


def routes(device: str) -> network.ApplyRoutesRequest:
    """A default route of each family, one of a host, and one in a table of its own."""
    default = network.Route(gateway="192.0.2.1", device=device, metric=50)
    there = network.Route(destination="203.0.113.9", gateway="192.0.2.2", source="198.51.100.1")
    v6 = network.Route(gateway="2001:db8::1", device=device)
    return network.ApplyRoutesRequest(
        sets=[
            network.RouteSet(family=V4, routes=[default, there]),
            network.RouteSet(family=V6, routes=[v6]),
            network.RouteSet(family=V4, table=100, routes=[default]),
        ]
    )

"""Interfaces in containers and back, and the sandbox's DNS files in containers.

One VM with one NIC. The witness is `ip` of iproute2, in the sandbox's network and, by
nsenter, in a container's.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import network_pb2 as network
from innkeeper.v1 import network_pb2_grpc
from innkeeper.v1 import types_pb2 as types
from tests.fakes.plugs import plug
from tests.vm.guest import EVERYTHING, PROBE, Guest, booted, create_request, refused
from tests.vm.iproute import PLACE, iproute
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import kill_agent

pytestmark = [pytest.mark.vm, pytest.mark.network]

MAC = "52:54:00:12:34:56"
NIC = "eth7"
ALTNAME = "the-nic-of-the-test"
IP = "/guest/run/innkeeper/storages/iproute/ip"
OWN = [{"type": kind} for kind in ("mount", "pid", "ipc", "uts", "cgroup", "network")]
SHARED = [each for each in OWN if each["type"] != "network"]
WAIT = "read line"

CONFIGURED = """
link set NIC mtu 1400
link set NIC up
address add 192.0.2.1/24 dev NIC
address add 192.0.2.2/24 dev NIC
address add 2001:db8::1/64 dev NIC nodad
route add default via 192.0.2.254 dev NIC
route add 198.51.100.0/24 via 192.0.2.253 metric 7 src 192.0.2.2
route add 203.0.113.0/24 dev NIC table 77
-6 route add default via 2001:db8::ff dev NIC metric 9
neigh add 192.0.2.77 lladdr 02:00:00:00:00:01 dev NIC
"""


@dataclass(slots=True)
class Machine:
    """The guest, an observer in its network, and the disk with iproute2."""

    guest: Guest
    disk: containers.StorageMount
    observer: Observer = field(init=False)

    @property
    def network(self) -> network_pb2_grpc.NetworkAsyncStub:
        return network_pb2_grpc.NetworkStub(self.guest.channel)

    async def ip(self, *arguments: str, pid: int = 0) -> Any:
        """What `ip -j` says, in the sandbox's network or that of a process."""
        inside = f"nsenter -t {pid} -n " if pid else ""
        said = await self.observer.ask(f"{inside}{IP} -j {' '.join(arguments)}")
        return json.loads(said or "[]")

    async def do(self, *lines: str, pid: int = 0) -> None:
        """Commands for `ip`."""
        inside = f"nsenter -t {pid} -n " if pid else ""
        each = (f"{inside}{IP} {line} || echo not done: {line}" for line in lines)
        said = await self.observer.ask("; ".join(each))
        assert said == "", said

    async def names(self, pid: int = 0) -> set[str]:
        return {link["ifname"] for link in await self.ip("link", pid=pid)}

    async def seen(self, name: str, pid: int = 0) -> dict[str, Any]:
        """What an interface has, but for what the kernel makes by itself."""
        [link] = await self.ip("address", "show", "dev", name, pid=pid)
        routes = [
            {key: value for key, value in route.items() if key not in ("dev", "flags")}
            for family in ("-4", "-6")
            for route in await self.ip(family, "route", "show", "table", "all", pid=pid)
            if route.get("dev") == name and route.get("protocol") != "kernel"
        ]
        addresses = [
            (each["local"], each["prefixlen"], each.get("secondary", False))
            for each in link["addr_info"]
            if each["scope"] == "global"
        ]
        kept = ("mtu", "address", "altnames")
        neighbours = await self.ip("neigh", "show", "dev", name, "nud", "permanent", pid=pid)
        return {
            "link": {key: link.get(key) for key in kept} | {"up": "UP" in link["flags"]},
            "addresses": addresses,
            "routes": sorted(routes, key=str),
            "neighbours": neighbours,
        }

    async def is_home(self, name: str, before: dict[str, Any]) -> bool:
        return name in await self.names() and await self.seen(name) == before

    async def create(
        self,
        name: str,
        script: str,
        *grants: containers.InterfaceGrant,
        namespaces: list[dict[str, str]] | None = None,
        process: dict[str, Any] | None = None,
        **linux: Any,
    ) -> int:
        """A container's pid, before its start."""
        request = create_request(
            name,
            script,
            linux={"namespaces": OWN if namespaces is None else namespaces, **linux},
            process=process,
            storages=(self.disk,),
        )
        request.interfaces.extend(grants)
        return (await self.guest.containers.Create(request)).pid

    async def start(self, name: str) -> None:
        await self.guest.containers.Start(containers.StartContainerRequest(id=name))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    spec = VmSpec(name="lending", image=f"{image}/", transport="serial")
    place = tmp_path_factory.mktemp("iproute")
    async with booted(spec) as guest, iproute(guest, place) as ip:
        # Nobody else is on that wire: no router has its say.
        wire = host.Nic(mac=MAC, backend=host.NIC_BACKEND_WIRE, wire="lending")
        await guest.host.Plug(plug("nic", nic=wire))
        yield Machine(guest=guest, disk=ip.mount)


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def observer(machine: Machine) -> AsyncIterator[None]:
    """One for each test: it does not outlive its agent's death."""
    async with observing(machine.guest) as machine.observer:
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def nic(machine: Machine, observer: None) -> dict[str, Any]:
    """The NIC with all sorts of configuration, whatever it had before; what it has."""
    del observer
    [link] = [link for link in await machine.ip("link") if link.get("address") == MAC]
    name = link["ifname"]
    await machine.do(f"link set {name} down", f"address flush dev {name}")
    if name != NIC:
        await machine.do(f"link set {name} name {NIC}")
    if ALTNAME not in link.get("altnames", ()):
        await machine.do(f"link property add dev {NIC} altname {ALTNAME}")
    await machine.do(*CONFIGURED.replace("NIC", NIC).strip().splitlines())
    return await machine.seen(NIC)


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """The container's end is noticed by the agent a moment after it."""
    for _ in range(200):
        if await look():
            return
    raise AssertionError("it did not come to be")


def grant(name: str = NIC, container_name: str = "") -> containers.InterfaceGrant:
    return containers.InterfaceGrant(name=name, container_name=container_name)


@asynccontextmanager
async def there(
    machine: Machine, *grants: containers.InterfaceGrant, script: str = WAIT, **parts: Any
) -> AsyncIterator[int]:
    """A running container; its pid."""
    pid = await machine.create("c", script, *grants, **parts)
    try:
        await machine.start("c")
        yield pid
    finally:
        await machine.guest.remove("c")


async def test_a_container_finds_it_there_when_it_starts(
    machine: Machine, nic: dict[str, Any]
) -> None:
    """Its first process sees all of it; with its end it is the sandbox's again."""
    script = f"{PLACE}/ip -j address; {PLACE}/ip -j route"
    pid = await machine.create("c", script, grant(container_name="eth0"))
    assert await machine.seen("eth0", pid) == nic
    assert NIC not in await machine.names()
    await machine.start("c")
    finished = await machine.guest.follow(types.ProcessRef(container_id="c"))
    assert finished.code == 0, finished
    links, routes = map(json.loads, finished.text.splitlines())
    assert [link["ifname"] for link in links] == ["lo", "eth0"]
    assert "UP" in links[0]["flags"]
    assert [route["gateway"] for route in routes if route["dst"] == "default"] == ["192.0.2.254"]
    await until(lambda: machine.is_home(NIC, nic))
    await machine.guest.remove("c")
    assert await machine.seen(NIC) == nic


async def test_it_comes_back_from_one_that_is_removed(
    machine: Machine, nic: dict[str, Any]
) -> None:
    async with there(machine, grant()) as pid:
        assert await machine.seen(NIC, pid) == nic
    assert await machine.seen(NIC) == nic


async def test_it_comes_back_from_one_that_is_killed(machine: Machine, nic: dict[str, Any]) -> None:
    async with there(machine, grant(container_name="eth0")) as pid:
        await machine.observer.ask(f"kill -9 {pid}")
        await until(lambda: machine.is_home(NIC, nic))


async def test_it_comes_back_although_the_agent_died_meanwhile(
    machine: Machine, nic: dict[str, Any]
) -> None:
    async with there(machine, grant(container_name="eth0")) as pid:
        await kill_agent(machine.guest)
        async with observing(machine.guest) as machine.observer:
            assert await machine.seen("eth0", pid) == nic
            listed = await machine.network.ListInterfaces(network.ListInterfacesRequest())
            [found] = [each for each in listed.interfaces if each.container_id == "c"]
            assert (found.name, found.mac) == ("eth0", MAC)
            await machine.observer.ask(f"kill -9 {pid}")
            await until(lambda: machine.is_home(NIC, nic))


async def test_it_comes_back_although_container_and_agent_die_together(
    machine: Machine, nic: dict[str, Any]
) -> None:
    """Nobody is there to take it: PID 1 keeps the namespace, and with it the interface."""
    async with there(machine, grant(container_name="eth0")) as pid:
        agent = (await machine.guest.describe()).agent_pid
        killer = await machine.guest.start(f"kill -9 {agent} {pid}", **PROBE)
        await machine.guest.wait(killer)
        await machine.guest.remove(killer)
        async with observing(machine.guest) as machine.observer:
            await until(lambda: machine.is_home(NIC, nic))


async def test_what_the_container_made_of_it_does_not_come_along(
    machine: Machine, nic: dict[str, Any]
) -> None:
    powers = {"capabilities": EVERYTHING}
    async with there(machine, grant(container_name="eth0"), process=powers) as pid:
        await machine.do(
            "link set eth0 down",
            "link set eth0 address 02:00:00:00:00:55",
            "link set eth0 name mine",
            "link set mine up",
            "address add 10.0.0.1/8 dev mine",
            "route add 0.0.0.0/1 via 10.0.0.2",
            pid=pid,
        )
    assert await machine.seen(NIC) == nic


@pytest.mark.parametrize("kind", ["veth peer name other", "dummy"])
async def test_virtual_ones_outlive_the_containers_namespace(machine: Machine, kind: str) -> None:
    await machine.do(
        f"link add name virt type {kind}", "link set virt up", "address add 192.0.2.9/24 dev virt"
    )
    before = await machine.seen("virt")
    async with there(machine, grant("virt", "eth0")) as pid:
        assert await machine.seen("eth0", pid) == before
        await machine.observer.ask(f"kill -9 {pid}")
        await until(lambda: machine.is_home("virt", before))
    await machine.do("link del virt")


async def test_a_detach_names_the_containers_process(machine: Machine, nic: dict[str, Any]) -> None:
    async with there(machine, grant()) as pid:
        request = devices.DeviceHoldersRequest(id="nic")
        holders = (await machine.guest.devices.Holders(request)).holders
        assert [each.pid for each in holders] == [pid]
        phase = devices.DETACH_PHASE_PREPARE
        detach = devices.DetachDeviceRequest(id="nic", phase=phase)
        answer = await refused(machine.guest.devices.Detach(detach))
        assert answer == (grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    assert await machine.seen(NIC) == nic


async def test_a_create_that_fails_leaves_it_here(machine: Machine, nic: dict[str, Any]) -> None:
    await machine.do("link add name br0 type bridge")
    answer = await refused(machine.create("c", WAIT, grant(), grant("br0")))
    assert answer == (grpc.StatusCode.FAILED_PRECONDITION, "KERNEL_REFUSED")
    assert await machine.seen(NIC) == nic
    await machine.do("link del br0")


@pytest.mark.usefixtures("nic")
async def test_what_can_not_be_asked_for(machine: Machine) -> None:
    unknown = await refused(machine.create("c", WAIT, grant("none")))
    assert unknown == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_INTERFACE")
    shared = await refused(machine.create("c", WAIT, grant(), namespaces=SHARED))
    assert shared == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    nowhere = await refused(machine.create("c", WAIT, namespaces=SHARED, netDevices={NIC: {}}))
    assert nowhere == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_SPEC")
    by_path = [*SHARED, {"type": "network", "path": "/proc/1/ns/net"}]
    ours = await refused(machine.create("c", WAIT, namespaces=by_path, netDevices={NIC: {}}))
    assert ours == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
    assert NIC in await machine.names()


async def test_net_devices_as_the_specification_has_them(
    machine: Machine, nic: dict[str, Any]
) -> None:
    """Addresses and up, no routes; it stays, and the kernel sends it back by itself."""
    async with there(machine, netDevices={NIC: {"name": "net%d"}}) as pid:
        found = await machine.seen("net0", pid)
        assert found["link"] == nic["link"]
        assert found["addresses"] == nic["addresses"]
        assert found["routes"] == []

    async def is_back() -> bool:
        return "net0" in await machine.names()

    await until(is_back)
    assert (await machine.seen("net0"))["addresses"] == []


async def test_nothing_is_left_of_it(machine: Machine, nic: dict[str, Any]) -> None:
    async with there(machine, grant()):
        """What is loaded once is loaded then."""
    before = await machine.observer.census()
    async with there(machine, grant()) as pid:
        await machine.observer.ask(f"kill -9 {pid}")
        await until(lambda: machine.is_home(NIC, nic))
    await machine.observer.returns_to(before)


async def test_a_nic_that_is_taken_out_of_a_container(
    machine: Machine, nic: dict[str, Any]
) -> None:
    """Pulled out as by a surprise: the container goes on, and goes, and others after it."""
    del nic
    bdf = (await machine.guest.devices.Get(devices.GetDeviceRequest(id="nic"))).pci_bdf
    async with there(machine, grant()) as pid:
        await machine.observer.ask(f"echo 1 > /sys/bus/pci/devices/{bdf}/remove")
        await until(lambda: _has_only_lo(machine, pid))
    assert NIC not in await machine.names()
    await machine.observer.ask("echo 1 > /sys/bus/pci/rescan")

    async def is_back() -> bool:
        return any(link.get("address") == MAC for link in await machine.ip("link"))

    await until(is_back)


async def _has_only_lo(machine: Machine, pid: int) -> bool:
    return await machine.names(pid) == {"lo"}


async def test_a_network_of_its_own_has_its_loopback_up(machine: Machine) -> None:
    """Also where nothing was lent: crun sees to it."""
    async with there(machine) as pid:
        [link] = await machine.ip("link", pid=pid)
        assert "UP" in link["flags"]


# --- DNS --------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def dns(machine: Machine) -> network.DnsState:
    return await apply_dns(machine, "192.0.2.53")


async def apply_dns(machine: Machine, server: str, name: str = "web") -> network.DnsState:
    request = network.ApplyDnsRequest(
        servers=[server],
        searches=["example.org"],
        hosts=[network.HostEntry(address="192.0.2.1", names=[f"{name}.example.org", name])],
        hostname=name,
    )
    answer: network.DnsState = await machine.network.ApplyDns(request)
    return answer


async def test_before_anybody_asks_containers_have_what_the_image_has(machine: Machine) -> None:
    finished = await machine.guest.run("cat /proc/self/mountinfo")
    assert " /etc/" not in finished.text


async def test_containers_have_the_sandboxes_files(machine: Machine, dns: network.DnsState) -> None:
    script = "cat /etc/resolv.conf; echo ---; cat /etc/hosts; echo ---; cat /etc/hostname"
    finished = await machine.guest.run(script)
    assert finished.text.split("---\n") == [dns.resolv_conf, dns.hosts, f"{dns.hostname}\n"]


@pytest.mark.usefixtures("dns")
async def test_a_running_container_sees_a_change(machine: Machine) -> None:
    """Also one that is not started yet; entry points may write to their own copy."""
    script = f"echo 10.0.0.1 own >> /etc/hosts; {WAIT}"
    await machine.create("late", "cat /etc/resolv.conf")
    async with there(machine, script=script) as pid:
        await until(lambda: _says(machine, pid, "hosts", "10.0.0.1 own"))
        after = await apply_dns(machine, "192.0.2.54", "db")
        assert list(after.warnings) == []
        root = f"/proc/{pid}/root"
        assert await machine.observer.ask(f"cat {root}/etc/resolv.conf") == after.resolv_conf
        assert await machine.observer.ask(f"cat {root}/etc/hosts") == after.hosts
    await machine.start("late")
    finished = await machine.guest.follow(types.ProcessRef(container_id="late"))
    assert finished.text == after.resolv_conf
    await machine.guest.remove("late")


async def _says(machine: Machine, pid: int, name: str, words: str) -> bool:
    return words in await machine.observer.ask(f"cat /proc/{pid}/root/etc/{name}")


@pytest.mark.usefixtures("dns")
async def test_what_a_container_mounts_itself_is_its_own(machine: Machine) -> None:
    mounts = [{"destination": "/etc", "type": "tmpfs", "source": "tmpfs"}]
    finished = await machine.guest.run("ls -A /etc", mounts=mounts)
    assert (finished.code, finished.text) == (0, "")


@pytest.mark.usefixtures("dns")
async def test_in_a_user_namespace_they_belong_to_its_root(machine: Machine) -> None:
    after = await apply_dns(machine, "192.0.2.55")
    mapping = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]
    linux = {
        "namespaces": [*SHARED, {"type": "user"}],
        "uidMappings": mapping,
        "gidMappings": mapping,
    }
    script = "stat -c %u:%g /etc/hosts; cat /etc/resolv.conf; echo own >> /etc/hosts; echo $?"
    finished = await machine.guest.run(script, linux=linux)
    assert finished.text == f"0:0\n{after.resolv_conf}0\n", finished


@pytest.mark.usefixtures("dns")
async def test_one_that_fills_its_copy_fills_nothing_else(machine: Machine) -> None:
    """And gets the next change all the same."""
    script = "cat /dev/zero > /etc/hosts; read line"
    free = "df -k /guest/run | tail -n 1"
    before = (await machine.observer.ask(free)).split()[2]
    async with there(machine, script=script) as pid:
        await until(lambda: _is_full(machine, pid))
        assert int((await machine.observer.ask(free)).split()[2]) - int(before) < 1024
        after = await apply_dns(machine, "192.0.2.56")
        assert list(after.warnings) == []
        assert await _says(machine, pid, "resolv.conf", "192.0.2.56")
        assert await machine.observer.ask(f"cat /proc/{pid}/root/etc/hosts") == after.hosts


async def _is_full(machine: Machine, pid: int) -> bool:
    said = await machine.observer.ask(f"stat -c %s /proc/{pid}/root/etc/hosts")
    return int(said) > 200_000


@pytest.mark.usefixtures("dns")
async def test_a_change_reaches_containers_of_an_earlier_agent(machine: Machine) -> None:
    async with there(machine) as pid:
        await kill_agent(machine.guest)
        after = await apply_dns(machine, "192.0.2.57")
        async with observing(machine.guest) as machine.observer:
            assert await machine.observer.ask(f"cat /proc/{pid}/root/etc/hosts") == after.hosts

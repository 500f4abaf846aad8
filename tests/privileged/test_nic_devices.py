"""Interfaces and generators that this machine has, found through the real sysfs."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.core.addresses import Address, MacAddress
from agent.core.errors import AgentError, Reason
from agent.core.events import EventLog
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.kinds import NicExpectation, NicInfo, RngExpectation, RngInfo
from agent.core.model import DeviceRequest
from agent.core.pci import Bdf
from agent.core.places import Place
from agent.core.roots import Roots
from agent.core.state import StateStore
from agent.core.tree import SysfsTree
from agent.core.verdict import Failed, Ready
from agent.handlers.devices.manager import DeviceManager
from agent.handlers.devices.nic import NicDevices
from agent.handlers.devices.rng import RngDevices
from agent.linux.uevents import KernelUevents
from tests.privileged import taps
from tests.privileged.counts import often

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.devices,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes and renames interfaces"),
]

SOURCE = Path("/sys/class/misc/hw_random/rng_current")


@pytest.fixture
async def devices(tmp_path: Path) -> AsyncIterator[DeviceManager]:
    files = FileWorkers()
    tree = SysfsTree(roots=Roots(run=tmp_path))
    board = HotplugBoard(tree=tree, source=KernelUevents(), files=files)
    board.start()
    state = StateStore(tmp_path / "state")
    made = DeviceManager(
        board=board,
        state=state,
        events=EventLog(state),
        classes=(NicDevices(), RngDevices()),
    )
    yield made
    await made.close()
    board.close()
    await files.close()


@pytest.fixture(scope="module")
def card() -> str:
    """The name of an interface behind a PCI function."""
    for link in sorted(Path("/sys/class/net").iterdir()):
        if "/pci" in str(link.resolve()):
            return link.name
    pytest.skip("no network interface behind a PCI function on this machine")


def bdf_of(path: Path) -> Bdf:
    return Bdf.parse([part for part in path.resolve().parts if Bdf.is_name(part)][-1])


def request(address: Address, *, timeout: float = 60.0, **expected: str) -> DeviceRequest:
    kind = NicExpectation(mac=expected.get("mac"))
    return DeviceRequest(id="nic0", address=address, kind=kind, timeout=timeout)


async def test_what_the_kernel_itself_says(devices: DeviceManager, card: str) -> None:
    """By place and by address it is the same interface, as its ioctls describe it."""
    mac = taps.address_of(card)
    expected = NicInfo(
        name=card, mac=mac, mtu=taps.mtu_of(card), ifindex=socket.if_nametoindex(card)
    )
    bdf = bdf_of(Path("/sys/class/net", card))
    for address in (bdf, MacAddress.parse(mac.upper())):
        attached = await devices.attach(request(address, mac=mac))
        assert (attached.info, attached.nodes, attached.bdf) == (expected, (), str(bdf))
        await devices.forget("nic0")
    assert (await devices.attach(request(bdf))).info == expected


async def test_another_address_is_another_device(devices: DeviceManager, card: str) -> None:
    bdf = bdf_of(Path("/sys/class/net", card))
    with pytest.raises(AgentError) as caught:
        await devices.attach(request(bdf, mac="02:00:00:00:00:99", timeout=0.3))
    assert caught.value.reason is Reason.UNEXPECTED_DEVICE
    assert card in caught.value.message


@contextlib.contextmanager
def taps_that_swap(names: tuple[str, str]) -> Iterator[None]:
    """Two interfaces exchange their names, again and again, while the block runs."""
    one, other = names
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for old, new in ((one, "ik-parked"), (other, one), ("ik-parked", other)):
                taps.rename(old, new)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_names_that_move_while_they_are_read() -> None:
    """Whatever the names are doing, index and address belong together."""
    if not taps.CONTROL.exists():
        pytest.skip("no /dev/net/tun on this machine")
    names = ("ik-a", "ik-b")
    with taps.tap(names[0]), taps.tap(names[1]):
        known = {socket.if_nametoindex(name): taps.address_of(name) for name in names}
        assert len(set(known.values())) == 2
        with taps_that_swap(names):
            answers = [_virtual(mac) for mac in known.values() for _ in range(often(100))]
    found = [info for info in answers if info is not None]
    assert found
    assert {(info.ifindex, info.mac) for info in found} <= set(known.items())
    assert {info.ifindex for info in found} == set(known)


def _virtual(mac: str) -> NicInfo | None:
    """What the class says at once; None where it wants to look again."""
    place = Place(directory=Path("/sys/devices/virtual"))
    tree = SysfsTree(roots=Roots())
    verdict = NicDevices().probe(tree, place, NicExpectation(mac=mac))
    assert not isinstance(verdict, Failed), verdict
    if not isinstance(verdict, Ready):
        return None
    assert isinstance(verdict.result.info, NicInfo)
    return verdict.result.info


async def test_the_generator_of_this_machine(devices: DeviceManager) -> None:
    """Asked to be the source that it is, nothing is written, and nothing given back."""
    drivers = Path("/sys/bus/virtio/drivers/virtio_rng")
    found = list(drivers.glob("virtio*"))  # noqa: ASYNC240 - sysfs
    if len(found) != 1 or "/pci" not in str(found[0].resolve()):
        pytest.skip("not exactly one virtio-rng behind a PCI function on this machine")
    source = SOURCE.read_text().strip()  # noqa: ASYNC240 - sysfs
    wanted = DeviceRequest(
        id="rng0",
        address=bdf_of(found[0]),
        kind=RngExpectation(make_current=source.startswith("virtio_rng.")),
        timeout=20.0,
    )
    attached = await devices.attach(wanted)
    assert isinstance(attached.info, RngInfo)
    assert attached.info.name in SOURCE.with_name("rng_available").read_text().split()
    assert attached.info == RngInfo(name=attached.info.name, current=attached.info.name == source)
    assert [(node.path, node.major, node.minor) for node in attached.nodes] == (
        [("/dev/hwrng", 10, 183)] if attached.info.current else []
    )
    await devices.release_device("rng0")
    assert SOURCE.read_text().strip() == source  # noqa: ASYNC240 - sysfs

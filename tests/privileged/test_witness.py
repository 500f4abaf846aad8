"""The kernel's events as we read them, against an independent witness: udev's own library.

Real devices come and go: loop devices and pairs of network interfaces. Anything else that
happens on the machine meanwhile both must have seen too.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.core.deadlines import Deadline
from agent.core.hotplug import HotplugBoard, Wish
from agent.core.roots import Roots
from agent.core.tree import SysfsTree
from agent.core.verdict import NotYet, Ready, Verdict
from agent.linux.block import node_numbers
from agent.linux.uevents import RECEIVE_BUFFER, KernelUevents, Uevent
from tests.fakes.hotplug import FakeSlowFiles
from tests.privileged import comings

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.devices,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes devices"),
]

NULL = Path("/sys/class/mem/null/uevent")
PATIENCE = 20.0
TOO_SMALL = 2048
"""Bytes of a receive buffer that a few events fill."""
STORM = 200
TOO_SMALL_FOR_LONG = 512 * 1024
"""One that takes the board several batches to read when it is full."""
LONG_STORM = 3000


class Seen(NamedTuple):
    """One event, as both tell it."""

    sequence: int
    action: str
    devpath: str


class Witness:
    """udev's monitor of the kernel's own events (not of those that udevd sends on)."""

    def __init__(self) -> None:
        pyudev = pytest.importorskip("pyudev", exc_type=ImportError)
        try:
            context = pyudev.Context()
        except ImportError as error:
            pytest.skip(f"no libudev on this machine: {error}")
        self._monitor = pyudev.Monitor.from_netlink(context, source="kernel")
        self._monitor.set_receive_buffer_size(RECEIVE_BUFFER)
        self._monitor.start()

    def until(self, mark: str) -> list[Seen]:
        """All events up to a mark of `announce`, without it."""
        seen: list[Seen] = []
        while True:
            device = self._monitor.poll(timeout=PATIENCE)
            assert device is not None, "the witness waited in vain"
            if device.properties.get("SYNTH_ARG_MARK") == mark:
                return seen
            seen.append(Seen(device.sequence_number, device.action, device.device_path))


class Ours:
    """A hotplug board on the kernel's socket, and what it was told."""

    def __init__(self, receive_buffer: int) -> None:
        self.board = HotplugBoard(
            tree=SysfsTree(roots=Roots()),
            source=KernelUevents(receive_buffer=receive_buffer),
            files=FakeSlowFiles(),
            relooks=(),
        )
        self.events: list[Uevent] = []
        self._news = asyncio.Event()
        self.board.listen(self._listen)

    def _listen(self, event: Uevent | None) -> None:
        if event is not None:
            self.events.append(event)
        self._news.set()

    async def until(self, mark: str) -> list[Seen]:
        """The same as the witness's."""
        async with asyncio.timeout(PATIENCE):
            while (end := self._find(mark)) is None:
                self._news.clear()
                await self._news.wait()
        seen = self.so_far()[:end]
        del self.events[: end + 1]
        return seen

    def so_far(self) -> list[Seen]:
        return [Seen(event.sequence, event.action, event.devpath) for event in self.events]

    def _find(self, mark: str) -> int | None:
        marks = [event.properties.get("SYNTH_ARG_MARK") for event in self.events]
        return marks.index(mark) if mark in marks else None


@pytest.fixture
def witness() -> Witness:
    return Witness()


@asynccontextmanager
async def ours(receive_buffer: int = RECEIVE_BUFFER) -> AsyncIterator[Ours]:
    made = Ours(receive_buffer)
    made.board.start()
    try:
        yield made
    finally:
        made.board.close()


def announce(mark: str) -> None:
    """Have the kernel send an event that can be told from all others (sysfs-uevent)."""
    NULL.write_text(f"change {uuid.uuid4()} MARK={mark}")


def storm(count: int = STORM) -> None:
    """More events than the buffer holds; the event loop does not run meanwhile."""
    for _ in range(count):
        NULL.write_text("change")


def mine(seen: list[Seen], *names: str) -> list[tuple[str, str]]:
    """Action and directory of the events of the devices so named, in their order."""
    found = [(event.action, Path(event.devpath)) for event in seen]
    return [(action, str(path)) for action, path in found if path.name in names]


async def test_real_devices_are_announced_to_both_alike(witness: Witness) -> None:
    async with ours() as us:
        announce("begin")
        with comings.loop() as number, comings.pair() as (name, peer):
            comings.remove_pair(peer)
            comings.remove_loop(number)
        announce("end")
        witness.until("begin")
        await us.until("begin")
        theirs, own = witness.until("end"), await us.until("end")
        assert us.board.counters.overflows == 0
    names = (f"loop{number}", name, peer)
    assert mine(own, *names) == mine(theirs, *names)
    assert {(action, Path(path).name) for action, path in mine(own, *names)} >= {
        (action, device) for action in ("add", "remove") for device in names
    }
    # Newer kernels may send events of two processors at once in either order.
    assert sorted(own) == sorted(theirs)
    ordered = [event for event in own if Path(event.devpath).name in names]
    assert ordered == sorted(ordered)


def devpath(path: Path) -> str:
    return str(path).removeprefix("/sys")


def there(path: Path, node: Path | None, tree: SysfsTree) -> Verdict[str]:
    """Whether sysfs has a device, and /dev its node."""
    near = (devpath(path),)
    if not path.exists() or (node is not None and node_numbers(node) is None):
        return NotYet(evidence=f"no {path}", near=near)
    return Ready("there")


def gone(path: Path, tree: SysfsTree) -> Verdict[str]:
    if path.exists():
        return NotYet(evidence=f"{path} is there", near=(devpath(path),))
    return Ready("gone")


class Coming(NamedTuple):
    """A kind of device: how it comes and goes, and how one sees it."""

    name: str
    path: Path
    node: Path | None
    add: Callable[[], object]
    remove: Callable[[], object]

    @property
    def devpath(self) -> str:
        return devpath(self.path)


@pytest.fixture(params=["loop", "interface"])
def coming(request: pytest.FixtureRequest) -> Iterator[Coming]:
    """A device that was there and is not there now."""
    virtual = Path("/sys/devices/virtual")
    if request.param == "interface":
        with comings.pair() as (name, peer):
            comings.remove_pair(name)
            yield Coming(
                name=name,
                path=virtual / "net" / name,
                node=None,
                add=partial(comings.add_pair, name, peer),
                remove=partial(comings.remove_pair, name),
            )
            return
    with comings.loop() as number:
        comings.remove_loop(number)
        yield Coming(
            name=f"loop{number}",
            path=virtual / f"block/loop{number}",
            node=Path(f"/dev/loop{number}"),
            add=partial(comings.add_loop, number),
            remove=partial(comings.remove_loop, number),
        )


async def in_a_storm(
    witness: Witness, wish: Wish[str], change: Callable[[], object]
) -> tuple[list[Seen], list[Seen]]:
    """Wait for a change whose events are lost to us; what the witness saw of it all, and we."""
    async with ours(TOO_SMALL) as us:
        announce("begin")
        witness.until("begin")
        wait = asyncio.ensure_future(us.board.wait(wish, Deadline.after(PATIENCE)))
        await asyncio.sleep(0)
        storm()
        change()
        await wait
        announce("end")
        assert us.board.counters.overflows >= 1
        assert us.board.counters.late_finds == 0
        return witness.until("end"), us.so_far()


async def test_a_device_whose_events_were_lost_is_found(witness: Witness, coming: Coming) -> None:
    """An overflow is noticed, and one look at everything makes up for all that it ate."""
    wish = Wish(what=coming.name, probe=partial(there, coming.path, coming.node))
    theirs, own = await in_a_storm(witness, wish, coming.add)
    assert ("add", coming.devpath) in mine(theirs, coming.name)
    assert mine(own, coming.name) == []
    assert len(own) < STORM < len(theirs)


async def test_a_removal_whose_events_were_lost_is_noticed(
    witness: Witness, coming: Coming
) -> None:
    coming.add()
    wish = Wish(what=coming.name, probe=partial(gone, coming.path))
    theirs, own = await in_a_storm(witness, wish, coming.remove)
    assert ("remove", coming.devpath) in mine(theirs, coming.name)
    assert mine(own, coming.name) == []
    assert len(own) < STORM < len(theirs)


async def test_what_is_lost_while_the_rest_is_read_is_found(coming: Coming) -> None:
    """After an overflow the kernel drops everything until the socket has been read empty, and
    says so once (net/netlink/af_netlink.c): whoever looked when it said so looked too early."""
    looks = 0
    looked_again = asyncio.Event()

    def probe(tree: SysfsTree) -> Verdict[str]:
        nonlocal looks
        looks += 1
        if looks == 2:
            looked_again.set()
        return there(coming.path, coming.node, tree)

    async with ours(TOO_SMALL_FOR_LONG) as us:
        wish = Wish(what=coming.name, probe=probe)
        wait = asyncio.ensure_future(us.board.wait(wish, Deadline.after(PATIENCE)))
        await asyncio.sleep(0)
        storm(LONG_STORM)
        await looked_again.wait()
        read = len(us.so_far())
        coming.add()
        await wait
        assert us.board.counters.overflows >= 1
        assert us.board.counters.late_finds == 0
        assert len(us.so_far()) > read
        assert mine(us.so_far(), coming.name) == []

"""The kernel's own event socket: real events, forged ones, lost ones."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.hotplug import HotplugBoard, Wish
from agent.core.roots import Roots
from agent.core.tree import SysfsTree
from agent.core.verdict import NotYet, Ready, Verdict
from agent.linux.uevents import KernelUevents, Uevent, open_socket, parse, receive
from tests.fakes.hotplug import FakeSlowFiles, turns
from tests.fakes.uevents import message

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.devices,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: writes uevent files of sysfs"),
]

NULL = Path("/sys/class/mem/null")
DEVPATH = "/devices/virtual/mem/null"
PATIENCE = 20.0


@pytest.fixture
def kernel() -> Iterator[socket.socket]:
    sock = open_socket()
    sock.settimeout(PATIENCE)
    yield sock
    sock.close()


def trigger(**variables: str) -> None:
    """Have the kernel announce a change; variables show up as SYNTH_ARG_*."""
    arguments = "".join(f" {key}={value}" for key, value in variables.items())
    uuid = " fe4d7c9d-b8c6-4a70-9ef1-3d8a58d18eed" if arguments else ""
    (NULL / "uevent").write_text(f"change{uuid}{arguments}")


def next_change(sock: socket.socket) -> Uevent:
    """The next event of /dev/null; other devices may have theirs meanwhile."""
    while True:
        datagram = receive(sock)
        event = parse(datagram.data, datagram.sender_port)
        if event is not None and event.devpath == DEVPATH:
            return event


def forge(data: bytes, *, group: bool = True, to: int = 0) -> None:
    """Send from another process, as any root process of the namespace can."""
    code = (
        "import socket, sys\n"
        "sock = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15)\n"
        f"sock.sendto(sys.stdin.buffer.read(), ({to}, {1 if group else 0}))\n"
    )
    subprocess.run([sys.executable, "-c", code], input=data, check=True)


def test_a_real_event_is_understood(kernel: socket.socket) -> None:
    trigger(COLOUR="blue")
    event = next_change(kernel)
    assert (event.action, event.subsystem, event.node) == ("change", "mem", "null")
    assert (event.properties["MAJOR"], event.properties["MINOR"]) == ("1", "3")
    assert event.properties["SYNTH_ARG_COLOUR"] == "blue"
    assert event.sequence > 0
    trigger()
    assert next_change(kernel).sequence > event.sequence


def test_an_independent_witness_saw_the_same(kernel: socket.socket) -> None:
    pyudev = pytest.importorskip("pyudev", exc_type=ImportError)
    try:
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
    except ImportError as error:
        pytest.skip(f"no libudev on this machine: {error}")
    monitor.filter_by("mem")
    monitor.start()
    trigger(COLOUR="red")
    event = next_change(kernel)
    seen: dict[str, str] = {}
    while seen.get("SYNTH_ARG_COLOUR") != "red":
        device = monitor.poll(timeout=PATIENCE)
        assert device is not None
        seen = dict(device.properties)
    assert seen["DEVPATH"] == event.devpath
    assert seen["SEQNUM"] == str(event.sequence)
    # The witness gives the node's whole path.
    assert seen.pop("DEVNAME") == f"/dev/{event.node}"
    del event.properties["DEVNAME"]
    assert event.properties.items() <= seen.items()


def test_a_forged_event_arrives_and_is_not_believed(kernel: socket.socket) -> None:
    forge(message("add", DEVPATH, "block", DEVNAME="evil"))
    while True:
        datagram = receive(kernel)
        if b"evil" in datagram.data:
            break
    assert datagram.sender_port != 0
    assert parse(datagram.data, datagram.sender_port) is None


def test_a_forged_event_sent_to_us_alone_is_not_believed_either(kernel: socket.socket) -> None:
    port = kernel.getsockname()[0]
    forge(message("add", DEVPATH, "block", DEVNAME="evil"), group=False, to=port)
    while True:
        datagram = receive(kernel)
        if b"evil" in datagram.data:
            break
    assert parse(datagram.data, datagram.sender_port) is None


def test_an_overflow_is_an_error_and_the_socket_lives_on() -> None:
    sock = open_socket(receive_buffer=2048)
    try:
        for _ in range(200):
            trigger()
        assert drain(sock) == {errno.ENOBUFS}
        trigger(COLOUR="after")
        assert next_change(sock).properties["SYNTH_ARG_COLOUR"] == "after"
    finally:
        sock.close()


def drain(sock: socket.socket) -> set[int]:
    """Read until there is nothing; returns the errors on the way."""
    errors: set[int] = set()
    while True:
        try:
            receive(sock)
        except BlockingIOError:
            return errors
        except OSError as error:
            errors.add(error.errno or 0)


@pytest.fixture
async def board() -> AsyncIterator[HotplugBoard]:
    source = KernelUevents(receive_buffer=2048)
    made = HotplugBoard(
        tree=SysfsTree(roots=Roots()), source=source, files=FakeSlowFiles(), relooks=()
    )
    made.start()
    yield made
    made.close()


class Switch:
    """A probe that is ready once it is switched."""

    def __init__(self) -> None:
        self.on = False
        self.looks = 0

    def __call__(self, tree: SysfsTree) -> Verdict[int]:
        self.looks += 1
        return Ready(self.looks) if self.on else NotYet(evidence="off", near=(DEVPATH,))


async def test_a_wait_is_woken_by_the_kernel(board: HotplugBoard) -> None:
    switch = Switch()
    wait = asyncio.ensure_future(
        board.wait(Wish(what="null", probe=switch), Deadline.after(PATIENCE))
    )
    await asyncio.sleep(0)
    switch.on = True
    trigger()
    assert await wait == 2
    assert board.counters.late_finds == 0


async def test_a_wait_survives_an_overflow_that_ate_its_event(board: HotplugBoard) -> None:
    switch = Switch()
    wait = asyncio.ensure_future(
        board.wait(Wish(what="null", probe=switch), Deadline.after(PATIENCE))
    )
    await asyncio.sleep(0)
    # The loop does not run meanwhile, so the small buffer overflows.
    for _ in range(200):
        trigger()
    switch.on = True
    await wait
    assert board.counters.overflows >= 1
    assert board.counters.late_finds == 0


async def test_a_storm_of_forged_events_wakes_nobody(board: HotplugBoard) -> None:
    switch = Switch()
    wait = asyncio.ensure_future(
        board.wait(Wish(what="null", probe=switch), Deadline.after(PATIENCE))
    )
    await asyncio.sleep(0)
    forge(message("add", DEVPATH, "mem"))
    while board.counters.foreign == 0:
        await turns(1)
    assert switch.looks == 1
    switch.on = True
    trigger()
    await wait

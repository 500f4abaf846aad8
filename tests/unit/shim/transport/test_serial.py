"""Sessions on a port, the host's side; a unix listener stands in for QEMU's chardev."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from innkeeper.shim.transport.address import SerialAddress
from innkeeper.shim.transport.serial import Serial, SerialStream, qemu_arguments
from innkeeper.shim.transport.stream import TransportError
from innkeeper.v1.session import Decoder, Encoder, End, Event, Start

pytestmark = [pytest.mark.unit, pytest.mark.boot]


class Guest:
    """Accepts one host at a time and speaks the framing by hand."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.sock: socket.socket | None = None

    async def accept(self) -> None:
        self.leave()
        self.sock, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        self.decoder = Decoder()

    async def events(self) -> list[Event]:
        assert self.sock is not None
        while True:
            wire = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
            events = self.decoder.feed(wire)
            if events or not wire:
                return events

    async def send(self, wire: bytes) -> None:
        assert self.sock is not None
        await asyncio.get_running_loop().sock_sendall(self.sock, wire)

    async def echo(self, *, noise: bytes = b"") -> bytes:
        """Take up a session; `noise` goes before the echo."""
        await self.accept()
        (start,) = await self.events()
        assert isinstance(start, Start)
        await self.send(noise + self.encoder.start(start.nonce))
        return start.nonce

    def leave(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Guest]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "port.sock"))
        listener.listen(1)
        listener.setblocking(False)
        guest = Guest(listener)
        yield guest
        guest.leave()


@pytest.fixture
def serial(tmp_path: Path) -> Serial:
    return Serial(SerialAddress(path=tmp_path / "port.sock"))


async def opened(serial: Serial, guest: Guest, *, noise: bytes = b"") -> SerialStream:
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(serial.open(timeout=5))
        group.create_task(guest.echo(noise=noise))
    return opening.result()


async def test_data_goes_both_ways(serial: Serial, guest: Guest) -> None:
    stream = await opened(serial, guest)
    await stream.write(b"request")
    assert await guest.events() == [b"request"]
    await guest.send(guest.encoder.data(b"answer"))
    assert await stream.read() == b"answer"
    stream.close()


async def test_what_comes_before_the_echo_is_another_lifes(serial: Serial, guest: Guest) -> None:
    """A former session's echo and data, cut in the middle of a frame."""
    former = Encoder()
    noise = b"half a frame" + former.start(bytes(16)) + former.data(b"stale") + former.end()[:5]
    stream = await opened(serial, guest, noise=noise)
    await guest.send(guest.encoder.data(b"fresh"))
    assert await stream.read() == b"fresh"
    stream.close()


async def test_the_guests_end_is_the_streams_end(serial: Serial, guest: Guest) -> None:
    stream = await opened(serial, guest)
    await guest.send(guest.encoder.data(b"last words") + guest.encoder.end() + b"not ours")
    assert await stream.read() == b"last words"
    assert await stream.read() == b""
    assert await stream.read() == b""
    stream.close()


async def test_a_port_that_closes_is_the_streams_end(serial: Serial, guest: Guest) -> None:
    stream = await opened(serial, guest)
    guest.leave()
    assert await stream.read() == b""
    stream.close()


async def test_finishing_tells_the_guest(serial: Serial, guest: Guest) -> None:
    stream = await opened(serial, guest)
    await stream.finish()
    assert await guest.events() == [End()]
    guest.leave()  # as QEMU does when the host has ended its side
    assert await stream.read() == b""
    stream.close()


async def test_a_new_session_replaces_the_former(serial: Serial, guest: Guest) -> None:
    former = await opened(serial, guest)
    waiting = asyncio.create_task(former.read())
    fresh = await opened(serial, guest)
    assert await waiting == b""
    await guest.send(guest.encoder.data(b"fresh"))
    assert await fresh.read() == b"fresh"
    former.close()
    fresh.close()


async def test_a_guest_that_does_not_answer_has_a_limit(serial: Serial, guest: Guest) -> None:
    with pytest.raises(TransportError, match=r"did not take up a session within 0\.05 s"):
        await serial.open(timeout=0.05)
    stream = await opened(serial, guest_after_silence(guest))
    stream.close()


def guest_after_silence(guest: Guest) -> Guest:
    """The abandoned connection is first in the listener's queue."""
    accept = guest.accept

    async def accept_twice() -> None:
        await accept()
        await accept()

    guest.accept = accept_twice  # type: ignore[method-assign]
    return guest


async def test_a_port_that_closes_instead_of_answering(serial: Serial, guest: Guest) -> None:
    opening = asyncio.create_task(serial.open(timeout=5))
    await guest.accept()
    guest.leave()
    with pytest.raises(TransportError, match="cannot open the port"):
        await opening


async def test_no_port(serial: Serial) -> None:
    with pytest.raises(TransportError, match=r"No such file .*is the VM running"):
        await serial.open(timeout=5)


async def test_a_full_queue_is_waited_for(tmp_path: Path, serial: Serial) -> None:
    """No event tells of room in a unix listener's queue, and asyncio takes EAGAIN for success."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "port.sock"))
        listener.listen(0)
        listener.setblocking(False)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(tmp_path / "port.sock"))
            guest = Guest(listener)
            opening = asyncio.create_task(serial.open(timeout=5))
            await guest.accept()
            await guest.echo()
            (await opening).close()
            guest.leave()


def test_qemu_gets_path_and_name() -> None:
    assert qemu_arguments(Path("/run/a,b.sock"), index=1) == (
        "-chardev",
        "socket,id=agent1,path=/run/a,,b.sock,server=on,wait=off",
        "-device",
        "virtserialport,chardev=agent1,id=agentport1,name=innkeeper.agent.1",
    )

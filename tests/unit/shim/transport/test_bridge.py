"""The bridge between gRPC's unix socket and a transport."""

from __future__ import annotations

import asyncio
import select
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from innkeeper.shim.transport.bridge import Bridge
from innkeeper.shim.transport.stream import SocketStream, TransportError, connect_unix

pytestmark = [pytest.mark.unit, pytest.mark.boot, pytest.mark.usefixtures("no_tasks_left")]


class Pairs:
    """A transport of socketpairs; `guests` are the far ends, in order of opening."""

    def __init__(self) -> None:
        self.guests: asyncio.Queue[SocketStream] = asyncio.Queue()
        self.failure: TransportError | None = None
        self.timeouts: list[float] = []
        self.ends: list[socket.socket] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True

    async def open(self, *, timeout: float) -> SocketStream:
        self.timeouts.append(timeout)
        if self.failure is not None:
            raise self.failure
        near, far = socket.socketpair()
        self.ends.append(far)
        self.guests.put_nowait(SocketStream(far))
        return SocketStream(near)


def wait_until_closed(sock: socket.socket) -> None:
    """Until the other side closed both directions; poll(2) always tells that."""
    poll = select.poll()
    poll.register(sock, 0)
    assert poll.poll(10_000), "the other side is still there"


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def pairs() -> Pairs:
    return Pairs()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vm" / "guest.sock"


@pytest.fixture
async def bridge(pairs: Pairs, path: Path) -> AsyncIterator[Bridge]:
    async with asyncio.timeout(20), Bridge(pairs, path, open_timeout=7) as bridge:
        yield bridge


async def test_each_connection_gets_a_stream_of_its_own(
    bridge: Bridge, pairs: Pairs, path: Path
) -> None:
    clients = [await connect_unix(path, timeout=5) for _ in range(3)]
    for number, client in enumerate(clients):
        await client.write(b"from %d" % number)
    said = set()
    for _ in clients:
        guest = await pairs.guests.get()
        word = await guest.read()
        said.add(word)
        await guest.write(b"to" + word[4:])
        guest.close()
    assert said == {b"from 0", b"from 1", b"from 2"}
    for number, client in enumerate(clients):
        assert await client.read() == b"to %d" % number
        client.close()
    assert pairs.timeouts == [7, 7, 7]


async def test_a_half_close_is_handed_on(bridge: Bridge, pairs: Pairs, path: Path) -> None:
    client = await connect_unix(path, timeout=5)
    guest = await pairs.guests.get()
    await client.finish()
    assert await guest.read() == b""
    await guest.write(b"still here")
    assert await client.read() == b"still here"
    await guest.finish()
    assert await client.read() == b""
    client.close()
    guest.close()


async def test_a_client_that_is_gone_takes_its_stream_along(
    bridge: Bridge, pairs: Pairs, path: Path
) -> None:
    """Also when the guest does not answer the end: it is stopped, say."""
    client = await connect_unix(path, timeout=5)
    guest = await pairs.guests.get()
    client.close()
    assert await guest.read() == b""
    await asyncio.to_thread(wait_until_closed, pairs.ends[-1])
    assert guest.abandoned()
    guest.close()


async def test_a_guest_that_is_gone_takes_its_client_along(
    bridge: Bridge, pairs: Pairs, path: Path
) -> None:
    end = socket.socket(socket.AF_UNIX)
    end.connect(str(path))
    client = SocketStream(end)
    guest = await pairs.guests.get()
    await client.write(b"never read")
    guest.close()
    await asyncio.to_thread(wait_until_closed, end)
    assert client.abandoned()
    client.close()


async def test_a_slow_guest_slows_the_client(bridge: Bridge, pairs: Pairs, path: Path) -> None:
    client = await connect_unix(path, timeout=5)
    guest = await pairs.guests.get()
    payload = bytes(range(256)) * 16384
    writing = asyncio.create_task(client.write(payload))
    done, _pending = await asyncio.wait([writing], timeout=0.2)
    assert not done
    received = bytearray()
    while len(received) < len(payload):
        received += await guest.read()
    assert bytes(received) == payload
    await writing
    client.close()
    guest.close()


async def test_a_failed_open_closes_and_is_remembered(
    bridge: Bridge, pairs: Pairs, path: Path
) -> None:
    pairs.failure = TransportError("the guest is not there")
    client = await connect_unix(path, timeout=5)
    assert await client.read() == b""
    client.close()
    assert str(bridge.last_error) == "the guest is not there"
    pairs.failure = None
    client = await connect_unix(path, timeout=5)
    guest = await pairs.guests.get()
    await guest.write(b"here")
    assert await client.read() == b"here"
    assert bridge.last_error is None
    client.close()
    guest.close()


async def test_leaving_ends_all_and_removes_the_socket(pairs: Pairs, path: Path) -> None:
    async with Bridge(pairs, path) as bridge:
        clients = [await connect_unix(path, timeout=5) for _ in range(5)]
        guests = [await pairs.guests.get() for _ in clients]
        assert bridge.connections == 5
    assert bridge.connections == 0
    assert files_in(path.parent) == []
    assert pairs.closed
    for stream in (*clients, *guests):
        assert await stream.read() == b""
        stream.close()


@pytest.mark.usefixtures("bridge")
def test_the_socket_is_the_owners_alone(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_socket_that_was_left_behind_is_replaced(pairs: Pairs, path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with Bridge(pairs, path):
        client = await connect_unix(path, timeout=5)
        guest = await pairs.guests.get()
        client.close()
        guest.close()


async def test_a_path_that_cannot_be_bound_is_the_callers_error(
    pairs: Pairs, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="too long"):
        await Bridge(pairs, tmp_path / ("x" * 200)).__aenter__()

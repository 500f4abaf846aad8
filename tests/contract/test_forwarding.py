"""Forwards from end to end: this host's sockets, real gRPC, the agent's real service."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.forwarding import joining
from innkeeper.shim.forwarding.forwards import Forwards
from innkeeper.shim.forwarding.words import End, Forward
from innkeeper.v1 import sockets_pb2 as pb
from tests.fakes.agent_server import RunningAgent, serving_agent, until
from tests.fakes.sockets_guest import HostileGuest, hostile
from tests.fakes.sockets_servers import WITHIN, free_port, serving

pytestmark = [pytest.mark.contract, pytest.mark.network]


@dataclass(slots=True, kw_only=True)
class Running:
    """Forwards that serve, and what they noted."""

    forwards: Forwards
    notes: list[str] = field(default_factory=list)
    noted: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.noted.set()

    @property
    def port(self) -> int:
        return int(self.forwards.states[0].listen.rpartition(":")[2])

    async def until_trouble(self, *, there: bool) -> None:
        async with asyncio.timeout(WITHIN):
            while bool(self.forwards.states[0].trouble) is not there:
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def forwarding(
    channel: object, *forwards: Forward, patient: bool = True
) -> AsyncIterator[Running]:
    running = Running(forwards=Forwards(forwards, patient=patient))
    serve = running.forwards.serve(
        channel,  # type: ignore[arg-type]
        note=running.note,
        changed=running.changed.set,
    )
    task = asyncio.create_task(serve)
    try:
        settled = asyncio.ensure_future(running.forwards.settled())
        await asyncio.wait({settled, task}, return_when=asyncio.FIRST_COMPLETED, timeout=WITHIN)
        settled.cancel()
        yield running
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        running.forwards.close()


def outward(port: int, host: str = "127.0.0.1", listen: int = 0) -> Forward:
    return Forward(listen=End(host=host, port=listen), target=End(host="127.0.0.1", port=port))


async def ask(port: int, text: bytes) -> bytes:
    """Writes, ends the half, and reads the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), WITHIN)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_port_of_the_host_is_one_of_the_guest(agent: RunningAgent) -> None:
    async with serving() as server, forwarding(agent.channel, outward(server.port)) as running:
        assert await ask(running.port, b"hello") == b"hello"
        assert running.notes == []


async def test_twenty_megabytes_both_ways(agent: RunningAgent) -> None:
    data = os.urandom(20 << 20)
    async with serving() as server, forwarding(agent.channel, outward(server.port)) as running:
        back = await ask(running.port, data)
    assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()


async def test_a_hundred_at_once(agent: RunningAgent) -> None:
    async with serving() as server, forwarding(agent.channel, outward(server.port)) as running:
        texts = [str(number).encode() * 50 for number in range(100)]
        async with asyncio.timeout(60):
            assert await asyncio.gather(*(ask(running.port, text) for text in texts)) == texts


async def test_unix_on_both_sides(agent: RunningAgent, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    forward = Forward(listen=End(path=str(here)), target=End(path=str(there)))
    async with serving(path=there), forwarding(agent.channel, forward):
        assert stat.S_IMODE(here.stat().st_mode) == 0o600
        reader, writer = await asyncio.open_unix_connection(here)
        writer.write(b"x")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), WITHIN) == b"x"
        writer.close()
    assert not here.exists()


async def test_nobody_listens_in_the_guest(agent: RunningAgent) -> None:
    """Accepted and closed, as ssh and docker-proxy do; the reason is noted."""
    async with forwarding(agent.channel, outward(free_port())) as running:
        with pytest.raises(ConnectionResetError):
            await ask(running.port, b"x")
        await until(running.noted)
        assert "Connection refused" in running.notes[0]


async def test_a_reset_in_the_guest_is_one_here(agent: RunningAgent) -> None:
    async def half_and_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")
        await writer.drain()
        await reader.readexactly(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with (
        serving(half_and_reset) as server,
        forwarding(agent.channel, outward(server.port)) as running,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        assert await reader.readexactly(4) == b"half"
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), WITHIN)
        writer.close()


async def test_a_reset_here_is_one_in_the_guest(agent: RunningAgent) -> None:
    async with serving() as server, forwarding(agent.channel, outward(server.port)) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await until(server.connected)
        await until(server.ended)
        assert server.ends == ["ConnectionResetError"]


async def test_a_port_that_is_taken_says_by_whom() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ShimError) as caught:
            Forwards([outward(80), outward(80, listen=port)], patient=True)
    assert caught.value.reason is Reason.ADDRESS_IN_USE
    assert f"(pid {os.getpid()})" in caught.value.message


async def test_localhost_is_both_families_here(agent: RunningAgent) -> None:
    async with (
        serving() as server,
        forwarding(agent.channel, outward(server.port, host="localhost")) as running,
    ):
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, running.port)) as client:
                client.settimeout(WITHIN)
                client.sendall(b"x")
                assert await asyncio.to_thread(client.recv, 1) == b"x"


async def test_a_file_that_is_no_stale_socket_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ShimError) as caught:
        Forwards([Forward(listen=End(path=str(file)), target=End(port=1))], patient=True)
    assert caught.value.reason is Reason.ADDRESS_IN_USE
    assert file.read_text() == "mine"


async def test_a_stale_socket_is_replaced(agent: RunningAgent, tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(stale))
    forward = Forward(listen=End(path=str(stale)), target=End(host="127.0.0.1", port=1))
    async with forwarding(agent.channel, forward):
        assert stale.exists()


async def test_an_agent_that_comes_back_serves_new_connections(tmp_path: Path) -> None:
    """In flight ends, new ones work, with the listener that was there all the time."""
    folder = tmp_path.parent / "a"
    folder.mkdir()
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(contextlib.AsyncExitStack())
        agent = await first.enter_async_context(serving_agent(folder))
        channel = agent.connect(
            grpc__initial_reconnect_backoff_ms=100, grpc__max_reconnect_backoff_ms=200
        )
        stack.push_async_callback(channel.close)
        running = await stack.enter_async_context(forwarding(channel, outward(server.port)))
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await first.aclose()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), WITHIN)
        writer.close()
        # One that comes while the agent is away waits for it.
        waiting = asyncio.create_task(ask(running.port, b"later"))
        folder.rename(tmp_path / "old")
        folder.mkdir()
        await stack.enter_async_context(serving_agent(folder))
        assert await asyncio.wait_for(waiting, WITHIN) == b"later"


async def test_the_guest_reaches_a_server_of_the_host(agent: RunningAgent, tmp_path: Path) -> None:
    guest = tmp_path / "guest"
    async with serving() as tcp, serving(path=tmp_path / "host") as local:
        first = Forward(
            listen=End(host="127.0.0.1"), target=End(host="127.0.0.1", port=tcp.port), reverse=True
        )
        second = Forward(
            listen=End(path=str(guest)), target=End(path=str(local.path)), reverse=True
        )
        async with forwarding(agent.channel, first, second) as running:
            assert [state.trouble for state in running.forwards.states] == ["", ""]
            assert await ask(running.port, b"tcp") == b"tcp"
            reader, writer = await asyncio.open_unix_connection(guest)
            writer.write(b"unix")
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), WITHIN) == b"unix"
            writer.close()
    await agent.calls_over()
    assert not guest.exists()


async def test_nobody_listens_on_the_host(agent: RunningAgent) -> None:
    forward = Forward(
        listen=End(host="127.0.0.1"), target=End(host="127.0.0.1", port=free_port()), reverse=True
    )
    async with forwarding(agent.channel, forward) as running:
        with pytest.raises(ConnectionResetError):
            await ask(running.port, b"x")
        await until(running.noted)
        assert "Connection refused" in running.notes[0]


async def test_a_guest_that_refuses_is_asked_again(agent: RunningAgent, tmp_path: Path) -> None:
    """A container may come later than its forward."""
    forward = Forward(
        listen=End(path="/s", container="c"), target=End(host="127.0.0.1", port=1), reverse=True
    )
    async with forwarding(agent.channel, forward) as running:
        assert "no container" in running.forwards.states[0].trouble
        agent.sockets.places.folders["c"] = str(tmp_path)
        await running.until_trouble(there=False)
        assert (tmp_path / "s").exists()


async def test_the_command_in_the_foreground_does_not_ask_again(agent: RunningAgent) -> None:
    forward = Forward(
        listen=End(path="/s", container="c"), target=End(host="127.0.0.1", port=1), reverse=True
    )
    forwards = Forwards([forward], patient=False)
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(forwards.serve(agent.channel, note=print), WITHIN)
    assert "no container c" in str(caught.value.exceptions[0].exceptions[0])


@pytest.mark.parametrize(
    "answers",
    [
        [pb.ForwardResponse(data=b"x")],
        [pb.ForwardResponse()],
        [],
        [pb.ForwardResponse(connected=True), pb.ForwardResponse(connected=True)],
        [pb.ForwardResponse(connected=True), pb.ForwardResponse(data=b"")],
        [pb.ForwardResponse(connected=True), pb.ForwardResponse(end=True)] * 2,
        [
            pb.ForwardResponse(connected=True),
            pb.ForwardResponse(end=True),
            pb.ForwardResponse(data=b"late"),
        ],
        [pb.ForwardResponse(connected=True), pb.ForwardResponse(data=bytes((256 << 10) + 1))],
        [pb.ForwardResponse(connected=True)],
    ],
)
async def test_a_guest_that_breaks_the_protocol(
    tmp_path: Path, answers: list[pb.ForwardResponse]
) -> None:
    """The client sees a reset, the next one is served as if nothing had been."""
    guest = HostileGuest(answers=answers)
    async with (
        hostile(guest, tmp_path / "s", joining.CHANNEL_OPTIONS) as channel,
        forwarding(channel, outward(80)) as running,
    ):
        for _ in range(2):
            with contextlib.suppress(ConnectionResetError):
                assert len(await ask(running.port, b"x")) <= 256 << 10
            await until(running.noted)
            running.noted.clear()
        assert len(running.notes) == 2


async def test_a_message_that_is_too_long_does_not_come_through(tmp_path: Path) -> None:
    """The channel's own limit, below that of other calls."""
    huge = pb.ForwardResponse(data=bytes(3 << 20))
    guest = HostileGuest(answers=[pb.ForwardResponse(connected=True), huge])
    async with (
        hostile(guest, tmp_path / "s", joining.CHANNEL_OPTIONS) as channel,
        forwarding(channel, outward(80)) as running,
    ):
        with pytest.raises(ConnectionResetError):
            await ask(running.port, b"x")
        await until(running.noted)
        assert "larger than max" in running.notes[0]


async def test_a_flood_of_connections_stays_bounded(tmp_path: Path) -> None:
    """A guest that tells of connections without end has as many calls as there is room for."""
    guest = HostileGuest(answers=[], connections=100_000)
    forward = Forward(listen=End(host="127.0.0.1"), target=End(host="::1", port=1), reverse=True)
    async with (
        hostile(guest, tmp_path / "s", joining.CHANNEL_OPTIONS) as channel,
        forwarding(channel, forward),
    ):
        async with asyncio.timeout(60):
            while guest.accepting < 256:
                await guest.accepted.wait()
                guest.accepted.clear()
        # A round trip later there are no more.
        await guest.ping(channel)
        assert guest.accepting == 256

"""Real gRPC through a real relay process, over stand-ins for what carries it.

Each test runs over three routes: a unix socket in place of vsock, the same
behind a hybrid handshake and the host's bridge, and a virtio-serial port
behind the bridge.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from innkeeper.shim.transport.address import HybridAddress, SerialAddress
from innkeeper.shim.transport.bridge import CHANNEL_OPTIONS, Bridge
from innkeeper.shim.transport.hybrid_vsock import HybridVsock
from innkeeper.shim.transport.serial import Serial
from innkeeper.shim.transport.stream import SocketStream, Transport, connect_unix
from innkeeper.v1.session import Encoder, new_nonce
from tests.fakes.echo_service import OPTIONS, STREAM, UNARY, echo_server
from tests.fakes.hybrid_vsock import FakeHybrid
from tests.fakes.relay_process import RelayProcess, relay_process
from tests.fakes.virtio_serial import FakePort

pytestmark = [pytest.mark.contract, pytest.mark.boot]

MIB = 1024 * 1024
PATIENCE = 20.0
# Pipes that the relay keeps for the next connection, and its look-out for the agent.
SPARE = 2 * 16 + 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")
# A HEADERS frame that announces 64 bytes, of which two come.
CUT_HEADERS = bytes.fromhex("000040010400000001") + b"\x83\x86"
# What a rude client leaves behind.
LEFTOVERS = (b"", PREFACE[:7], PREFACE, PREFACE + SETTINGS + CUT_HEADERS, PREFACE + SETTINGS)

Stream = grpc.aio.StreamStreamCall[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A way to the relay: the socket for gRPC, and the wire below for rude clients."""

    name: str
    relay: RelayProcess
    target: Path
    wire: Path

    def opening(self) -> bytes:
        """What comes first on the wire."""
        match self.name:
            case "hybrid":
                return b"CONNECT 1024\n"
            case "serial":
                return Encoder().start(new_nonce())
            case _:
                return b""

    async def rude_client(self, leftover: bytes) -> SocketStream:
        """Connected, and has sent the beginning of something."""
        stream = await connect_unix(self.wire, timeout=PATIENCE)
        await stream.write(self.opening() + leftover)
        return stream


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    with relay_process(tmp_path) as process:
        yield process


@pytest.fixture(params=["socket", "hybrid", "serial"])
async def route(
    request: pytest.FixtureRequest, relay: RelayProcess, tmp_path: Path
) -> AsyncIterator[Route]:
    name, wire, target = request.param, tmp_path / "wire.sock", tmp_path / "guest.sock"
    async with AsyncExitStack() as stack:
        transport: Transport
        match name:
            case "socket":
                yield Route(name=name, relay=relay, target=relay.listener, wire=relay.listener)
                return
            case "hybrid":
                await stack.enter_async_context(FakeHybrid(wire, relay.listener))
                transport = HybridVsock(HybridAddress(path=wire, port=1024))
            case _:
                await stack.enter_async_context(FakePort(wire, relay.port))
                transport = Serial(SerialAddress(path=wire))
        await stack.enter_async_context(Bridge(transport, target))
        yield Route(name=name, relay=relay, target=target, wire=wire)


@asynccontextmanager
async def channel_to(route: Route) -> AsyncIterator[grpc.aio.Channel]:
    options = [*OPTIONS, *CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{route.target}", options=options) as channel:
        yield channel


async def call(channel: grpc.aio.Channel, request: bytes) -> bytes:
    unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(UNARY)
    return await unary(request, timeout=PATIENCE)


def stream_to(channel: grpc.aio.Channel) -> Stream:
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(STREAM)
    return method(timeout=PATIENCE)


async def test_calls_reach_the_agent(route: Route) -> None:
    async with echo_server(route.relay.agent_socket), channel_to(route) as channel:
        assert await call(channel, b"hello") == b"hello"


async def test_half_close_is_carried(route: Route) -> None:
    """The server answers the client's half-close; the stream goes on in the other direction."""
    async with echo_server(route.relay.agent_socket), channel_to(route) as channel:
        stream = stream_to(channel)
        for word in (b"one", b"two"):
            await stream.write(word)
            assert await stream.read() == word
        await stream.done_writing()
        assert await stream.read() == b"2"
        assert await stream.read() is grpc.aio.EOF


async def test_a_burst_of_16_mib_arrives_whole(route: Route) -> None:
    burst = bytes(range(256)) * (16 * MIB // 256)
    async with echo_server(route.relay.agent_socket), channel_to(route) as channel:
        assert await call(channel, burst) == burst


async def test_200_parallel_streams_keep_apart(route: Route) -> None:
    async def talk(channel: grpc.aio.Channel, number: int) -> None:
        stream = stream_to(channel)
        for turn in range(3):
            word = b"%d/%d" % (number, turn) * 100
            await stream.write(word)
            assert await stream.read() == word
        await stream.done_writing()
        assert await stream.read() == b"3"

    async with echo_server(route.relay.agent_socket), channel_to(route) as channel:
        await asyncio.gather(*(talk(channel, number) for number in range(200)))


async def test_a_client_that_resets_harms_nobody(route: Route) -> None:
    """It leaves with its request half sent and the answer unread."""
    async with echo_server(route.relay.agent_socket):
        client = await route.rude_client(PREFACE + SETTINGS + CUT_HEADERS)
        await client.read(1)  # the server's SETTINGS began, the rest stays unread: a reset
        client.close()
        async with channel_to(route) as channel:
            assert await call(channel, b"next") == b"next"


async def test_an_agent_that_dies_in_a_stream_ends_the_stream_at_once(route: Route) -> None:
    async with channel_to(route) as channel:
        async with echo_server(route.relay.agent_socket):
            stream = stream_to(channel)
            await stream.write(b"hello")
            assert await stream.read() == b"hello"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await asyncio.wait_for(stream.read(), PATIENCE)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_callers_learn_at_once_why_the_agent_is_away(route: Route) -> None:
    """The exact text, with details that programs can read, on one connection."""
    said = "restarting; last exit: signal 9 – 100 % sure"
    (route.relay.run_dir / "agent.status").write_text(said + "\n")
    async with channel_to(route) as channel:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call(channel, b"hello")
            assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
            assert failure.value.details() == f"innkeeper agent is not serving ({said})"
    status = rpc_status.from_call(failure.value)  # type: ignore[no-untyped-call]
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("AGENT_AWAY", "innkeeper")
    async with asyncio.timeout(PATIENCE):
        await route.relay.until(away_sessions=1, away_replies=3)


async def test_without_word_of_pid_1_the_reason_names_the_socket(route: Route) -> None:
    async with channel_to(route) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=r"agent\.sock: not there"):
            await call(channel, b"hello")


async def test_streams_and_large_requests_are_answered_too(route: Route) -> None:
    """A request that goes on after the answer does not disturb the connection."""
    async with channel_to(route) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="not serving"):
            await call(channel, bytes(4 * MIB))
        stream = stream_to(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="not serving"):
            await stream.read()
        with pytest.raises(grpc.aio.AioRpcError, match="not serving"):
            await call(channel, b"hello")
    async with asyncio.timeout(PATIENCE):
        await route.relay.until(away_sessions=1, away_replies=3)


async def test_the_same_channel_works_when_the_agent_is_back(route: Route) -> None:
    async with channel_to(route) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="not serving"):
            await call(channel, b"hello")
        for word in (b"first life", b"second life"):
            async with echo_server(route.relay.agent_socket):
                await _until_served(channel, word)
            await _until_away(channel)


async def _until_served(channel: grpc.aio.Channel, word: bytes) -> None:
    """The relay's GOAWAY moves the channel: the calls before it may still be refused."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                assert await call(channel, word) == word
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017 - then again
            else:
                return


async def _until_away(channel: grpc.aio.Channel) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call(channel, b"anybody")
            if "not serving" in (failure.value.details() or ""):
                return


async def test_500_reconnects_give_500_working_channels(route: Route) -> None:
    """Between them clients that leave in mid-frame or at once, and an agent that comes and goes."""
    agent_socket = route.relay.agent_socket
    before = route.relay.descriptors()
    done = 0
    while done < 500:
        async with echo_server(agent_socket):
            for _ in range(25):
                await _rude_clients(route, done)
                async with channel_to(route) as channel:
                    assert await call(channel, b"%d" % done) == b"%d" % done
                done += 1
        async with channel_to(route) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="not serving"):
                await call(channel, b"away")
    async with asyncio.timeout(PATIENCE):
        await route.relay.until(open=0)
    assert route.relay.descriptors() <= before + SPARE


async def _rude_clients(route: Route, number: int) -> None:
    """Up to three, each gone before anybody can have looked at it; every third waits for a byte."""
    for extra in range(number % 4):
        client = await route.rude_client(LEFTOVERS[(number + extra) % len(LEFTOVERS)])
        if number % 3 == 0 and route.name == "serial":
            await client.read(1)
        client.close()

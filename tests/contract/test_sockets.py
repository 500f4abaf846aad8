"""Sockets: real gRPC, real sockets of this machine as the guest's."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from innkeeper.v1 import sockets_pb2 as pb
from innkeeper.v1 import sockets_pb2_grpc
from tests.fakes.agent_server import RunningAgent, refusal, refused, until
from tests.fakes.sockets_servers import (
    WITHIN,
    Stream,
    free_port,
    open_sockets,
    serving,
)

pytestmark = [pytest.mark.contract, pytest.mark.network]

RESET = struct.pack("ii", 1, 0)


def stub(agent: RunningAgent) -> sockets_pb2_grpc.SocketsAsyncStub:
    return sockets_pb2_grpc.SocketsStub(agent.channel)


@contextlib.asynccontextmanager
async def forwarded(agent: RunningAgent, address: pb.SocketAddress) -> AsyncIterator[Stream]:
    """A stream to an address; cancelled at the end, which is nothing for one that is over."""
    stream = Stream(stub(agent).Forward(), pb.ForwardRequest)
    try:
        await stream.begin(open=address)
        yield stream
    finally:
        stream.call.cancel()


@contextlib.asynccontextmanager
async def taken(agent: RunningAgent, number: int) -> AsyncIterator[Stream]:
    stream = Stream(stub(agent).Accept(), pb.AcceptRequest)
    try:
        await stream.begin(connection=number)
        yield stream
    finally:
        stream.call.cancel()


class Listening:
    """A Listen call: where it listens, and what it tells."""

    def __init__(self, call: object, address: pb.SocketAddress) -> None:
        self.call = call
        self.address = address

    @property
    def port(self) -> int:
        return int(self.address.tcp.rpartition(":")[2])

    async def next(self) -> pb.Connection:
        answer = await asyncio.wait_for(self.call.read(), WITHIN)  # type: ignore[attr-defined]
        assert answer.WhichOneof("news") == "connection"
        found: pb.Connection = answer.connection
        return found


@contextlib.asynccontextmanager
async def listening(agent: RunningAgent, **address: str) -> AsyncIterator[Listening]:
    call = stub(agent).Listen(pb.ListenRequest(address=pb.SocketAddress(**address)))
    try:
        first = await asyncio.wait_for(call.read(), WITHIN)
        assert isinstance(first, pb.ListenResponse)
        yield Listening(call, first.listening)
    finally:
        call.cancel()


async def listen_refused(agent: RunningAgent, **address: str) -> tuple[grpc.StatusCode, str]:
    call = stub(agent).Listen(pb.ListenRequest(address=pb.SocketAddress(**address)))
    told = await refused(call.read())
    return told.code, told.reason


async def why_ended(stream: Stream) -> tuple[grpc.StatusCode, str]:
    """Code and reason of a stream that must fail; its bytes are skipped."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read_all()
    told = refusal(caught.value)
    return told.code, told.reason


async def why_not(agent: RunningAgent, address: pb.SocketAddress) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with forwarded(agent, address):
            pass
    told = refusal(caught.value)
    return told.code, told.reason


async def test_bytes_go_both_ways_and_each_half_ends_by_itself(agent: RunningAgent) -> None:
    """A server that answers only after the client's end, as `nc -N` and HTTP/0.9 do."""

    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read())

    async with serving(answer_at_the_end) as server, forwarded(agent, server.address) as stream:
        await stream.write(b"one ")
        await stream.write(b"two")
        await stream.end()
        assert await stream.read_all() == b"got one two"
        assert await stream.call.code() is grpc.StatusCode.OK


async def test_the_guests_half_ends_first(agent: RunningAgent) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def end_and_listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.write_eof()
        heard.set_result(await reader.read())

    async with serving(end_and_listen) as server, forwarded(agent, server.address) as stream:
        assert await stream.read_all() == b"hello"
        await stream.write(b"still here")
        await stream.end()
        assert await asyncio.wait_for(heard, WITHIN) == b"still here"
        assert await stream.call.code() is grpc.StatusCode.OK


async def test_a_call_that_ends_without_end_is_no_orderly_end(agent: RunningAgent) -> None:
    """gRPC shows a cancelled call as one whose host has nothing more to send: taken for an
    end, the server would believe that it has all."""
    async with serving() as server, forwarded(agent, server.address) as stream:
        await stream.write(b"x")
        assert await stream.read() == b"x"
        await stream.call.done_writing()
        assert await why_ended(stream) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
        await until(server.ended)
        assert server.ends == ["ConnectionResetError"]


async def test_twenty_megabytes_come_back_as_they_went(agent: RunningAgent) -> None:
    sent, total = hashlib.sha256(), 20 << 20
    got = hashlib.sha256()

    async def send(stream: Stream) -> None:
        for _ in range(total // (256 << 10)):
            data = os.urandom(256 << 10)
            sent.update(data)
            await stream.write(data)
        await stream.end()

    async with (
        serving() as server,
        forwarded(agent, server.address) as stream,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(send(stream))
        count = 0
        while data := await stream.read():
            got.update(data)
            count += len(data)
    assert count == total
    assert got.digest() == sent.digest()


async def test_a_frame_that_is_too_long_ends_the_call(agent: RunningAgent) -> None:
    async with serving() as server, forwarded(agent, server.address) as stream:
        await stream.write(bytes((256 << 10) + 1))
        assert await why_ended(stream) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")


async def test_a_second_open_ends_the_call(agent: RunningAgent) -> None:
    async with serving() as server, forwarded(agent, server.address) as stream:
        await stream.call.write(pb.ForwardRequest(open=server.address))
        assert await why_ended(stream) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")


async def test_bytes_before_open_are_refused(agent: RunningAgent) -> None:
    call = stub(agent).Forward()
    await call.write(pb.ForwardRequest(data=b"x"))
    told = await refused(call.read())
    assert (told.code, told.fields["field"]) == (grpc.StatusCode.INVALID_ARGUMENT, "open")


async def test_a_reset_is_told_as_one(agent: RunningAgent) -> None:
    async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    async with serving(reset) as server, forwarded(agent, server.address) as stream:
        assert await why_ended(stream) == (grpc.StatusCode.ABORTED, "CONNECTION_RESET")


async def test_what_came_before_the_other_end_stopped_taking_is_not_lost(
    agent: RunningAgent, tmp_path: Path
) -> None:
    """A unix server that answers and goes while the host still sends: EPIPE, with an answer."""

    async def answer_and_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"no more")
        await writer.drain()

    async with (
        serving(answer_and_go, path=tmp_path / "s") as server,
        forwarded(agent, server.address) as stream,
    ):
        await stream.write(b"1")
        await until(server.ended)
        assert await stream.read_all() == b"no more"
        while await stream.write(b"x"):
            pass
        assert await stream.call.code() is grpc.StatusCode.ABORTED


async def test_nobody_listens(agent: RunningAgent) -> None:
    refusal_ = await why_not(agent, pb.SocketAddress(tcp=f"127.0.0.1:{free_port()}"))
    assert refusal_ == (grpc.StatusCode.UNAVAILABLE, "CONNECTION_REFUSED")


async def test_localhost_is_both_families(agent: RunningAgent) -> None:
    """A server of IPv4 alone and one of IPv6 alone are both found."""
    for host in ("127.0.0.1", "::1"):
        async with serving(host=host) as server:
            address = pb.SocketAddress(tcp=f"localhost:{server.port}")
            async with forwarded(agent, address) as stream:
                await stream.write(b"x")
                assert await stream.read() == b"x"


async def test_a_names_addresses_are_tried_in_order(agent: RunningAgent) -> None:
    async with serving() as server:
        agent.sockets.names.known["db"] = ("127.0.0.2", "127.0.0.1")
        async with forwarded(agent, pb.SocketAddress(tcp=f"db:{server.port}")) as stream:
            await stream.write(b"x")
            assert await stream.read() == b"x"
    unknown = await why_not(agent, pb.SocketAddress(tcp="nowhere:80"))
    assert unknown == (grpc.StatusCode.UNAVAILABLE, "CONNECTION_REFUSED")


@pytest.mark.parametrize(
    "text", ["", "80", "127.0.0.1", "127.0.0.1:", "::1:80", "[127.0.0.1]:80", "a b:80", "x:65536"]
)
async def test_no_address(agent: RunningAgent, text: str) -> None:
    code, reason = await why_not(agent, pb.SocketAddress(tcp=text))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_ADDRESS")


@pytest.mark.parametrize("text", [":80", "127.0.0.1:0"])
async def test_to_connect_a_host_and_a_port_are_needed(agent: RunningAgent, text: str) -> None:
    code, reason = await why_not(agent, pb.SocketAddress(tcp=text))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")


async def test_a_connection_that_nobody_answers_is_given_up(
    agent: RunningAgent, tmp_path: Path
) -> None:
    """A unix socket whose queue is full: connect(2) waits for room."""
    path = tmp_path / "full"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(path))
            told = await why_not(agent, pb.SocketAddress(unix=str(path)))
    assert told == (grpc.StatusCode.DEADLINE_EXCEEDED, "OPERATION_TIMED_OUT")


async def test_a_containers_socket_is_found_in_its_root_alone(
    agent: RunningAgent, tmp_path: Path
) -> None:
    """Absolute links and .. lead to the container's own files, never to the guest's."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    (root / "run").mkdir(parents=True)
    outside.mkdir()
    agent.sockets.places.folders["c"] = str(root)
    (root / "run/link").symlink_to("/run/own")
    (root / "run/up").symlink_to("../../../../../run/own")
    (root / "run/out").symlink_to(outside / "secret")
    (root / "run/climb").symlink_to("../../outside/secret")
    (root / "run/magic").symlink_to("/proc/self/root" + str(outside / "secret"))

    async def secret(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"secret")

    async with serving(path=root / "run/own"), serving(secret, path=outside / "secret"):
        for name in ("own", "link", "up"):
            address = pb.SocketAddress(unix=f"/run/{name}", container_id="c")
            async with forwarded(agent, address) as stream:
                await stream.write(b"x")
                assert await stream.read() == b"x"
        for name in ("out", "climb", "magic", "../../outside/secret"):
            address = pb.SocketAddress(unix=f"/run/{name}", container_id="c")
            assert await why_not(agent, address) == (
                grpc.StatusCode.UNAVAILABLE,
                "CONNECTION_REFUSED",
            )


async def test_no_such_container(agent: RunningAgent) -> None:
    address = pb.SocketAddress(tcp="127.0.0.1:80", container_id="none")
    assert await why_not(agent, address) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")


async def test_a_file_is_no_socket(agent: RunningAgent, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    told = await why_not(agent, pb.SocketAddress(unix=str(tmp_path / "file")))
    assert told == (grpc.StatusCode.UNAVAILABLE, "CONNECTION_REFUSED")


async def test_a_slow_host_slows_the_guest_down(agent: RunningAgent) -> None:
    """What the server could write without anybody reading stays bounded: the kernel's two
    buffers, the connection's window, and a frame."""
    written = 0
    stuck = asyncio.Event()

    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        sock = writer.get_extra_info("socket").dup()
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        piece = bytes(64 << 10)
        with sock:
            while True:
                try:
                    async with asyncio.timeout(1):
                        await loop.sock_sendall(sock, piece)
                except TimeoutError:
                    stuck.set()
                    return
                written += len(piece)

    async with serving(pour) as server, forwarded(agent, server.address):
        await until(stuck, within=60)
        assert 0 < written < 24 << 20


async def test_a_slow_guest_slows_the_host_down(agent: RunningAgent) -> None:
    never = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await never.wait()

    async with serving(deaf) as server, forwarded(agent, server.address) as stream:
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 << 20:
                async with asyncio.timeout(1):
                    await stream.write(bytes(256 << 10))
                sent += 256 << 10
        assert 0 < sent < 24 << 20
        never.set()


async def test_two_hundred_streams_at_once(agent: RunningAgent) -> None:
    async with serving() as server:

        async def one(number: int) -> None:
            text = str(number).encode() * 100
            async with forwarded(agent, server.address) as stream:
                await stream.write(text)
                await stream.end()
                assert await stream.read_all() == text

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(one(number))


async def test_a_host_that_leaves_resets_the_connection(agent: RunningAgent) -> None:
    async with serving() as server:
        async with forwarded(agent, server.address) as stream:
            await stream.write(b"x")
            assert await stream.read() == b"x"
        await until(server.ended)
        assert server.ends == ["ConnectionResetError"]


async def test_nothing_stays_open(agent: RunningAgent, tmp_path: Path) -> None:
    async with serving() as server, serving(path=tmp_path / "s") as local:
        # The first ones make the connection and the worker, which stay.
        for address in (server.address, local.address):
            async with forwarded(agent, address):
                pass
        await agent.calls_over()
        before = open_sockets()
        for address in (server.address, local.address):
            for ending in ("cancelled", "in order"):
                async with forwarded(agent, address) as stream:
                    if ending == "in order":
                        await stream.end()
                        await stream.read_all()
        await why_not(agent, pb.SocketAddress(tcp=f"127.0.0.1:{free_port()}"))
        await why_not(agent, pb.SocketAddress(unix=str(tmp_path / "none")))
        async with listening(agent, tcp="localhost:0") as listener:
            with socket.create_connection(("127.0.0.1", listener.port)):
                await listener.next()
        await agent.calls_over()
        for _ in range(20):
            # What the servers' own loop closes comes a turn later.
            await asyncio.sleep(0)
        assert open_sockets() <= before


async def test_the_agents_end_is_the_streams(agent: RunningAgent) -> None:
    async with serving() as server, forwarded(agent, server.address) as stream:
        await agent.server.stop(1)
        assert await why_ended(stream) == (grpc.StatusCode.UNAVAILABLE, "AGENT_AWAY")
        await until(server.ended)


async def test_a_container_that_goes_takes_its_streams_along(
    agent: RunningAgent, tmp_path: Path
) -> None:
    agent.sockets.places.folders |= {"c": str(tmp_path), "d": str(tmp_path)}
    async with serving() as server:
        there = pb.SocketAddress(tcp=f"127.0.0.1:{server.port}", container_id="c")
        other = pb.SocketAddress(tcp=f"127.0.0.1:{server.port}", container_id="d")
        async with (
            forwarded(agent, there) as stream,
            forwarded(agent, other) as stays,
            listening(agent, unix="/s", container_id="c") as listener,
        ):
            await agent.sockets.manager.leave("c")
            assert await why_ended(stream) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
            told = await refused(listener.call.read())  # type: ignore[attr-defined]
            assert told.reason == "WRONG_STATE"
            assert not (tmp_path / "s").exists()
            await stays.write(b"x")
            assert await stays.read() == b"x"


async def test_a_listener_tells_of_connections_which_accept_takes(agent: RunningAgent) -> None:
    async with listening(agent, tcp="127.0.0.1:0") as listener:
        assert listener.address.tcp == f"127.0.0.1:{listener.port}"
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        told = await listener.next()
        here = writer.get_extra_info("sockname")
        assert told.peer == f"127.0.0.1:{here[1]}"
        async with taken(agent, told.id) as stream:
            writer.write(b"ping")
            assert await stream.read() == b"ping"
            await stream.write(b"pong")
            await stream.end()
            assert await reader.read() == b"pong"
            writer.close()
            assert await stream.read() == b""
            assert await stream.call.code() is grpc.StatusCode.OK


async def test_a_connection_is_taken_once(agent: RunningAgent) -> None:
    async with listening(agent, tcp="127.0.0.1:0") as listener:
        with socket.create_connection(("127.0.0.1", listener.port)):
            told = await listener.next()
            async with taken(agent, told.id):
                call = stub(agent).Accept()
                await call.write(pb.AcceptRequest(connection=told.id))
                again = await refused(call.read())
    assert (again.code, again.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONNECTION")


async def test_localhost_listens_on_the_same_port_of_both_families(agent: RunningAgent) -> None:
    async with listening(agent, tcp="localhost:0") as listener:
        assert listener.address.tcp == f"localhost:{listener.port}"
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, listener.port)):
                told = await listener.next()
                assert told.peer.startswith("127.0.0.1:" if host == "127.0.0.1" else "[::1]:")


async def test_an_empty_host_is_every_address(agent: RunningAgent) -> None:
    async with listening(agent, tcp=":0") as listener:
        with socket.create_connection(("127.0.0.2", listener.port)):
            told = await listener.next()
            assert told.peer.startswith("127.0.0.")


async def test_a_port_is_listened_on_once(agent: RunningAgent) -> None:
    async with listening(agent, tcp="127.0.0.1:0") as listener:
        again = await listen_refused(agent, tcp=listener.address.tcp)
        assert again == (grpc.StatusCode.ALREADY_EXISTS, "ADDRESS_IN_USE")
        both = await listen_refused(agent, tcp=f"localhost:{listener.port}")
        assert both == (grpc.StatusCode.ALREADY_EXISTS, "ADDRESS_IN_USE")


async def test_a_names_is_nothing_to_listen_on(agent: RunningAgent) -> None:
    assert (await listen_refused(agent, tcp="example:80"))[1] == "BAD_FIELD"


async def test_nobodys_connections_are_no_more_than_so_many(agent: RunningAgent) -> None:
    """The bench's limit is three; the kernel keeps the others until there is room."""
    async with contextlib.AsyncExitStack() as stack:
        listener = await stack.enter_async_context(listening(agent, tcp="127.0.0.1:0"))
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            for _ in range(5)
        ]
        assert len(clients) == 5
        told = [await listener.next() for _ in range(3)]
        fourth = asyncio.ensure_future(listener.next())
        stack.callback(fourth.cancel)
        # Two questions and answers on the same connection are more than enough for it to come.
        for _ in range(2):
            assert (await listen_refused(agent, tcp=listener.address.tcp))[1] == "ADDRESS_IN_USE"
        assert not fourth.done()
        await stack.enter_async_context(taken(agent, told[0].id))
        assert (await fourth).id > told[2].id


async def test_the_end_of_listen_resets_those_that_nobody_took(agent: RunningAgent) -> None:
    async with listening(agent, tcp="127.0.0.1:0") as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        await listener.next()
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), WITHIN)
    writer.close()


async def test_listeners_are_no_more_than_so_many(agent: RunningAgent) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(listening(agent, tcp="127.0.0.1:0"))
        told = await listen_refused(agent, tcp="127.0.0.1:0")
        assert told == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")


async def test_streams_are_no_more_than_so_many(agent: RunningAgent) -> None:
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        for _ in range(250):
            await stack.enter_async_context(forwarded(agent, server.address))
        told = await why_not(agent, server.address)
        assert told == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED")


async def test_a_unix_listener_leaves_nothing(agent: RunningAgent, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with listening(agent, unix=str(path)) as listener:
        found = path.stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o666
        reader, writer = await asyncio.open_unix_connection(path)
        told = await listener.next()
        assert told.peer == ""
        async with taken(agent, told.id) as stream:
            await stream.write(b"x")
            assert await reader.read(1) == b"x"
            writer.close()
    await agent.calls_over()
    assert not path.exists()


async def test_a_stale_socket_is_replaced_and_nothing_else(
    agent: RunningAgent, tmp_path: Path
) -> None:
    stale, file = tmp_path / "stale", tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(stale))
    file.write_text("mine")
    (tmp_path / "link").symlink_to(stale)
    async with listening(agent, unix=str(stale)):
        for name in ("file", "link", "stale"):
            told = await listen_refused(agent, unix=str(tmp_path / name))
            assert told == (grpc.StatusCode.ALREADY_EXISTS, "ADDRESS_IN_USE")
    await agent.calls_over()
    assert file.read_text() == "mine"
    assert (tmp_path / "link").is_symlink()


async def test_somebody_elses_socket_at_our_path_stays(agent: RunningAgent, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with listening(agent, unix=str(path)):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    await agent.calls_over()
    assert path.exists()


async def test_a_directory_that_is_not_there(agent: RunningAgent, tmp_path: Path) -> None:
    told = await listen_refused(agent, unix=str(tmp_path / "none" / "s"))
    assert told == (grpc.StatusCode.FAILED_PRECONDITION, "KERNEL_REFUSED")


async def test_a_name_that_no_socket_can_have(agent: RunningAgent, tmp_path: Path) -> None:
    """The path may be longer than sun_path's 107 bytes (unix(7)), its last name may not."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    told = await listen_refused(agent, unix=str(tmp_path / ("s" * 108)))
    assert told == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    async with listening(agent, unix=str(deep / "s")) as listener:
        assert listener.address.unix == str(deep / "s")
        async with forwarded(agent, pb.SocketAddress(unix=str(deep / "s"))):
            await listener.next()


async def test_a_container_listens_in_its_root(agent: RunningAgent, tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (root / "leak").symlink_to(outside)
    agent.sockets.places.folders["c"] = str(root)
    told = await listen_refused(agent, unix="/leak/s", container_id="c")
    assert told == (grpc.StatusCode.FAILED_PRECONDITION, "KERNEL_REFUSED")
    async with listening(agent, unix="/../s", container_id="c"):
        assert (root / "s").exists()
    assert list(outside.iterdir()) == []

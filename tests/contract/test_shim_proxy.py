"""The daemon's proxy between real gRPC on both sides: what goes in comes out."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from innkeeper.shim import writing
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.proxy import CHANNEL_OPTIONS, MESSAGE_LIMIT, GuestProxy
from tests.fakes.proxied_service import DETAILS, ProxiedService, serving

pytestmark = [pytest.mark.contract, pytest.mark.operations]

PATIENCE = 20


@dataclass(slots=True)
class FakeVm:
    gone: ShimError | None = None

    async def why_gone(self) -> ShimError | None:
        return self.gone


@dataclass(slots=True)
class Through:
    """A client's channel to the proxy, and what is behind it."""

    channel: grpc.aio.Channel
    guest: ProxiedService
    guest_server: grpc.aio.Server
    vm: FakeVm

    def unary(
        self, method: str, service: str = "test.Proxied"
    ) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
        return self.channel.unary_unary(f"/{service}/{method}")

    def up(self, method: str) -> grpc.aio.StreamUnaryMultiCallable[bytes, bytes]:
        return self.channel.stream_unary(f"/test.Proxied/{method}")

    def down(self, method: str) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
        return self.channel.unary_stream(f"/test.Proxied/{method}")

    def both(self, method: str) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
        return self.channel.stream_stream(f"/test.Proxied/{method}")


@pytest.fixture
async def through() -> AsyncIterator[Through]:
    service, vm = ProxiedService(), FakeVm()
    with tempfile.TemporaryDirectory(prefix="ik-") as folder:
        guest_path, api_path = Path(folder) / "guest", Path(folder) / "api"
        to_guest = grpc.aio.insecure_channel(f"unix:{guest_path}", options=CHANNEL_OPTIONS)
        to_api = grpc.aio.insecure_channel(f"unix:{api_path}", options=CHANNEL_OPTIONS)
        proxy = GuestProxy(to_guest, vm)
        async with (
            serving(service.handlers(), guest_path) as server,
            to_guest,
            serving(proxy, api_path),
            to_api,
        ):
            yield Through(to_api, service, server, vm)


async def test_a_unary_call_with_metadata_both_ways(through: Through) -> None:
    call = through.unary("Echo")(b"hello", metadata=(("key", "v"), ("key-bin", b"\x00\xff")))
    assert await call == b"hello"
    assert through.guest.metadata["key"] == "v"
    assert through.guest.metadata["key-bin"] == b"\x00\xff"
    headers, trailers = dict(await call.initial_metadata()), dict(await call.trailing_metadata())
    assert (headers["header"], headers["header-bin"]) == ("h", b"\x00\x01")
    assert (trailers["trailer"], trailers["trailer-bin"]) == ("t", b"\xfe")


async def test_a_message_may_be_empty(through: Through) -> None:
    assert await through.unary("Echo")(b"") == b""


async def test_the_guest_sees_one_user_agent(through: Through) -> None:
    await through.unary("Echo")(b"")
    assert str(through.guest.metadata["user-agent"]).count("grpc-python") == 1


async def test_streams_up_and_down_in_order(through: Through) -> None:
    assert await through.up("Count")(iter([b"x"] * 500)) == b"500"
    assert [int(message) async for message in through.down("Repeat")(b"500")] == list(range(500))


async def test_each_message_passes_before_the_next_is_sent(through: Through) -> None:
    """A proxy that collected messages would hang here."""
    async with asyncio.timeout(PATIENCE):
        talk = through.both("Talk")()
        for number in range(20):
            await talk.write(str(number).encode())
            assert await talk.read() == str(number).encode()
        await talk.done_writing()
        assert await talk.read() is grpc.aio.EOF
        assert await talk.code() is grpc.StatusCode.OK


async def test_a_guest_that_ends_first_ends_the_call(through: Through) -> None:
    async with asyncio.timeout(PATIENCE):
        leave = through.both("Leave")()
        await leave.write(b"one")
        assert await leave.read() == b"one"
        assert await leave.read() is grpc.aio.EOF
        assert await leave.code() is grpc.StatusCode.OK


async def test_an_error_keeps_code_text_and_details(through: Through) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await through.unary("Fail")(b"")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "because é\n"
    assert dict(caught.value.trailing_metadata())["grpc-status-details-bin"] == DETAILS


async def test_an_error_that_comes_while_the_client_still_writes_is_kept(through: Through) -> None:
    """grpc.aio's own `write` loses most of these; see writing.py."""

    async def one() -> tuple[grpc.StatusCode, str, object]:
        call = through.both("Refuse")()
        for _ in range(100):
            if not await writing.write(call, bytes(65536)):
                break
        trailers = dict(await call.trailing_metadata())
        return await call.code(), await call.details(), trailers["grpc-status-details-bin"]

    for _ in range(10):
        told = await asyncio.gather(*(one() for _ in range(10)))
        assert set(told) == {(grpc.StatusCode.NOT_FOUND, "no such path", DETAILS)}


async def test_a_refusal_at_once_is_kept_too(through: Through) -> None:
    """The status may come before the request's only message has left."""
    for _ in range(20):
        calls = (through.unary("At", "test.Nothing")(b"") for _ in range(50))
        errors = await asyncio.gather(*calls, return_exceptions=True)
        codes = {error.code() for error in errors if isinstance(error, grpc.aio.AioRpcError)}
        assert codes == {grpc.StatusCode.UNIMPLEMENTED}


async def test_a_refusal_waits_for_a_caller_that_is_slow_to_speak(through: Through) -> None:
    """Else its write fails, and grpc.aio puts INTERNAL in the place of what the guest said."""

    async def one(size: int) -> tuple[grpc.StatusCode, str, object]:
        call = through.both("RefuseUnread")()
        status = asyncio.ensure_future(call.code())
        await asyncio.wait({status}, timeout=0.2)  # ample for the refusal to be there
        await call.write(bytes(size))
        trailers = dict(await call.trailing_metadata())
        return await status, await call.details(), trailers["grpc-status-details-bin"]

    for size in (0, 1 << 20):
        told = await asyncio.gather(*(one(size) for _ in range(20)))
        assert set(told) == {(grpc.StatusCode.UNAVAILABLE, "away", DETAILS)}


async def test_a_refusal_reaches_a_caller_that_says_nothing(through: Through) -> None:
    async with asyncio.timeout(PATIENCE):
        silent = through.both("RefuseUnread")()
        assert await silent.code() is grpc.StatusCode.UNAVAILABLE
        mute = through.both("RefuseUnread")()
        await mute.done_writing()
        assert await mute.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_error_after_messages_comes_after_them(through: Through) -> None:
    call = through.down("FailLate")(b"")
    assert await call.read() == b"one"
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    assert await call.code() is grpc.StatusCode.DATA_LOSS


async def test_a_method_that_the_guest_lacks_is_its_to_refuse(through: Through) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await through.unary("At", "test.Nothing")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_hosts_own_service_does_not_reach_the_guest(through: Through) -> None:
    """Here nobody serves it; a guest must not be able to answer in its place."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await through.unary("Describe", "innkeeper.v1.Host")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_callers_deadline_is_the_guests(through: Through) -> None:
    await through.unary("Echo")(b"", timeout=50)
    assert through.guest.time_left is not None
    # gRPC rounds a deadline up when it writes it into the header.
    assert 40 < through.guest.time_left < 51
    await through.unary("Echo")(b"")
    assert through.guest.time_left is None


async def test_a_deadline_that_passes_ends_the_guests_call(through: Through) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await through.unary("Hang")(b"", timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(PATIENCE):
        await through.guest.cancelled.wait()


async def test_a_caller_that_cancels_cancels_in_the_guest(through: Through) -> None:
    call = through.unary("Hang")(b"")
    async with asyncio.timeout(PATIENCE):
        await through.guest.began.wait()
        call.cancel()
        await through.guest.cancelled.wait()


async def test_any_number_of_calls_at_once(through: Through) -> None:
    waiting = [asyncio.ensure_future(through.unary("Hang")(b"")) for _ in range(200)]
    echo = through.unary("Echo")
    answers = await asyncio.gather(*(echo(str(number).encode()) for number in range(200)))
    assert answers == [str(number).encode() for number in range(200)]
    for call in waiting:
        call.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_what_is_too_large_is_for_the_guest_to_refuse(through: Through) -> None:
    """16 MiB is the protocol's limit, and the guest's refusal has a reason; ours would not."""
    message = bytes(16 << 20)
    assert len(message) < MESSAGE_LIMIT
    assert await through.unary("Echo")(message) == message
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await through.unary("Echo")(message + b"\0")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "16777217 vs. 16777216" in (caught.value.details() or ""), "the guest's own words"


async def test_a_guest_that_is_away_is_unavailable(through: Through) -> None:
    await through.guest_server.stop(None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await through.unary("Echo")(b"", timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_vm_that_has_ended_says_so_to_calls_in_progress(through: Through) -> None:
    """Not as UNAVAILABLE: who sees that tries again."""
    call = asyncio.ensure_future(through.unary("Hang")(b""))
    await through.guest.began.wait()
    through.vm.gone = ShimError(Reason.QEMU_GONE, "VM web: QEMU ended, killed by SIGKILL")
    await through.guest_server.stop(None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    told = ShimError.from_call(caught.value)
    assert told is not None
    assert told.reason is Reason.QEMU_GONE
    assert caught.value.code() is grpc.StatusCode.ABORTED

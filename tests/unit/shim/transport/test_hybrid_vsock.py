"""The hybrid handshake, against a stand-in for the VMM's unix socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from innkeeper.shim.transport.address import HybridAddress
from innkeeper.shim.transport.hybrid_vsock import HybridVsock
from innkeeper.shim.transport.stream import TransportError

pytestmark = [pytest.mark.unit, pytest.mark.boot]


class Vmm:
    """Reads the CONNECT line, answers with `answer` at once, then closes or holds still."""

    def __init__(self, answer: bytes, *, closes: bool) -> None:
        self.answer = answer
        self.closes = closes
        self.asked = b""
        self.done = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked = await reader.readline()
        writer.write(self.answer)
        if not self.closes:
            await self.done.wait()
        writer.close()


@asynccontextmanager
async def vmm(path: Path, answer: bytes, *, closes: bool = False) -> AsyncIterator[Vmm]:
    fake = Vmm(answer, closes=closes)
    async with await asyncio.start_unix_server(fake.serve, path):
        yield fake
        fake.done.set()


def transport(path: Path) -> HybridVsock:
    return HybridVsock(HybridAddress(path=path, port=1024))


async def test_the_handshake_is_as_documented(tmp_path: Path) -> None:
    """Firecracker, docs/vsock.md: CONNECT with the port, then OK with a number of the host's."""
    async with vmm(tmp_path / "s", b"OK 1073741824\n") as fake:
        stream = await transport(tmp_path / "s").open(timeout=5)
        assert fake.asked == b"CONNECT 1024\n"
        stream.close()


async def test_bytes_behind_the_line_belong_to_the_stream(tmp_path: Path) -> None:
    async with vmm(tmp_path / "s", b"OK 1\n\n\x00first bytes"):
        stream = await transport(tmp_path / "s").open(timeout=5)
        assert await stream.read() == b"\n\x00first bytes"
        stream.close()


async def test_a_port_that_nobody_serves(tmp_path: Path) -> None:
    async with vmm(tmp_path / "s", b"", closes=True):
        with pytest.raises(TransportError, match="nobody listens there"):
            await transport(tmp_path / "s").open(timeout=5)


@pytest.mark.parametrize("answer", [b"NO 1\n", b"x" * 100, b"OK" * 40])
async def test_another_answer_is_shown(tmp_path: Path, answer: bytes) -> None:
    async with vmm(tmp_path / "s", answer):
        with pytest.raises(TransportError, match="to CONNECT, not OK"):
            await transport(tmp_path / "s").open(timeout=5)


async def test_no_answer_has_a_limit(tmp_path: Path) -> None:
    hybrid = transport(tmp_path / "s")
    async with vmm(tmp_path / "s", b"OK 1"):
        with pytest.raises(TransportError, match=r"no answer to CONNECT within 0\.05 s"):
            await hybrid.open(timeout=0.05)
        hybrid.close()


async def test_an_unanswered_handshake_is_taken_up_by_the_next_open(tmp_path: Path) -> None:
    """Closing it would kill some devices when the guest answers, as at the end of a slow boot."""
    hybrid = transport(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(TransportError, match="no answer"):
            await hybrid.open(timeout=0.05)
        device, _address = listener.accept()
        with device:
            assert device.recv(100) == b"CONNECT 1024\n"
            device.send(b"OK 1073")
            with pytest.raises(TransportError, match="no answer"):
                await hybrid.open(timeout=0.05)
            device.send(b"741824\nfirst bytes")
            stream = await hybrid.open(timeout=5)
            assert await stream.read() == b"first bytes"
            stream.close()


async def test_closing_drops_what_is_unanswered(tmp_path: Path) -> None:
    hybrid = transport(tmp_path / "s")
    async with vmm(tmp_path / "s", b""):
        with pytest.raises(TransportError, match="no answer"):
            await hybrid.open(timeout=0.05)
        hybrid.close()


async def test_no_socket(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=r"hvsock://.*No such file .*is the VM running"):
        await transport(tmp_path / "gone").open(timeout=5)

"""Forwards into and out of a real guest that has no NIC at all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from innkeeper.shim.client import VmSpec
from innkeeper.shim.forwarding import record
from innkeeper.shim.forwarding.words import End, Forward
from innkeeper.v1 import containers_pb2
from tests.command_line import Innkeeper
from tests.fakes.sockets_servers import serving
from tests.vm.guest import PROBE, Guest, booted

pytestmark = [pytest.mark.vm, pytest.mark.network]

# A container with a network of its own, whose loopback is down until it sets it up.
OWN_NETWORK = {
    "linux": {"namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount", "network")]},
    "process": {
        "capabilities": {
            kind: ["CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"]
            for kind in ("bounding", "effective", "permitted", "inheritable")
        }
    },
}
WEB = "mkdir -p /srv; echo {word} > /srv/index.html; {before} httpd -f -p {address} -h /srv"
WITHIN = 120.0

CALL = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(sys.argv[2].encode())
s.shutdown(socket.SHUT_WR)
while part := s.recv(1000):
    print(part.decode(), end="", flush=True)
"""
ANSWER = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
c, _ = s.accept()
while part := c.recv(1000):
    c.sendall(part)
    print(part.decode(), end="", flush=True)
"""


def page(port: int) -> str:
    """What a plain HTTP client of this host gets; raises OSError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/", timeout=WITHIN) as answer:
        return str(answer.read().decode().strip())


async def page_once_there(port: int) -> str:
    """Asked again while nobody listens in the guest yet, as a person would."""
    async with asyncio.timeout(WITHIN):
        while True:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(page, port)
            await asyncio.sleep(0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def web(image: Path, folder: Path) -> AsyncIterator[Guest]:
    """A VM without a NIC, forwards of every kind, and the servers that they go to."""
    here = End(host="127.0.0.1")
    async with serving() as echo, serving(path=folder / "host"):
        echo_end = End(host="127.0.0.1", port=echo.port)
        forwards = (
            Forward(listen=here, target=End(host="localhost", port=8080)),
            Forward(listen=here, target=End(host="127.0.0.1", port=80, container="own")),
            Forward(listen=End(path=str(folder / "in")), target=End(path="/s", container="own")),
            Forward(listen=here, target=End(host="localhost", port=7000)),
            Forward(listen=End(host="127.0.0.1", port=7000), target=echo_end, reverse=True),
            Forward(
                listen=End(path="/tmp/out", container="own"),
                target=End(path=str(folder / "host")),
                reverse=True,
            ),
        )
        spec = VmSpec(name="forwards", image=f"{image}/", transport="serial", forwards=forwards)
        async with booted(spec) as guest:
            yield guest


def port_of(guest: Guest, index: int) -> int:
    """The port that the daemon chose for a forward."""
    return int(record.read(guest.vm.directory)[index].listen.rpartition(":")[2])


async def until_listening(guest: Guest, index: int) -> None:
    """Until the guest's listener of a forward is there (again); its record is a file."""
    async with asyncio.timeout(WITHIN):
        while record.read(guest.vm.directory)[index].trouble:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def in_guest(guest: Guest, container: str, script: str, path: str, *words: str) -> str:
    """Runs Python of the guest with a path in a container's root, as a process there would
    use it; what it prints."""
    answer = await guest.containers.List(containers_pb2.ListContainersRequest())
    (pid,) = (each.pid for each in answer.containers if each.id == container)
    python = f"chroot /guest /usr/bin/python3 -c '{script}' /proc/{pid}/root{path}"
    return await guest.probe(f"{python} {' '.join(words)}")


async def once_there(path: Path, text: bytes) -> bytes:
    """What the other end of a socket of this host echoes, once there is one."""
    async with asyncio.timeout(WITHIN):
        while True:
            reader, writer = await asyncio.open_unix_connection(path)
            with contextlib.closing(writer), contextlib.suppress(ConnectionError):
                writer.write(text)
                writer.write_eof()
                if found := await reader.read():
                    return found
            await asyncio.sleep(0.2)


async def test_a_browser_of_the_host_sees_the_guests_page(web: Guest) -> None:
    assert (await web.probe("ls /sys/class/net")).split() == ["lo"]
    name = await web.start(WEB.format(word="hello", before="", address="127.0.0.1:8080"))
    try:
        assert await page_once_there(port_of(web, 0)) == "hello"
    finally:
        await web.remove(name)


async def test_nobody_listens_in_the_guest(web: Guest) -> None:
    with pytest.raises(ConnectionResetError):
        await asyncio.to_thread(page, port_of(web, 0))
    log = (web.vm.directory / "daemon.log").read_text()
    assert "Connection refused" in log


async def test_a_container_with_its_own_network_and_files(web: Guest, folder: Path) -> None:
    """Its port 80 is no port of the guest; its socket is in no directory of the guest. The
    listener that the host wants in it comes with it."""
    script = WEB.format(word="mine", before="ip link set lo up;", address="127.0.0.1:80")
    await web.start(script, id="own", **OWN_NETWORK)
    try:
        assert await page_once_there(port_of(web, 1)) == "mine"
        assert "refused" in await web.probe("wget -qO- http://127.0.0.1:80/ 2>&1 || true")
        await until_listening(web, 5)
        assert await in_guest(web, "own", CALL, "/tmp/out", "to-the-host") == "to-the-host"
        answer = asyncio.create_task(in_guest(web, "own", ANSWER, "/s"))
        assert await once_there(folder / "in", b"to the container") == b"to the container"
        assert await answer == "to the container"
    finally:
        await web.remove("own")


async def test_a_process_of_the_guest_reaches_a_server_of_the_host(web: Guest) -> None:
    """From the guest through the reverse forward to the host's echo server and back."""
    said = await web.run("echo to the host | nc 127.0.0.1 7000")
    assert (said.code, said.text) == (0, "to the host\n")


async def test_all_the_way_round_no_byte_is_lost(web: Guest) -> None:
    """Host to guest, and there into the port that leads back to the host: both directions at
    once, 2 MiB, whose order and number are right."""
    data = os.urandom(2 << 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(web, 3))

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
        group.create_task(send())
        back = await reader.read(-1)
    writer.close()
    assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()


async def test_an_agent_that_is_killed_ends_what_is_in_flight_alone(web: Guest) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(web, 3))
    writer.write(b"x")
    assert await asyncio.wait_for(reader.readexactly(1), WITHIN) == b"x"
    before = await web.describe()
    await web.start(f"kill -9 {before.agent_pid}", **PROBE)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), WITHIN) == b""
    writer.close()
    after = await web.describe()
    assert after.agent_pid != before.agent_pid
    await until_listening(web, 4)
    await test_all_the_way_round_no_byte_is_lost(web)


async def test_the_command_line(web: Guest, tmp_path: Path) -> None:
    """`innkeeper forward` until Ctrl-C, and what `vm list` shows."""
    innkeeper = Innkeeper(environment=os.environ, directory=tmp_path)
    process = await innkeeper.start(
        *("forward", "forwards", "0:7000", "-R", "/run/cli.sock:127.0.0.1:9")
    )
    try:
        assert process.stdout is not None
        first = (await asyncio.wait_for(process.stdout.readline(), WITHIN)).decode().split()
        assert first[1:] == ["on", "this", "host", "->", "localhost:7000", "in", "forwards"]
        second = (await asyncio.wait_for(process.stdout.readline(), WITHIN)).decode()
        assert second == "/run/cli.sock in forwards -> 127.0.0.1:9 on this host\n"
        port = int(first[0].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN) as client:
            client.sendall(b"x")
            assert await asyncio.to_thread(client.recv, 1) == b"x"
        assert "cli.sock" in await web.probe("ls /guest/run")
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), WITHIN)
    assert process.returncode == 130
    listed = json.loads((await innkeeper("vm", "list", "--json")).out)
    (mine,) = (each for each in listed if each["name"] == "forwards")
    assert mine["forwards"][4] == {
        "listen": "127.0.0.1:7000",
        "target": mine["forwards"][4]["target"],
        "reverse": True,
        "trouble": "",
    }


async def test_a_port_that_is_taken_is_the_starts_failure(image: Path, tmp_path: Path) -> None:
    innkeeper = Innkeeper(environment=os.environ, directory=tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        told = await innkeeper("vm", "start", "taken", "--image", f"{image}/", "-p", f"{port}:80")
    assert told.code == 125
    assert "the port is taken on this host, by " in told.err
    assert f"(pid {os.getpid()})" in told.err


@pytest.mark.parametrize("transport", ["vhost-user-vsock"])
async def test_the_other_transport(
    image: Path, transport: str, vhost_device_vsock: str, tmp_path: Path
) -> None:
    innkeeper = Innkeeper(environment=os.environ, directory=tmp_path)
    async with serving() as echo:
        port = echo.port
        told = await innkeeper(
            *("run", "--image", f"{image}/", "--transport", transport),
            *("-R", f"7000:{port}", "-L", "/tmp/unused-$$:/run/none".replace("$$", str(port))),
            *("--", "sh", "-c", "echo over vsock | nc 127.0.0.1 7000"),
        )
    assert (told.code, told.out) == (0, b"over vsock\n"), told.err

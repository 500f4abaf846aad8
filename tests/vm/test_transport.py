"""The way from the host to the agent, over a virtio-serial port and over real virtio-vsock.

The image has one more service: a process of the guest that tries to pass for
the host through vsock's loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from innkeeper.shim import commands
from innkeeper.shim.client import VmSpec
from innkeeper.shim.statedir import VmPaths
from innkeeper.shim.transport.bridge import CHANNEL_OPTIONS
from innkeeper.shim.transport.stream import connect_unix
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import processes_pb2_grpc
from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import Attachment
from tests.vm.guest import EVERYTHING, PROBE, Guest, booted, reason
from tests.vm.observer import observing

pytestmark = [pytest.mark.vm, pytest.mark.boot]

MIB = 1 << 20
PATIENCE = 60.0
RECONNECTS = 500
STOPPED = 2.0
"""Seconds without an answer that tell a stopped agent; one on a busy machine takes less."""
# Pipes that the relay keeps for its next connections, and its look-out for the agent.
SPARE = 2 * 16 + 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes.fromhex("000000040000000000")
# A HEADERS frame that announces 64 bytes, of which two come.
CUT_HEADERS = bytes.fromhex("000040010400000001") + b"\x83\x86"
# What a client leaves behind that goes at once.
LEFTOVERS = (b"", PREFACE[:7], PREFACE, PREFACE + SETTINGS, PREFACE + SETTINGS + CUT_HEADERS)

SERVICE = {
    "name": "loopback",
    "argv": ["/usr/bin/python3", "-IS", "/usr/lib/innkeeper/loopback.py"],
    "restart": "never",
}
RELAY_PORT = 1024
# CIDs: the guest itself, the host, and the one that a guest gets from vhost-device-vsock.
PEER = f"""
import errno, json, os, socket, time

def talk(cid):
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        try:
            sock.connect((cid, {RELAY_PORT}))
        except OSError:
            return "not connected"
        try:
            sock.sendall({PREFACE + SETTINGS!r})
            return repr(sock.recv(64))
        except OSError as error:
            return errno.errorcode[error.errno]

def bind(cid):
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
        try:
            sock.bind((cid, 5000))
        except OSError as error:
            return errno.errorcode[error.errno]
    return "ok"

deadline = time.monotonic() + {PATIENCE}
while (said := talk(1)) == "not connected" and time.monotonic() < deadline:
    time.sleep(0.1)
found = {{"1": said, "2": talk(2), "3": talk(3), "bind to 2": bind(2)}}
with open("/run/loopback.new", "w") as file:
    json.dump(found, file)
os.rename("/run/loopback.new", "/run/loopback.json")
"""
CLOSED = {"b''", "ECONNRESET", "EPIPE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A VM, and the socket behind which the daemon opens a new stream for every connection."""

    guest: Guest
    transport: str

    @property
    def line(self) -> Path:
        return VmPaths(directory=self.guest.vm.directory).channel

    @property
    def counted_as(self) -> str:
        """The relay's count of connections or sessions that the host began."""
        return "port_sessions" if self.transport == "serial" else "accepted"

    async def relay(self) -> Counter[str]:
        """What the relay has counted."""
        return Counter(json.loads(await self.guest.probe("cat /guest/run/innkeeper/relay.json")))

    async def descriptors(self) -> int:
        """How many the relay has open."""
        async with observing(self.guest) as observer:
            return (await observer.census()).relay.total()


@pytest.fixture(scope="module")
def image_with_peer(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    overlay = tmp_path_factory.mktemp("overlay")
    code = overlay / "usr/lib/innkeeper"
    (code / "services.d").mkdir(parents=True)
    (code / "services.d/loopback.json").write_text(json.dumps(SERVICE))
    (code / "loopback.py").write_text(PEER)
    out = tmp_path_factory.mktemp("images")
    build = ("image", "build", "--overlay", str(overlay), "--out", str(out))
    commands.run([str(root / "build/venv/bin/innkeeper"), *build], deadline=1500)
    return out / "cloud"


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["serial", "vhost-user-vsock"])
async def machine(request: pytest.FixtureRequest, image_with_peer: Path) -> AsyncIterator[Machine]:
    if request.param != "serial":
        request.getfixturevalue("vhost_device_vsock")
    spec = VmSpec(
        name="transport",
        image=f"{image_with_peer}/",
        transport=request.param,
        cpus=2,
        ports=2,
        cmdline=("quiet", "innkeeper.modules=vsock_loopback"),
    )
    async with booted(spec) as guest:
        yield Machine(guest=guest, transport=request.param)


async def test_the_transport_is_the_one_asked_for_and_carries_calls(machine: Machine) -> None:
    assert (await machine.guest.vm.describe()).transport == machine.transport
    answer = await machine.guest.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert (await machine.relay())[machine.counted_as] >= 1


async def test_output_of_a_mebibyte_arrives_whole(machine: Machine) -> None:
    """The container itself says, by another way, what it wrote."""
    script = f"head -c {MIB} /dev/urandom >/x; sha256sum </x >&2; cat /x"
    finished = await machine.guest.run(script)
    assert len(finished.stdout) == MIB
    assert hashlib.sha256(finished.stdout).hexdigest() == finished.stderr.split()[0].decode()


async def test_a_process_of_the_guest_does_not_pass_for_the_host(machine: Machine) -> None:
    """Through the loopback it comes from CID 1, whichever of its own addresses it calls.

    Without a vsock device the kernel takes even the host's CID for the guest itself.
    """
    script = (
        "until [ -e /guest/run/loopback.json ]; do sleep 0.1; done; cat /guest/run/loopback.json"
    )
    said = json.loads(await machine.guest.probe(script))
    assert said.pop("bind to 2") == "EADDRNOTAVAIL"
    reached = {cid: how for cid, how in said.items() if how != "not connected"}
    assert set(reached) == ({"1", "2"} if machine.transport == "serial" else {"1", "3"})
    assert set(reached.values()) <= CLOSED
    assert (await machine.relay())["refused_cid"] == len(reached)


VSOCK = 40
ASK_FOR_SOCKETS = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for family in ({VSOCK}, {(1 << 32) + VSOCK}, 1):
    fd = libc.syscall(ctypes.c_long(41), ctypes.c_ulong(family), 1, 0)
    print(errno.errorcode[ctypes.get_errno()] if fd < 0 else "ok")
"""


async def test_a_container_gets_no_vsock_whatever_its_profile_says(machine: Machine) -> None:
    """The kernel looks at the family's low 32 bits, a filter that compares all 64 does not."""
    guest = machine.guest
    process = {"args": ["/usr/bin/python3", "-IS", "-c", ASK_FOR_SOCKETS]}
    privileged = {"capabilities": EVERYTHING, "noNewPrivileges": False}
    places = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}
    binds = [
        {"destination": where, "type": "bind", "source": source, "options": ["rbind", "ro"]}
        for where, source in places.items()
    ]
    for seccomp in ({}, {"seccomp": {"defaultAction": "SCMP_ACT_ALLOW"}}):
        finished = await guest.run(
            "",
            process=process | privileged,
            linux=PROBE["linux"] | seccomp,
            mounts=[*PROBE["mounts"][:3], *binds],
        )
        assert finished.text.split() == ["EAFNOSUPPORT", "EAFNOSUPPORT", "ok"], finished


async def test_who_does_not_speak_http2_is_turned_away(machine: Machine) -> None:
    before = await machine.relay()
    stream = await connect_unix(machine.line, timeout=PATIENCE)
    async with asyncio.timeout(PATIENCE):
        await stream.write(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await stream.read() == b""
    stream.close()
    after = await machine.relay()
    assert after["refused_greeting"] == before["refused_greeting"] + 1


async def test_the_host_hears_how_the_agent_died(machine: Machine) -> None:
    """Unary calls and streams alike, through the daemon, until a new agent serves."""
    guest = machine.guest
    before, counts = await guest.describe(), await machine.relay()
    name = await guest.start(f"read line; kill -9 {before.agent_pid}", **PROBE)
    attachment = await Attachment(guest.processes, process=_process(name)).open()
    await attachment.send(b"now\n")
    with pytest.raises(aio.AioRpcError):
        await attachment.to_the_end()
    errors = await _errors_while_away(guest, name)
    assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
    told = Counter(error.details() for error in errors if reason(error) == "AGENT_AWAY")
    away = "innkeeper agent is not serving (restarting; agent (pid "
    (text, times), *_ = told.most_common()
    assert text is not None
    assert text.startswith(f"{away}{before.agent_pid}) ended after ")
    assert text.endswith(" s by signal 9 (SIGKILL))")
    after = await machine.relay()
    assert after["away_replies"] - counts["away_replies"] >= times
    await guest.remove(name)


def _process(name: str) -> types.ProcessRef:
    return types.ProcessRef(container_id=name)


async def _errors_while_away(guest: Guest, name: str) -> list[aio.AioRpcError]:
    """Of a unary call and a stream in turns, until the unary call is answered."""
    errors: list[aio.AioRpcError] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await guest.processes.Wait(processes.WaitRequest(process=_process(name)))
            except aio.AioRpcError as error:
                errors.append(error)
            else:
                return errors
            try:
                attachment = await Attachment(guest.processes, process=_process(name)).open()
            except aio.AioRpcError as error:
                errors.append(error)
            else:
                attachment.cancel()


# Blows at the agent, each when so many sessions have begun since the last one.
SABOTAGE = """
count() {{ sed -n 's/.*"{counter}": \\([0-9]*\\).*/\\1/p' /guest/run/innkeeper/relay.json; }}
after() {{ goal=$(($(count) + $1)); while [ $(count) -lt $goal ]; do sleep 0.1; done; }}
after 100; kill -STOP {agent}
after 10; kill -CONT {agent}
after 100; kill -STOP {agent}
after 10; kill -CONT {agent}
after 100; kill -KILL {agent}
"""


async def test_500_reconnects_give_500_working_channels(machine: Machine) -> None:
    """Between them clients that go at once or in mid-frame, and an agent that stops and dies."""
    guest, before, open_before = machine.guest, await machine.relay(), await machine.descriptors()
    source = await guest.start(f"head -c {MIB} /dev/zero; sleep 1000")
    host = Reconnecting(line=machine.line, stream=_process(source))
    agent = (await guest.describe()).agent_pid
    script = SABOTAGE.format(agent=agent, counter=machine.counted_as)
    saboteur = await guest.start(script, **PROBE)
    for _ in range(RECONNECTS):
        await host.reconnect()
    assert (await guest.follow(_process(saboteur), limit=PATIENCE)).code == 0
    after = await machine.relay()
    assert after[machine.counted_as] - before[machine.counted_as] >= RECONNECTS
    assert after["away_replies"] > before["away_replies"], "the agent was killed"
    assert host.failures[grpc.StatusCode.DEADLINE_EXCEEDED], "the agent was stopped"
    assert set(host.failures) <= {
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
    }
    assert host.troubled <= RECONNECTS // 20, "only around the blows is a second try needed"
    assert await machine.descriptors() <= open_before + SPARE
    for name in (saboteur, source):
        await guest.remove(name)


@dataclass(slots=True, kw_only=True)
class Reconnecting:
    """A host that connects anew for every call, below the daemon's own channel."""

    line: Path
    stream: types.ProcessRef
    number: int = 0
    troubled: int = 0
    failures: Counter[grpc.StatusCode] = field(default_factory=Counter)

    async def reconnect(self) -> None:
        """Sometimes a client that leaves at once, then one that must get its answer."""
        self.number += 1
        await self._rude(self.number % 3 == 0)
        failed = 0
        async with asyncio.timeout(PATIENCE):
            while (code := await self._try()) is not None:
                failed += 1
                self.failures[code] += 1
                if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    await self._rude(2 * len(LEFTOVERS))
        self.troubled += failed > 0

    async def _try(self) -> grpc.StatusCode | None:
        """One fresh channel: None when it works."""
        options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        async with aio.insecure_channel(f"unix:{self.line}", options=options) as channel:
            health = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
            try:
                await health.Check(health_pb2.HealthCheckRequest(), timeout=STOPPED)
                if self.number % 10 == 0:
                    async with asyncio.timeout(STOPPED):
                        await self._leave_in_mid_frame(channel)
            except aio.AioRpcError as error:
                return error.code()
            except TimeoutError:
                return grpc.StatusCode.DEADLINE_EXCEEDED
        return None

    async def _leave_in_mid_frame(self, channel: aio.Channel) -> None:
        stub = processes_pb2_grpc.ProcessesStub(channel)
        attachment = await Attachment(stub, process=self.stream).open()
        await attachment.until(lambda: attachment.data[types.STREAM_KIND_STDOUT])

    async def _rude(self, clients: int) -> None:
        """Gone before anybody can have looked at them."""
        for extra in range(clients):
            client = await connect_unix(self.line, timeout=PATIENCE)
            await client.write(LEFTOVERS[(self.number + extra) % len(LEFTOVERS)])
            client.close()

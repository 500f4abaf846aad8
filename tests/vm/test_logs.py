"""Logs of processes' output in a real guest: the agent killed, rotation, bytes, a full tmpfs."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import PROBE, Guest, create_request, refused

pytestmark = [pytest.mark.vm, pytest.mark.containers]

OUT, ERR = types.STREAM_KIND_STDOUT, types.STREAM_KIND_STDERR
LOGS = "/run/innkeeper/logs"


async def start(
    guest: Guest, name: str, script: str, *, max_bytes: int = 0, files: int = 0
) -> types.ProcessRef:
    """A container that runs `script`, with a log."""
    request = create_request(name, script)
    request.streams.log.CopyFrom(types.OutputLog(max_bytes=max_bytes, files=files))
    await guest.when_serving(lambda: guest.containers.Create(request))
    await guest.containers.Start(containers.StartContainerRequest(id=name))
    return types.ProcessRef(container_id=name)


async def pieces(guest: Guest, ref: types.ProcessRef, **query: Any) -> list[processes.LogsResponse]:
    async with asyncio.timeout(120):
        call = guest.processes.Logs(processes.LogsRequest(process=ref, **query))
        return [piece async for piece in call]


def joined(found: list[processes.LogsResponse], stream: int = OUT) -> tuple[int, bytes]:
    """Where the stream begins, and its bytes from there, which must be without a gap."""
    ours = [piece for piece in found if piece.stream == stream]
    start = ours[0].offset if ours else 0
    data = b""
    for piece in ours:
        assert piece.offset == start + len(data)
        data += piece.data
    return start, data


async def test_output_can_be_read_later(guest: Guest) -> None:
    """After the process's end, stream by stream, byte by byte, until its container goes."""
    script = "echo text; printf '\\377\\000\\n' >&2; printf 'last'; exit 3"
    ref = await start(guest, "logged", script)
    assert (await guest.wait("logged")).code == 3
    found = await pieces(guest, ref)
    assert joined(found) == (0, b"text\nlast")
    assert joined(found, ERR) == (0, b"\xff\x00\n")
    micros = [piece.at_unix_micros for piece in found]
    assert micros == sorted(micros)
    only = await pieces(guest, ref, without_stdout=True)
    assert {piece.stream for piece in only} == {ERR}
    assert joined(await pieces(guest, ref, tail_lines=1, without_stderr=True)) == (5, b"last")
    assert await pieces(guest, ref, since_unix_micros=micros[-1] + 1) == []
    kept = await guest.probe(f"cat /guest{LOGS}/logged/-/*.jsonl")
    assert '"log": "text\\n' in kept
    assert '"base64": "/wAK"' in kept
    await guest.remove("logged")
    request = processes.LogsRequest(process=ref)
    answer = await refused(guest.processes.Logs(request).read())
    assert answer == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")
    assert await guest.probe(f"ls /guest{LOGS}") == ""


async def test_without_a_log_there_is_none(guest: Guest) -> None:
    name = await guest.start("echo x")
    request = processes.LogsRequest(process=types.ProcessRef(container_id=name))
    answer = await refused(guest.processes.Logs(request).read())
    assert answer == (grpc.StatusCode.FAILED_PRECONDITION, "NO_LOG")
    await guest.remove(name)


async def test_following_ends_with_the_process(guest: Guest) -> None:
    """Though a child that was left behind still has its output open."""
    script = "echo begun; read line; sleep 300 & echo ended; exit 0"
    ref = await start(guest, "followed", script)
    call = guest.processes.Logs(processes.LogsRequest(process=ref, follow=True), timeout=120)
    following = aiter(call)
    assert (await anext(following)).data == b"begun\n"
    attached = guest.processes.Attach(timeout=120)
    await attached.write(processes.AttachRequest(open=processes.OpenStreams(process=ref)))
    line = processes.InputFrame(offset=0, data=b"\n")
    await attached.write(processes.AttachRequest(input=line))
    rest = [piece async for piece in following]
    assert joined(rest) == (len(b"begun\n"), b"ended\n")
    attached.cancel()
    await guest.remove("followed")


async def test_rotation_keeps_the_newest_and_nobody_waits(guest: Guest) -> None:
    """Nobody reads, and far more is written than any buffer holds."""
    script = "yes 0123456789abcde | head -c 4194304; echo done"
    ref = await start(guest, "rotated", script, max_bytes=65536, files=3)
    assert (await guest.wait("rotated")).code == 0
    begun, data = joined(await pieces(guest, ref))
    assert begun > 0
    assert data.endswith(b"0123456789abcde\ndone\n")
    assert begun + len(data) == 4194304 + len(b"done\n")
    assert len(data) > 65536
    sizes = await guest.probe(f"stat -c %s /guest{LOGS}/rotated/-/*")
    assert [int(size) <= 65536 for size in sizes.split()] == [True] * 3
    await guest.remove("rotated")


async def test_when_the_agent_is_killed_nothing_is_repeated_or_lost(guest: Guest) -> None:
    """Twice, in the middle of the output; whoever follows asks again and gets all of it."""
    count = 4000
    script = (
        f"i=0; while [ $i -lt {count} ]; do echo line $i; echo err $i >&2; i=$((i+1)); "
        "[ $((i % 100)) = 0 ] && sleep 0.1; done"
    )
    ref = await start(guest, "killed", script, max_bytes=16384, files=16)
    for _ in range(2):
        agent = (await guest.describe()).agent_pid
        killer = await guest.start(f"kill -9 {agent}", **PROBE)
        await guest.wait(killer)
        await guest.describe()
        await guest.remove(killer)
    assert (await guest.wait("killed")).code == 0
    found = await pieces(guest, ref)
    assert joined(found) == (0, b"".join(b"line %d\n" % i for i in range(count)))
    assert joined(found, ERR) == (0, b"".join(b"err %d\n" % i for i in range(count)))
    await guest.remove("killed")


async def test_when_there_is_no_space_the_oldest_goes(guest: Guest) -> None:
    """The gap is in the offsets, and the process goes on."""
    room = 2 << 20
    size = int(await guest.probe(f"df -k /guest{LOGS} | awk 'END {{print $4}}'")) << 10
    await guest.probe(f"head -c {size - room} /dev/zero >/guest{LOGS}/filler")
    try:
        script = "yes 0123456789abcde | head -c 6291456; echo done"
        ref = await start(guest, "full", script, max_bytes=512 << 10, files=16)
        assert (await guest.wait("full")).code == 0
        begun, data = joined(await pieces(guest, ref))
        assert begun > 0
        assert begun + len(data) == 6291456 + len(b"done\n")
        assert data.endswith(b"abcde\ndone\n")
        await guest.remove("full")
    finally:
        await guest.probe(f"rm /guest{LOGS}/filler")

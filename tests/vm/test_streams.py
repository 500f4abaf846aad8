"""Streams under the real kernel: much output over connections that break and agents that die,
ends that children hold off, windows, terminals byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim import writing
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import processes_pb2_grpc
from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import STDOUT, Attachment
from tests.vm.guest import PROBE, Guest

pytestmark = [pytest.mark.vm, pytest.mark.containers]

log = logging.getLogger(__name__)

SOAK = bool(os.environ.get("INNKEEPER_SOAK"))
MIB = 1 << 20
WINDOW = MIB
_EXECS = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def box(guest: Guest) -> AsyncIterator[str]:
    """A container for execs."""
    name = await guest.start("while :; do sleep 1; done")
    yield name
    await guest.remove(name)


async def added(
    guest: Guest,
    box: str,
    script: str,
    *,
    streams: types.StreamOptions | None = None,
    **process: Any,
) -> types.ProcessRef:
    """A process that exec has started in the container."""
    words = {"args": ["sh", "-c", script], "cwd": "/", **process}
    request = processes.ExecRequest(
        container_id=box,
        exec_id=f"s{next(_EXECS)}",
        process=json.dumps(words).encode(),
        streams=streams,
    )
    await guest.processes.Exec(request)
    return types.ProcessRef(container_id=box, exec_id=request.exec_id)


async def attached(guest: Guest, process: types.ProcessRef, **opening: Any) -> Attachment:
    return await Attachment(guest.processes, process=process, **opening).open()


async def kill_agent(guest: Guest) -> None:
    before = await guest.describe()
    killer = await guest.start(f"kill -9 {before.agent_pid}", **PROBE)
    await guest.wait(killer)
    assert (await guest.describe()).agent_pid != before.agent_pid
    await guest.remove(killer)


# Much output, slow and fast readers, cuts and kills.

PIECE = random.Random(6).randbytes(1_000_003)
"""Repeated by the guest; its length has nothing to do with pages, pipes or windows."""

REPEATS = 1075 if SOAK else 135
SIZE = REPEATS * len(PIECE)


class Reader:
    """A host that reads one process to its exit, with a new connection whenever one is lost."""

    def __init__(self, guest: Guest, process: types.ProcessRef, name: str, cuts: list[int]) -> None:
        self.offset = 0
        self.connections = 0
        self.name = name
        self.cuts = cuts
        self.moved = asyncio.Condition()
        self.done = False
        self._guest = guest
        self._process = process
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    async def run(self, before_each: Any = None) -> types.ExitStatus:
        while True:
            async with self._guest.vm.channel() as channel:
                try:
                    end = await self._read(channel, before_each)
                except aio.AioRpcError as error:
                    if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                        raise
                    await self._guest.describe()
                    continue
            if end is not None:
                async with self.moved:
                    self.done = True
                    self.moved.notify_all()
                return end

    async def _read(self, channel: aio.Channel, before_each: Any) -> types.ExitStatus | None:
        """To the exit, or to the next cut."""
        self.connections += 1
        call = processes_pb2_grpc.ProcessesStub(channel).Attach()
        opening = processes.OpenStreams(
            process=self._process, stdout_offset=self.offset, reader=self.name
        )
        await writing.write(call, processes.AttachRequest(open=opening))
        # At once, so that the guest knows that this host acknowledges.
        ack = processes.OutputAck(stream=STDOUT, offset=self.offset)
        await writing.write(call, processes.AttachRequest(ack=ack))
        while isinstance(frame := await call.read(), processes.AttachResponse):
            if frame.HasField("exit"):
                return frame.exit
            if before_each is not None:
                await before_each()
            if frame.HasField("output") and frame.output.stream == STDOUT:
                await self._take(frame.output)
                ack = processes.OutputAck(stream=STDOUT, offset=self.offset)
                await writing.write(call, processes.AttachRequest(ack=ack))
            if self.cuts and self.offset >= self.cuts[0]:
                self.cuts.pop(0)
                return None
        raise aio.AioRpcError(await call.code(), aio.Metadata(), aio.Metadata())

    async def _take(self, frame: processes.OutputFrame) -> None:
        assert frame.offset == self.offset
        self._hash.update(frame.data)
        async with self.moved:
            self.offset += len(frame.data)
            self.moved.notify_all()

    async def passed(self, offset: int) -> None:
        async with self.moved:
            await self.moved.wait_for(lambda: self.done or self.offset >= offset)


class Spools:
    """How much lies in the spools' tmpfs, as df sees it."""

    def __init__(self, guest: Guest, name: str) -> None:
        self._guest = guest
        self._ref = types.ProcessRef(container_id=name)
        self._had = 0

    async def used(self) -> int:
        call = await attached(self._guest, self._ref, stdout_offset=self._had)
        await call.send(b"\n")
        await call.until(lambda: call.data[STDOUT].endswith(b"\n"))
        call.cancel()
        self._had += len(call.data[STDOUT])
        return int(call.data[STDOUT].split()[-1]) * 1024


@pytest.mark.timeout(1800 if SOAK else 600)
async def test_much_output_to_a_slow_reader_and_a_fast_one(guest: Guest, box: str) -> None:
    """Connections are cut at twenty places, and the agent is killed at three. Each reader has
    every byte once, and the guest never keeps more than two windows of it."""
    seed = random.SystemRandom().getrandbits(32)
    log.warning("seed %d", seed)
    chance = random.Random(seed)
    look = (
        "while read -r _; do df -k /guest/run/innkeeper/spools | tail -n 1 | awk '{print $3}'; done"
    )
    spools = Spools(guest, watcher := await guest.start(look, **PROBE))
    script = f"cat >/piece; i=0; while [ $i -lt {REPEATS} ]; do cat /piece; i=$((i+1)); done"
    process = await added(guest, box, script)
    baseline = await spools.used()
    writer = await attached(guest, process, input_only=True)
    await writer.send(PIECE)
    await writer.close_input()
    await writer.until(lambda: writer.acknowledged == len(PIECE))
    writer.cancel()
    points = sorted(chance.randrange(SIZE) for _ in range(20))
    kills = sorted(chance.randrange(SIZE) for _ in range(3))
    fast = Reader(guest, process, "fast", points[::2])
    slow = Reader(guest, process, "slow", points[1::2])

    lost = 0

    async def lag() -> None:
        """The slow one takes nothing before the fast one is far ahead, on a connection that
        holds: one that lost it has to come back within its time."""
        goal = min(slow.offset + WINDOW // 2, SIZE)
        async with fast.moved:
            await fast.moved.wait_for(
                lambda: fast.done or fast.offset >= goal or slow.connections <= lost
            )

    most = 0

    async def disturb() -> None:
        nonlocal most, lost
        for point in sorted(points + kills):
            await fast.passed(point)
            if point in kills:
                broken = slow.connections
                await kill_agent(guest)
                async with fast.moved:
                    lost = broken
                    fast.moved.notify_all()
            most = max(most, await guest.when_serving(spools.used))

    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(fast.run()), group.create_task(slow.run(lag))]
        group.create_task(disturb())
    ends = [run.result() for run in runs]
    expected = hashlib.sha256()
    for _ in range(REPEATS):
        expected.update(PIECE)
    for reader, end in ((fast, ends[0]), (slow, ends[1])):
        assert (reader.offset, reader.digest) == (SIZE, expected.hexdigest())
        assert (end.code, end.stdout_bytes, end.stderr_bytes) == (0, SIZE, 0)
        assert reader.cuts == []
    assert most - baseline < 2 * WINDOW + WINDOW // 2
    await guest.remove(watcher)


async def test_input_goes_on_over_lost_connections(guest: Guest, box: str) -> None:
    """What was acknowledged is not sent again, what was not is: each byte arrives once."""
    data = random.Random(7).randbytes(3 * MIB)
    process = await added(guest, box, "cat")
    had = b""
    for kill in (False, True, False):
        async with guest.vm.channel() as channel:
            stub = processes_pb2_grpc.ProcessesStub(channel)
            call = await Attachment(stub, process=process, stdout_offset=len(had)).open()
            goal = min(call.sent + MIB, len(data))
            sending = asyncio.ensure_future(call.send(data[call.sent : goal]))
            await call.until(lambda call=call, goal=goal: call.acknowledged >= goal - MIB // 4)
            sending.cancel()
            await asyncio.wait([sending])
            had += call.data[STDOUT]
        if kill:
            await kill_agent(guest)
    call = await attached(guest, process, stdout_offset=len(had))
    sending = asyncio.ensure_future(call.send(data[call.sent :]))
    await call.until(lambda: call.acknowledged == len(data))
    await sending
    await call.close_input()
    finished = await call.to_the_end()
    assert (finished.code, had + finished.stdout) == (0, data)


# Ends.


@pytest.mark.parametrize(
    ("script", "terminal"),
    [("sleep 300 & echo done", True), ("(trap '' HUP; exec tail -f /dev/null) & echo done", False)],
)
async def test_a_child_in_the_background_holds_off_its_streams_and_nothing_else(
    guest: Guest, script: str, terminal: bool
) -> None:
    """It keeps the terminal or the pipe open."""
    name = await guest.start("while :; do sleep 1; done")
    process = await added(guest, name, script, terminal=terminal)
    patient = await attached(guest, process, until=processes.ATTACH_UNTIL_END)
    end = await guest.wait(name, process.exec_id)
    output = b"done\r\n" if terminal else b"done\n"
    assert (end.code, end.stdout_bytes, end.stderr_bytes) == (0, len(output), 0)
    finished = await guest.follow(process)
    assert (finished.code, finished.stdout) == (0, output)
    await patient.until(lambda: patient.exit is not None)
    assert patient.data[STDOUT] == output
    if not terminal:
        # A terminal is hung up with its session's leader (tty_vhangup_session).
        assert patient.ended == set()
    await guest.remove(name)
    await patient.to_the_streams_ends()
    assert patient.data[STDOUT] == output


async def test_what_a_child_writes_after_the_exit_comes_to_whom_waits(
    guest: Guest, box: str
) -> None:
    fifo = "mkfifo /go; (read -r _ </go; echo later) & echo done"
    process = await added(guest, box, fifo)
    patient = await attached(guest, process, until=processes.ATTACH_UNTIL_END)
    await patient.until(lambda: patient.exit is not None)
    assert patient.data[STDOUT] == b"done\n"
    await guest.follow(await added(guest, box, "echo >/go; rm /go"))
    await patient.to_the_streams_ends()
    assert patient.data[STDOUT] == b"done\nlater\n"
    assert (await guest.follow(process)).stdout == b"done\n"


async def test_the_end_of_the_output_is_there_with_the_exit(guest: Guest, box: str) -> None:
    """Also when nobody has read and the window is full: the tail was lost elsewhere."""
    options = types.StreamOptions(buffer_bytes=64 << 10)
    process = await added(guest, box, "head -c 100000 /dev/zero; echo END", streams=options)
    request = processes.WaitRequest(process=process)
    end = (await guest.processes.Wait(request, timeout=60)).exit
    assert end.stdout_bytes == 100_004
    assert (await guest.follow(process)).stdout == bytes(100_000) + b"END\n"


# Windows.


async def test_a_process_that_drops_never_waits(guest: Guest, box: str) -> None:
    options = types.StreamOptions(buffer_bytes=64 << 10, when_full=types.WHEN_FULL_DROP)
    process = await added(guest, box, "head -c 3000000 /dev/zero; echo END", streams=options)
    end = await guest.wait(box, process.exec_id)
    assert end.stdout_bytes == 3_000_004
    call = await attached(guest, process)
    finished = await call.to_the_end()
    (gap,) = call.gaps
    assert (getattr(gap, "from"), gap.to + len(finished.stdout)) == (0, 3_000_004)
    assert len(finished.stdout) >= 64 << 10
    assert finished.stdout.endswith(b"\0END\n")


async def test_a_window_is_as_large_as_it_was_asked_for(guest: Guest, box: str) -> None:
    options = types.StreamOptions(buffer_bytes=4 * MIB)
    process = await added(guest, box, f"head -c {4 * MIB} /dev/zero", streams=options)
    assert (await guest.wait(box, process.exec_id)).stdout_bytes == 4 * MIB
    assert (await guest.follow(process)).stdout == bytes(4 * MIB)


async def test_a_reader_that_may_miss_does_not_hold_the_process(guest: Guest, box: str) -> None:
    process = await added(guest, box, "read -r _; head -c 40000000 /dev/zero; echo END")
    careless = await attached(guest, process, may_miss=True)
    await careless.send(b"\n")
    # It reads no frame meanwhile; what is on its way is less than all that is written.
    assert (await guest.wait(box, process.exec_id)).stdout_bytes == 40_000_004
    careless.cancel()


# Terminals.


async def test_a_terminal_has_its_size_before_the_first_byte(guest: Guest, box: str) -> None:
    size = {"height": 41, "width": 121}
    process = await added(guest, box, "stty size", terminal=True, consoleSize=size)
    assert (await guest.follow(process)).stdout == b"41 121\r\n"


async def test_a_raw_terminal_changes_no_byte(guest: Guest, box: str) -> None:
    every = bytes(range(256))
    script = "stty raw -echo; printf R; head -c 512"
    call = await attached(guest, await added(guest, box, script, terminal=True))
    await call.until_text(b"R")
    await call.send(every + every[::-1])
    assert (await call.to_the_end()).stdout == b"R" + every + every[::-1]


async def test_a_terminal_that_nobody_reads_takes_input_up_to_its_window(
    guest: Guest, box: str
) -> None:
    """And blocks nothing else."""
    script = "stty raw -echo; printf R; read -r _ </dev/null; exec sleep 300"
    process = await added(guest, box, script, terminal=True)
    call = await attached(guest, process)
    await call.until_text(b"R")
    sending = asyncio.ensure_future(call.send(bytes(3 * MIB)))
    await call.until(lambda: call.acknowledged >= MIB)
    await guest.describe()
    kill = processes.SignalRequest(process=process, signal=9)
    await guest.processes.Signal(kill)
    assert (await call.to_the_end()).code == 128 + 9
    sending.cancel()
    await asyncio.wait([sending])

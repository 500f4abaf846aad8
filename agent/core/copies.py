"""Copies of files and trees, each made by a worker process of its own (DESIGN D3, D14).

The worker (`agent.linux.copyworker`) is the only one that touches the files. The agent
passes frames on and never holds more than one: when the worker or the host is slow, the
other waits. A worker is given up when nothing of its work has moved for `patience`
seconds, or when its copy is over on the host's side; a temporary name that it leaves is
removed by another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent.core import commands
from agent.core.copy_errors import refused, stuck, too_many, worker_died
from agent.core.errors import AgentError
from agent.linux import copyframes
from agent.linux.copyframes import Kind
from agent.linux.copyslate import Slate, new_slate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence

    from agent.linux.copyslate import Leftover

    T = TypeVar("T")

log = logging.getLogger(__name__)

PATIENCE: Final = 60.0
"""Seconds without any progress after which a worker is given up."""

COPIES_LIMIT: Final = 16
"""Copies at the same time, those given up that the kernel still holds included."""

# Not in Python's socket module (include/uapi/asm-generic/socket.h).
_SO_SNDBUFFORCE = 32

_LEAVE_PATIENCE = 2.0
"""Seconds that a worker gets to end by itself when its socket is closed."""

_CODE = Path(__file__).resolve().parents[2]
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); import agent.linux.copyworker as w; w.main()"
WORKER_ARGV = (sys.executable, "-IS", "-c", _BOOT, str(_CODE))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlace:
    """What a copy is confined to, and the path below it.

    `root` is a path of the guest that the worker opens; `check` raises when what it
    opened may not be what was meant. `name` is for errors.
    """

    root: str
    path: str
    name: str
    check: Callable[[], None] = lambda: None

    @property
    def words(self) -> dict[str, Any]:
        return {"root": self.root, "path": self.path}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyInRules:
    """How to write: see CopyStart."""

    directory_mode: int = 0o755
    only_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutRules:
    """What to read: see CopyOutRequest."""

    offset: int = 0
    recursive: bool = False
    follow_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy has written; `size` is bytes of files, holes included."""

    size: int
    files: int
    directories: int
    links: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFrame:
    """A piece of what is read: packed parts (`copyframes.unpack_parts`), or lines of what
    was left out."""

    parts: bytes | bytearray = b""
    left_out: tuple[str, ...] = ()


class CopyWorkers:
    """Makes copies, at most `limit` at once."""

    def __init__(
        self,
        *,
        argv: Sequence[str] = WORKER_ARGV,
        limit: int = COPIES_LIMIT,
        patience: float = PATIENCE,
    ) -> None:
        self._argv = tuple(argv)
        self._limit = limit
        self._patience = patience
        self.busy = 0
        self._working_in: dict[_Worker, str] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def copy_in(
        self, place: CopyPlace, rules: CopyInRules, batches: AsyncIterator[Sequence[bytes]]
    ) -> Copied:
        """Write what comes: each of `batches` is packed parts (`copyframes.pack_part`), in
        pieces.

        Raises what copy_errors.py makes of the worker's refusal, OPERATION_TIMED_OUT,
        LIMIT_REACHED, and whatever `batches` does; then the entry in progress is not there.
        """
        words = {"directory_mode": rules.directory_mode, "only_new": rules.only_new}
        async with self._working("in", place, words) as worker:
            answer = asyncio.ensure_future(worker.last_words())
            feeding = asyncio.ensure_future(_feed(worker, batches))
            try:
                await asyncio.wait({answer, feeding}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    # Raises what ended the batches; else all is sent, and the rest is
                    # the worker's.
                    feeding.result()
                return Copied(**await worker.patiently(answer))
            finally:
                await _cancelled(answer, feeding)

    async def copy_out(
        self, place: CopyPlace, rules: CopyOutRules
    ) -> AsyncGenerator[CopyFrame, None]:
        """Read; the generator has to be closed (`aclosing`), which ends the worker.

        Raises as `copy_in`.
        """
        words = {
            "offset": rules.offset,
            "recursive": rules.recursive,
            "follow_link": rules.follow_link,
        }
        async with self._working("out", place, words) as worker:
            while True:
                kind, payload = await worker.patiently(worker.next())
                match kind:
                    case Kind.PARTS:
                        yield CopyFrame(parts=payload)
                    case Kind.LEFT_OUT:
                        yield CopyFrame(left_out=tuple(copyframes.unpack_json(payload)))
                    case _:
                        return

    async def stop(self, name: str, why: AgentError) -> None:
        """End the copies in the place of that name with an error, and wait until their
        workers are gone, or given up."""
        stopped = [worker for worker, where in self._working_in.items() if where == name]
        for worker in stopped:
            worker.stop(why)
        for worker in stopped:
            await worker.retired.wait()

    async def close(self) -> None:
        """Wait for workers that are ending, as long as those are given."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=_LEAVE_PATIENCE + commands.KILL_PATIENCE)

    @contextlib.asynccontextmanager
    async def _working(
        self, do: str, place: CopyPlace, words: dict[str, Any]
    ) -> AsyncGenerator[_Worker, None]:
        """A worker that has the root open, and that is gone (or given up) afterwards."""
        if self.busy >= self._limit:
            raise too_many(self._limit)
        self.busy += 1
        try:
            worker = await _Worker.start(self._argv, place, self._patience)
        except BaseException:
            self.busy -= 1
            raise
        self._working_in[worker] = place.name
        try:
            await worker.begin({"do": do, **place.words, **words})
            place.check()
            yield worker
        finally:
            # Also when we are cancelled: who holds the root waits until it is let go.
            await asyncio.shield(self._in_background(self._retire(worker)))

    async def _retire(self, worker: _Worker) -> None:
        try:
            if await worker.end():
                await self._after(worker)
            else:
                name = worker.place.name
                log.warning("%s: the kernel holds the copy's worker %d", name, worker.pid)
                self._in_background(self._after(worker))
        finally:
            del self._working_in[worker]
            worker.retired.set()

    async def _after(self, worker: _Worker) -> None:
        """Once the process is gone, which for one that the kernel holds may never be."""
        await worker.gone()
        left = worker.slate.leftover
        worker.slate.close()
        try:
            if left is not None:
                await self._sweep(worker.place, left)
        except AgentError as error:
            log.warning("%s: %s is left in it: %s", worker.place.name, left, error)
        finally:
            self.busy -= 1

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _sweep(self, place: CopyPlace, left: Leftover) -> None:
        """Remove a temporary name. Raises AgentError."""
        sweeper = await _Worker.start(self._argv, place, self._patience)
        try:
            words = {"do": "sweep", **place.words, "leftover": list(left)}
            await sweeper.begin(words)
            await sweeper.patiently(sweeper.last_words())
        finally:
            await sweeper.end()
            sweeper.slate.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """What is ours of a worker."""

    child: commands.Child
    channel: socket.socket
    slate: Slate


class _Worker:
    """One worker process, our end of its socket, and its slate."""

    def __init__(self, place: CopyPlace, patience: float, ends: _Ends) -> None:
        self.place = place
        self.slate = ends.slate
        self.retired = asyncio.Event()
        self._why: AgentError | None = None
        self._patience = patience
        self._child = ends.child
        self._channel = ends.channel
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def start(cls, argv: Sequence[str], place: CopyPlace, patience: float) -> _Worker:
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            failed = stack.enter_context(contextlib.ExitStack())
            failed.callback(ours.close)
            for end in (ours, theirs):
                _make_room(end)
            stack.enter_context(theirs)
            page = new_slate()
            stack.callback(os.close, page)
            slate = Slate(page)
            failed.callback(slate.close)
            setting = commands.Setting(stdin=theirs.fileno(), stderr=2, pass_fds=(page,))
            child = await commands.spawn([*argv, str(page)], setting=setting)
            failed.pop_all()
        ours.settimeout(0)
        return cls(place, patience, _Ends(child=child, channel=ours, slate=slate))

    @property
    def pid(self) -> int:
        return self._child.pid

    async def begin(self, words: dict[str, Any]) -> None:
        """Say what to do; returns when it has opened the root. Raises OPERATION_TIMED_OUT."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # One that has died already is told of by what it does not answer.
            await self.send(Kind.START, json.dumps(words).encode())
        # A process that starts may take its time when a machine has much to do.
        kind, _ = await self.patiently(self.next(), within=max(self._patience, PATIENCE))
        if kind is not Kind.OPENED:
            raise worker_died(self.place.name, f"it began with {kind!r}")

    async def send(self, kind: Kind, *pieces: bytes) -> None:
        await self._loop.sock_sendall(self._channel, copyframes.pack_frame(kind, *pieces))

    async def next(self) -> tuple[Kind, bytearray]:
        """Its next frame; raises what a refusal says."""
        length, number = copyframes.PREFIX.unpack(await self._read(copyframes.PREFIX.size))
        kind, payload = Kind(number), await self._read(length)
        if kind is Kind.REFUSED:
            raise refused(self.place.name, self.place.path, copyframes.unpack_json(payload))
        return kind, payload

    async def last_words(self) -> dict[str, int]:
        kind, payload = await self.next()
        if kind is not Kind.DONE:
            raise worker_died(self.place.name, f"it answered with {kind!r}")
        words: dict[str, int] = copyframes.unpack_json(payload)
        return words

    async def patiently(
        self, work: Coroutine[Any, Any, T] | asyncio.Future[T], *, within: float | None = None
    ) -> T:
        """Wait as long as something moves; raises OPERATION_TIMED_OUT."""
        task = asyncio.ensure_future(work)
        patience = within or self._patience
        try:
            while True:
                before = self.slate.done
                done, _ = await asyncio.wait([task], timeout=patience)
                if done:
                    return task.result()
                if self.slate.done == before:
                    raise stuck(self.place.name, patience)
        finally:
            task.cancel()

    def stop(self, why: AgentError) -> None:
        """End it; whoever waits for it gets `why`."""
        self._why = why
        self._child.kill()

    async def end(self) -> bool:
        """Let it leave, or kill it; False when the kernel holds it."""
        self._channel.close()
        leaving = asyncio.ensure_future(self._child.wait())
        done, _ = await asyncio.wait([leaving], timeout=_LEAVE_PATIENCE)
        return bool(done) or await self._child.end()

    async def gone(self) -> None:
        await self._child.wait()

    async def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view, got = memoryview(data), 0
        try:
            while got < count:
                more = await self._loop.sock_recv_into(self._channel, view[got:])
                if not more:
                    raise self._why or worker_died(self.place.name, "it closed its socket")
                got += more
        except OSError as error:
            raise self._why or worker_died(self.place.name, str(error)) from error
        return data


async def _feed(worker: _Worker, batches: AsyncIterator[Sequence[bytes]]) -> None:
    """Pass all on; a worker that takes no more has said why."""
    try:
        async for batch in batches:
            await worker.patiently(worker.send(Kind.PARTS, *batch))
        await worker.send(Kind.END)
    except (BrokenPipeError, ConnectionResetError):
        return


def _make_room(channel: socket.socket) -> None:
    """For two frames, so that one is sent while the other is worked on (root may have more
    than net.core.wmem_max)."""
    with contextlib.suppress(PermissionError):
        channel.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * copyframes.FRAME_BYTES)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

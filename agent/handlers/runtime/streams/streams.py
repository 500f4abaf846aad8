"""All streams of one process, and how they outlive the agent.

Our ends of the pipes (or the terminal), and the input's spool file, lie in PID
1's descriptor store as `streams/CONTAINER/EXEC/PART`, with EXEC `-` for a
container's first process, before the runtime starts anything. What a restarted
agent needs beyond them is in the spool files themselves.

Names go out of the store when nothing can come any more, which is later than the
process's end when it leaves a child behind. An input's end is
different: the store's duplicate must go first, because the process sees the end
when the last duplicate is closed, and only after all spooled bytes are fed,
because an agent that dies closes its own duplicate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, Reason, kernel_refused, wrong_state
from agent.core.life import USUAL_STREAMS, WINDOW, StreamOptions, Until
from agent.core.model import OutputChunk, OutputGap, ProcessRef, Stream
from agent.handlers.runtime.runtime import Stdio
from agent.handlers.runtime.streams.inputs import InputFeed, PipeSink, Sink, TerminalSink
from agent.handlers.runtime.streams.outputs import OutputPump, PipeSource, Source, TerminalSource
from agent.handlers.runtime.streams.pulse import Pulse
from agent.handlers.runtime.streams.reading import OutputReader
from agent.handlers.runtime.streams.space import Space
from agent.handlers.runtime.streams.spool import Spool
from agent.linux import splicing, terminals

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
    from pathlib import Path
    from typing import Any

log = logging.getLogger(__name__)

__all__ = ["PREFIX", "WINDOW", "Keeper", "StreamHome", "Streams", "store_prefix"]

_DROP_TRIES = 3

_STDIN = "stdin"
_STDIN_SPOOL = "stdin.spool"
_MASTER = "terminal"
_IN = ("terminal.in.r", "terminal.in.w")
_OUT = ("terminal.out.r", "terminal.out.w")

_PIPE_PARTS = (_STDIN, _STDIN_SPOOL, Stream.STDOUT.value, Stream.STDERR.value)
_TERMINAL_PARTS = (_MASTER, _STDIN_SPOOL, *_IN, *_OUT)


class Keeper(Protocol):
    """What is needed of `core.pid1.Pid1Client`."""

    async def store(self, name: str, fd: int) -> None: ...
    async def fetch(self, names: Sequence[str]) -> dict[str, int]: ...
    async def drop(self, names: Sequence[str]) -> None: ...
    async def names(self, prefix: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHome:
    """Where streams are kept; `pipe_size` 0 is the kernel's default."""

    keeper: Keeper
    spools: Path
    pipe_size: int = 0
    space: Space = field(default_factory=Space)


PREFIX = "streams/"


def store_prefix(process: ProcessRef) -> str:
    return f"{PREFIX}{process.container_id}/{process.exec_id or '-'}/"


class Streams:
    """The streams of one process: made or adopted, then read and written, then discarded."""

    def __init__(
        self,
        home: StreamHome,
        process: ProcessRef,
        *,
        terminal: bool,
        options: StreamOptions = USUAL_STREAMS,
    ) -> None:
        self.terminal = terminal
        self._home = home
        self._options = options
        self._prefix = store_prefix(process)
        self._directory = home.spools / process.container_id / (process.exec_id or "-")
        self._parts = _TERMINAL_PARTS if terminal else _PIPE_PARTS
        # Descriptors that no pump has taken over, by part; and the process's ends.
        self._ours: dict[str, int] = {}
        self._theirs: list[int] = []
        self._outputs: dict[Stream, OutputPump] = {}
        self._input: InputFeed | None = None
        self._pulse = Pulse()
        self._tasks: set[asyncio.Task[None]] = set()
        self._process_ended = False
        self._marks: dict[Stream, int] = {}
        self._released = False

    @property
    def input_offset(self) -> int:
        """Where the host's next input byte goes."""
        if self._input is not None:
            return self._input.acknowledged
        try:
            return (self._directory / _STDIN).stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def all_read(self) -> bool:
        """Whether every byte of a finished process was given to some reader."""
        return all(pump.ended and pump.spool.all_read for pump in self._outputs.values())

    async def open_pipes(self) -> Stdio:
        """Make pipes and let PID 1 keep ours; the process's ends are in the answer.

        Raises AgentError; whatever was made is left to `discard`.
        """
        stdin, stdout, stderr = (self._pipe() for _ in range(3))
        self._take(_STDIN, stdin[1])
        self._take(Stream.STDOUT.value, stdout[0])
        self._take(Stream.STDERR.value, stderr[0])
        self._theirs = [stdin[0], stdout[1], stderr[1]]
        self._make_spool()
        await self._store_all()
        return Stdio(stdin=stdin[0], stdout=stdout[1], stderr=stderr[1])

    @property
    def pipes(self) -> frozenset[str]:
        """The process's pipes as /proc names them, from `open_pipes` to `begin`."""
        return frozenset(f"pipe:[{os.fstat(fd).st_ino}]" for fd in self._theirs)

    async def open_terminal(self, master: int) -> None:
        """Keep a terminal's master side, which is ours from here on."""
        self._take(_MASTER, master)
        for names in (_IN, _OUT):
            for name, fd in zip(names, self._pipe(), strict=True):
                self._take(name, fd)
        self._make_spool()
        await self._store_all()

    def begin(self, *, input_end: int | None = None) -> None:
        """Close the process's ends, which it has by now, and start to move bytes."""
        self._close_theirs()
        self._start_outputs()
        self._start_input(input_end)

    async def adopt(self, *, input_end: int | None, marks: tuple[int, int] | None = None) -> None:
        """Take the streams over from an agent that is gone; some may have ended by then.

        `marks` is what `ended` returned to that agent, when it came so far.
        """
        if marks is not None:
            self._process_ended = True
            self._marks = dict(zip((Stream.STDOUT, Stream.STDERR), marks, strict=True))
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = await self._home.keeper.fetch([self._prefix + part for part in self._parts])
        for name, fd in found.items():
            self._ours[name.removeprefix(self._prefix)] = fd
        self.begin(input_end=input_end)

    async def ended(self) -> tuple[int, int]:
        """The process has ended: how much standard output and error there was then.

        All of that is in the spools when it returns, but where their tmpfs is full and stays
        so. The streams go on until their own ends or `discard`; the input is over.
        """
        self._process_ended = True
        pumps = tuple(self._outputs.values())
        for pump in pumps:
            pump.process_ended()
        marks = await asyncio.gather(*(pump.drained() for pump in pumps))
        self._marks = dict(zip(self._outputs, marks, strict=True))
        # Last, so that the exit is known hardly later than that.
        if self._input is not None:
            self._input.process_ended()
        self._changed()
        return self._marks.get(Stream.STDOUT, 0), self._marks.get(Stream.STDERR, 0)

    async def output(
        self,
        offsets: Mapping[Stream, int],
        *,
        until: Until = Until.EXIT,
        may_miss: bool = False,
        reader: str = "",
    ) -> AsyncGenerator[OutputChunk | OutputGap, None]:
        """Chunks of the streams named, each from its offset to its end, or to where it was
        when the process ended. A terminal's are all standard output.

        `may_miss` readers hold nobody up; they, and all where bytes are dropped, get gaps.
        `reader` is an id by which a reader is known when it comes back; its place is kept
        for a while. Raises OUT_OF_RANGE (OFFSET_NOT_KEPT with the oldest offset kept).
        """
        with contextlib.ExitStack() as stack:
            readers = [
                stack.enter_context(
                    OutputReader(stream, pump, offset, until=until, may_miss=may_miss, name=reader)
                )
                for stream, offset in offsets.items()
                if (pump := self._outputs.get(stream)) is not None
            ]
            for stream in offsets.keys() - self._outputs.keys():
                yield OutputChunk(stream=stream, offset=0, data=b"", end=True)
            while readers := [each for each in readers if not each.done]:
                idle = True
                for each in readers:
                    if (piece := each.next()) is not None:
                        idle = False
                        yield piece
                        each.taken(piece)
                if idle:
                    await self._pulse.wait()

    def tail(self, stream: Stream, count: int) -> bytes:
        """The last bytes before the process's end, or so far; a terminal's are one stream.

        Fewer when no more are kept.
        """
        pump = self._outputs.get(Stream.STDOUT if self.terminal else stream)
        return pump.tail(count) if pump is not None else b""

    def acknowledge(self, stream: Stream, offset: int, reader: str = "") -> None:
        """A reader has that much of an output stream for good. Raises OUT_OF_RANGE."""
        if (pump := self._outputs.get(stream)) is not None:
            pump.spool.acknowledge(offset, reader)
            pump.resume()

    async def write_input(self, offset: int, data: bytes) -> int:
        return await self._open_input().write(offset, data)

    def check_input_end(self, offset: int) -> None:
        self._open_input().check_end(offset)

    def close_input(self, offset: int) -> None:
        self._open_input().close_at(offset)

    def resize(self, rows: int, columns: int) -> None:
        """Raises WRONG_STATE when the terminal is gone."""
        if _MASTER not in self._ours:
            raise wrong_state("the process has ended, and its terminal with it")
        terminals.set_window_size(self._ours[_MASTER], rows, columns)

    async def settle(self, patience: float) -> None:
        """Wait until all output is in the spools, but not for readers that don't come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not all(pump.settled for pump in self._outputs.values()):
                    await self._pulse.wait()

    async def discard(self) -> None:
        """End all streams and forget them, here, in the store and in the spools.

        Readers at work read on to the end of what is there.
        """
        await self.let_go()
        await self._home.keeper.drop([self._prefix + part for part in self._parts])
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._directory.parent.rmdir()
        self._home.space.freed()

    async def let_go(self) -> None:
        """Close what this agent has open; a later agent can adopt the streams."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_theirs()
        for pump in self._outputs.values():
            pump.close()
        if self._input is not None:
            self._input.close()
        self._close_ours()
        self._pulse.beat()

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self._theirs += ends
        if self._home.pipe_size:
            self._resize(ends[0])
        return ends

    def _resize(self, pipe: int) -> None:
        try:
            splicing.set_pipe_size(pipe, self._home.pipe_size)
        except OSError as error:
            log.warning("a pipe of %d bytes is not possible: %s", self._home.pipe_size, error)

    def _take(self, part: str, fd: int) -> None:
        """`fd` is ours, and never to be waited on."""
        if fd in self._theirs:
            self._theirs.remove(fd)
        os.set_blocking(fd, False)
        self._ours[part] = fd

    def _make_spool(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._ours[_STDIN_SPOOL] = os.open(self._directory / _STDIN, flags, 0o600)
        except OSError as error:
            raise kernel_refused(error, doing="make the spools of a process") from error

    async def _store_all(self) -> None:
        for part, fd in self._ours.items():
            await self._home.keeper.store(self._prefix + part, fd)

    def _start_outputs(self) -> None:
        if self.terminal:
            fds = self._give_up((_MASTER, *_OUT), keep=_MASTER)
            self._add_output(Stream.STDOUT, TerminalSource(*fds) if fds else None)
            return
        for stream in (Stream.STDOUT, Stream.STDERR):
            fds = self._give_up((stream.value,))
            self._add_output(stream, PipeSource(*fds) if fds else None)

    def _add_output(self, stream: Stream, source: Source | None) -> None:
        home = self._home
        try:
            path = self._directory / stream.value
            spool = Spool(path, options=self._options, space=home.space)
        except OSError as error:
            if source is not None:
                source.close()
            raise kernel_refused(error, doing=f"open the spool of {stream}") from error
        mark = self._marks.get(stream)
        pump = OutputPump(spool, source, space=home.space, changed=self._changed, mark=mark)
        self._outputs[stream] = pump
        pump.resume()

    def _start_input(self, end: int | None) -> None:
        sink = self._sink()
        if sink is None:
            return
        self._input = InputFeed(
            self._ours.pop(_STDIN_SPOOL),
            sink,
            window=self._options.window,
            space=self._home.space,
            fed_all=self._input_fed,
        )
        self._input.start(end=end)

    def _sink(self) -> Sink | None:
        if _STDIN_SPOOL not in self._ours:
            return None
        if self.terminal:
            fds = self._give_up((_MASTER, *_IN), keep=_MASTER)
            return TerminalSink(*fds) if fds else None
        fds = self._give_up((_STDIN,))
        return PipeSink(*fds) if fds else None

    def _give_up(self, parts: tuple[str, ...], *, keep: str = "") -> tuple[int, ...]:
        """Hand descriptors over, all or none; `keep` stays ours to close."""
        if not all(part in self._ours for part in parts):
            return ()
        return tuple(self._ours[p] if p == keep else self._ours.pop(p) for p in parts)

    def _open_input(self) -> InputFeed:
        if self._input is None:
            raise wrong_state("the process's input is closed", reason=Reason.INPUT_CLOSED)
        return self._input

    def _changed(self) -> None:
        self._pulse.beat()
        ended = all(pump.ended for pump in self._outputs.values())
        if self._process_ended and ended and not self._released:
            self._released = True
            self._spawn(self._release())

    async def _release(self) -> None:
        """Nothing comes or goes any more: only the spools are still of use."""
        await self._drop(self._parts)
        if self._input is not None:
            self._input.close()
        self._close_ours()

    def _input_fed(self) -> None:
        self._spawn(self._end_input())

    async def _end_input(self) -> None:
        if not self.terminal:
            await self._drop((_STDIN,))
        if self._input is not None:
            self._input.process_ended()

    async def _drop(self, parts: Sequence[str]) -> None:
        for _ in range(_DROP_TRIES):
            try:
                await self._home.keeper.drop([self._prefix + part for part in parts])
            except AgentError as error:
                log.warning("%s: PID 1 still holds %s: %s", self._prefix, parts, error)
            else:
                return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_theirs(self) -> None:
        while self._theirs:
            os.close(self._theirs.pop())

    def _close_ours(self) -> None:
        while self._ours:
            os.close(self._ours.popitem()[1])

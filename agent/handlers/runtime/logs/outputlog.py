"""A process's output in files of the guest: filled by a plain reader of its streams, read later.

The pump is a reader like any other: it begins where its files end, also when an earlier
agent wrote them, so that nothing is there twice and nothing is missing. Files, their
rotation and a full tmpfs: logfiles.py; lines: logrecords.py; reading: logreading.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, Reason, kernel_refused, wrong_state
from agent.core.life import Until
from agent.core.model import OutputChunk, OutputGap, Stream
from agent.handlers.runtime.logs.files import LogFiles, LogSpace, forget, numbers
from agent.handlers.runtime.logs.reading import LogCursor, LogQuery, beginning
from agent.handlers.runtime.logs.records import LogPiece

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from agent.core.life import LogOptions
    from agent.core.model import ProcessExit, ProcessRef
    from agent.core.roots import Roots

__all__ = ["LogPiece", "LogPump", "LogQuery", "LogSpace", "ProcessLogs", "log_directory"]

log = logging.getLogger(__name__)

_SHARED = LogSpace()
"""There is one tmpfs of logs in a guest."""


class ReadableStreams(Protocol):
    """What is needed of `streams.Streams`."""

    terminal: bool

    def output(
        self, offsets: Mapping[Stream, int], *, until: Until, may_miss: bool = False
    ) -> AsyncGenerator[OutputChunk | OutputGap, None]: ...


def log_directory(roots: Roots, ref: ProcessRef) -> Path:
    return roots.logs / ref.container_id / (ref.exec_id or "-")


class LogPump:
    """Writes one process's output into its log, from the process's start to its streams' ends."""

    def __init__(
        self,
        streams: ReadableStreams,
        directory: Path,
        options: LogOptions,
        *,
        space: LogSpace = _SHARED,
    ) -> None:
        self.directory = directory
        self._streams = streams
        self._options = options
        self._space = space
        self._files: LogFiles | None = None
        self._task: asyncio.Task[None] | None = None
        self._listeners: set[asyncio.Event] = set()

    @property
    def ended(self) -> bool:
        """Whether nothing more will be written."""
        return self._task is None or self._task.done()

    def written(self, stream: Stream) -> int:
        """First byte of a stream that is not in the log yet."""
        return self._files.ends.get(stream, 0) if self._files else 0

    def listen(self, news: asyncio.Event) -> None:
        """Have `news` set whenever something was written, and when nothing more will be."""
        self._listeners.add(news)

    def leave(self, news: asyncio.Event) -> None:
        self._listeners.discard(news)

    def start(self) -> None:
        """Go on where the files end. Raises KERNEL_REFUSED when they can't be read."""
        streams = [Stream.STDOUT] if self._streams.terminal else [Stream.STDOUT, Stream.STDERR]
        try:
            self._files = LogFiles(self.directory, self._options, streams, self._space)
        except OSError as error:
            raise kernel_refused(error, doing=f"take over the log {self.directory}") from error
        self._task = asyncio.create_task(self._fill(self._files), name=f"log {self.directory}")
        self._task.add_done_callback(self._over)

    async def stop(self) -> None:
        """Leave it as it is: the next agent goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._files is not None:
            self._files.close()

    def discard(self) -> None:
        """Forget all that was written; readers find the end."""
        if self._task is not None:
            self._task.cancel()
        if self._files is not None:
            self._files.close()
        # Also what an agent before us left, and we did not take over.
        forget(self.directory)
        self._tell()

    async def _fill(self, files: LogFiles) -> None:
        while True:
            try:
                async with aclosing(
                    self._streams.output(dict(files.ends), until=Until.END)
                ) as output:
                    async for chunk in output:
                        self._take(files, chunk)
            except AgentError as error:
                if not _skip_lost(files, error):
                    log.warning("the log %s ends here: %s", self.directory, error)
                    return
            else:
                return

    def _take(self, files: LogFiles, chunk: OutputChunk | OutputGap) -> None:
        if isinstance(chunk, OutputGap):
            files.ends[chunk.stream] = chunk.end
            return
        if chunk.data and chunk.stream in files.ends:
            files.append(
                LogPiece(stream=chunk.stream, offset=chunk.offset, at=time.time(), data=chunk.data)
            )
        self._tell()

    def _tell(self) -> None:
        for news in self._listeners:
            news.set()

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the log %s ends here", self.directory, exc_info=error)
        self._tell()


def _skip_lost(files: LogFiles, error: AgentError) -> bool:
    """While nobody wrote the log the streams gave up what it had not: go on after that."""
    if error.reason is not Reason.OFFSET_NOT_KEPT:
        return False
    stream, oldest = Stream(error.fields["stream"]), int(error.fields["oldest"])
    if files.ends.get(stream, oldest) >= oldest:
        return False
    files.ends[stream] = oldest
    return True


class LoggedProcess(Protocol):
    """What is needed of `process.Process`; `log` is None when none was asked for."""

    log: LogPump | None

    async def wait(self) -> ProcessExit: ...


class LoggedContainer(Protocol):
    """What is needed of `table.Container`."""

    @property
    def processes(self) -> Mapping[str, LoggedProcess]: ...


class Table(Protocol):
    """What is needed of `table.ContainerTable`; both raise for what is not there."""

    def container(self, container_id: str) -> LoggedContainer: ...
    def process(self, ref: ProcessRef) -> LoggedProcess: ...


class ProcessLogs:
    """Logs of the processes of all containers that there are."""

    def __init__(self, table: Table, roots: Roots) -> None:
        self._table = table
        self._roots = roots

    async def logs(self, ref: ProcessRef, query: LogQuery) -> AsyncGenerator[LogPiece, None]:
        """What the process has written, from the oldest that is kept, or as `query` says.

        With `follow` it ends when all is read that was written until the process ended. A
        reader that is slower than the rotation goes on with the oldest kept. Raises
        UNKNOWN_CONTAINER, UNKNOWN_PROCESS, NO_LOG.
        """
        process = self._find(ref)
        directory = log_directory(self._roots, ref)
        # A thread: looking for the last lines may take reading all of it.
        position = await asyncio.to_thread(beginning, directory, query)
        cursor = LogCursor(directory, query, position)
        with _Follower(process if query.follow else None) as follower:
            while True:
                over = follower.over()
                pieces = cursor.more()
                for piece in pieces or ():
                    yield piece
                if pieces is not None:
                    # Let others have a turn: it may be much that is read.
                    await asyncio.sleep(0)
                elif over:
                    return
                else:
                    await follower.told()

    def _find(self, ref: ProcessRef) -> LoggedProcess | None:
        """None for one that was forgotten since its end, when its log is still there."""
        process = self._table.container(ref.container_id).processes.get(ref.exec_id)
        if process is None and numbers(log_directory(self._roots, ref)):
            return None
        process = self._table.process(ref)
        if process.log is None:
            raise wrong_state(
                f"process {ref.container_id}/{ref.exec_id or '-'} was made without a log",
                reason=Reason.NO_LOG,
                hint="ask for one when it is made: StreamOptions.log",
                container=ref.container_id,
                exec=ref.exec_id,
            )
        return process


class _Follower:
    """Knows when a log has all that was written until its process ended."""

    def __init__(self, process: LoggedProcess | None) -> None:
        self._log = process.log if process is not None else None
        self._process = process
        self._news = asyncio.Event()
        self._end: asyncio.Future[ProcessExit] | None = None

    def __enter__(self) -> _Follower:
        if self._process is not None and self._log is not None:
            self._log.listen(self._news)
            self._end = asyncio.ensure_future(self._process.wait())
            self._end.add_done_callback(lambda _: self._news.set())
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None and self._end is not None:
            self._log.leave(self._news)
            self._end.cancel()

    def over(self) -> bool:
        """Ask before looking into the files: what comes after that is told (`told`)."""
        self._news.clear()
        if self._log is None or self._end is None or self._log.ended:
            return True
        if not self._end.done():
            return False
        end, written = self._end.result(), self._log.written
        return written(Stream.STDOUT) >= (end.stdout_bytes or 0) and written(Stream.STDERR) >= (
            end.stderr_bytes or 0
        )

    async def told(self) -> None:
        """Until it is worth looking again."""
        await self._news.wait()

"""A process in a container: its record, its streams, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError
from agent.core.exits import Expectation
from agent.core.life import EndCause
from agent.core.model import ProcessExit, Stream
from agent.handlers.runtime.bundle import read_pid
from agent.handlers.runtime.cgroup import open_member
from agent.handlers.runtime.ends import explain, lost
from agent.handlers.runtime.logs.outputlog import LogPump, log_directory
from agent.handlers.runtime.streams.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.core.pid1 import JournalEntry
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.records import ProcessRecord

log = logging.getLogger(__name__)

LOST_AFTER = 10.0
"""Seconds without an entry in the journal for a process that is gone. PID 1
reads and writes one within a moment, so it is lost then (the journal has an end)."""

# What these do to a process that does not handle them is not its end (signal(7)).
_HARMLESS = {
    *(0, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT),
    *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
}


class Process:
    """One process, from the intent to make it until it is forgotten."""

    def __init__(
        self, context: RuntimeContext, record: ProcessRecord, on_exit: Callable[[Process], None]
    ) -> None:
        self.record = record
        self.streams = Streams(
            context.streams, record.ref, terminal=record.terminal, options=record.streams
        )
        self.log = _log_of(context, record, self.streams)
        self._context = context
        self._on_exit = on_exit
        self._ended = asyncio.Event()
        self._pidfd = -1
        self._following: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self.record.pid

    @property
    def exit(self) -> ProcessExit | None:
        return self.record.exit

    @property
    def is_over(self) -> bool:
        """Whether its exit was told: the journal has it a moment earlier."""
        return self._ended.is_set()

    def save(self) -> None:
        self._context.state.save(self.record.KIND, self.record.key, self.record.to_data())

    def began(self, pid: int) -> None:
        """The runtime has made it: remember its pid, move its streams, await its end."""
        self.record = replace(self.record, pid=pid)
        self.save()
        self.streams.begin()
        if self.log is not None:
            # One of that name may have been there before, and be forgotten but for its log.
            self.log.discard()
            self.log.start()
        self._follow()

    def find_pid(self, pid_file: Path) -> bool:
        """Take the pid from where the runtime wrote it, if it came so far."""
        pid = read_pid(pid_file)
        if pid is None:
            return False
        self.record = replace(self.record, pid=pid)
        self.save()
        return True

    async def adopt(self) -> None:
        """Take over from an agent that is gone; an exit counts also without its streams."""
        end = self.record.exit
        marks = _marks(end)
        try:
            await self.streams.adopt(input_end=self.record.input_end, marks=marks)
            if self.log is not None:
                self.log.start()
        except AgentError as error:
            log.warning("the streams of %s are lost: %s", self.record.key, error)
        if marks is not None or (end is not None and end.cause is EndCause.LOST):
            # All was over, and told.
            self._ended.set()
        if marks is None:
            self._follow()

    async def wait(self) -> ProcessExit:
        """How it ended, or will end; all that it had written can be read by then."""
        await self._ended.wait()
        if self.record.exit is None:
            raise AssertionError("a process that has ended has an exit")
        return self.record.exit

    def tail(self, count: int) -> bytes:
        """The last kept bytes of standard error, or of a terminal's output."""
        stream = Stream.STDOUT if self.record.terminal else Stream.STDERR
        return self.streams.tail(stream, count)

    def note(self, number: int, why: str) -> None:
        """Remember for its end that the agent sends it this signal, whichever way."""
        record = self.record
        if number in _HARMLESS or record.exit is not None or record.sent.get(number) == why:
            return
        self.record = replace(record, sent={**record.sent, number: why})
        try:
            self.save()
        except AgentError as error:
            # It is sent all the same: a full run directory keeps nobody alive.
            log.warning("a signal to %s could not be noted: %s", record.key, error)

    def signal(self, number: int, why: str) -> None:
        """Deliver a signal; to a process that has ended it is delivered to nobody, as
        kill(2) does it to a zombie. Raises OSError."""
        if self._pidfd >= 0:
            self.note(number, why)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close_input(self, offset: int) -> None:
        """The end is saved before it takes effect: a later agent must know of it."""
        if self.record.input_end == offset:
            return
        self.streams.check_input_end(offset)
        if self.record.input_end is None:
            self.record = replace(self.record, input_end=offset)
            self.save()
        self.streams.close_input(offset)

    async def forget(self) -> None:
        """Drop everything of it but its log; whoever still waits for its end gets that of a
        lost one."""
        await self._stop()
        if self.record.pid and not self._ended.is_set():
            self._tell(self.record.exit or lost(time.time()))
        await self.streams.discard()
        self._context.state.delete(self.record.KIND, self.record.key)

    async def let_go(self) -> None:
        """Stop looking after it, without changing anything."""
        await self._stop()
        await self.streams.let_go()

    async def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self.log is not None:
            await self.log.stop()

    def _follow(self) -> None:
        work = self._until_exit() if self.record.exit is None else self._wind_up()
        if self.record.exit is None:
            self._pidfd = open_member(self._context.roots, self.pid, self.record.cgroup)
        self._following = asyncio.create_task(work, name=f"exit of {self.pid}")

    async def _until_exit(self) -> None:
        record = self.record
        expectation = Expectation(pid=record.pid, cgroup=record.cgroup, after=record.after)
        entry = asyncio.ensure_future(self._context.exits.wait(expectation))
        try:
            await self._entry_or_gone(entry)
            await asyncio.wait([entry], timeout=LOST_AFTER)
            if not entry.done():
                log.error("process %d of %s: its exit is lost", record.pid, record.key)
            self._keep(self._explained(entry.result()) if entry.done() else lost(time.time()))
        finally:
            entry.cancel()
            self._close_pidfd()
        await self._wind_up()

    def _explained(self, entry: JournalEntry) -> ProcessExit:
        """What the agent did to it counts when it was that signal that ended it."""
        sent = self.record.sent.get(entry.signal, "")
        killed = entry.signal == signal.SIGKILL
        oom = self._context.oom.kill_of(entry.pid, self.record.cgroup) if killed else None
        return explain(entry, sent=sent, oom=oom)

    async def _entry_or_gone(self, entry: asyncio.Future[Any]) -> None:
        """Return when the journal has it, or when the kernel says that the process is gone."""
        if self._pidfd < 0:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self._pidfd, gone.set)
        kernel = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait([entry, kernel], return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self._pidfd)
            kernel.cancel()

    async def _wind_up(self) -> None:
        """It has ended: all that it wrote comes into the spools, and then everybody is told."""
        end = self.record.exit
        if end is None:
            raise AssertionError("a process that has ended has an exit")
        stdout, stderr = await self.streams.ended()
        if self._ended.is_set():
            return
        if end.cause is not EndCause.LOST:
            end = replace(end, stdout_bytes=stdout, stderr_bytes=stderr)
        self._tell(end)

    def _tell(self, end: ProcessExit) -> None:
        self._keep(end)
        self._ended.set()
        self._on_exit(self)

    def _keep(self, end: ProcessExit) -> None:
        self.record = replace(self.record, exit=end)
        try:
            self.save()
        except AgentError as error:
            # The journal still has it for the next agent.
            log.warning("the exit of %s could not be saved: %s", self.record.key, error)

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _marks(end: ProcessExit | None) -> tuple[int, int] | None:
    """Where its output ended, when an earlier agent found out."""
    if end is None or end.stdout_bytes is None or end.stderr_bytes is None:
        return None
    return end.stdout_bytes, end.stderr_bytes


def _log_of(context: RuntimeContext, record: ProcessRecord, streams: Streams) -> LogPump | None:
    options = record.streams.log
    if options is None:
        return None
    return LogPump(streams, log_directory(context.roots, record.ref), options)

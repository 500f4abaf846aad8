"""A process in a container: its record, its streams, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError
from agent.core.exits import Expectation
from agent.core.model import ProcessExit
from agent.handlers.runtime.bundle import read_pid
from agent.handlers.runtime.cgroup import open_member
from agent.handlers.runtime.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.records import ProcessRecord

log = logging.getLogger(__name__)

LOST_AFTER = 10.0
"""Seconds without an entry in the journal for a process that is gone. PID 1
reads and writes one within a moment, so it is lost then (the journal has an end)."""

LOST_CODE = 255
"""The status of a process whose own was lost."""


class Process:
    """One process, from the intent to make it until it is forgotten."""

    def __init__(
        self, context: RuntimeContext, record: ProcessRecord, on_exit: Callable[[Process], None]
    ) -> None:
        self.record = record
        self.streams = Streams(context.streams, record.ref, terminal=record.terminal)
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

    def save(self) -> None:
        self._context.state.save(self.record.KIND, self.record.key, self.record.to_data())

    def began(self, pid: int) -> None:
        """The runtime has made it: remember its pid, move its streams, await its end."""
        self.record = replace(self.record, pid=pid)
        self.save()
        self.streams.begin()
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
        try:
            await self.streams.adopt(input_end=self.record.input_end)
        except AgentError as error:
            log.warning("the streams of %s are lost: %s", self.record.key, error)
        if self.record.exit is not None:
            self.streams.process_ended()
            self._ended.set()
        else:
            self._follow()

    async def wait(self) -> ProcessExit:
        """How it ended, or will end."""
        await self._ended.wait()
        if self.record.exit is None:
            raise AssertionError("a process that has ended has an exit")
        return self.record.exit

    def signal(self, number: int) -> None:
        """Deliver a signal; to a process that has ended it is delivered to nobody, as
        kill(2) does it to a zombie. Raises OSError."""
        if self._pidfd >= 0:
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
        """Drop everything of it; whoever still waits for its end gets that of a lost one."""
        await self._stop_following()
        if self.record.pid and self.record.exit is None:
            self._finish(ProcessExit(code=LOST_CODE))
        await self.streams.discard()
        self._context.state.delete(self.record.KIND, self.record.key)

    async def let_go(self) -> None:
        """Stop looking after it, without changing anything."""
        await self._stop_following()
        await self.streams.let_go()

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    def _follow(self) -> None:
        self._pidfd = open_member(self._context.roots, self.pid, self.record.cgroup)
        self._following = asyncio.create_task(self._until_exit(), name=f"exit of {self.pid}")

    async def _until_exit(self) -> None:
        record = self.record
        expectation = Expectation(pid=record.pid, cgroup=record.cgroup, after=record.after)
        entry = asyncio.ensure_future(self._context.exits.wait(expectation))
        try:
            await self._entry_or_gone(entry)
            await asyncio.wait([entry], timeout=LOST_AFTER)
            if not entry.done():
                log.error("process %d of %s: its exit is lost", record.pid, record.key)
                self._finish(ProcessExit(code=LOST_CODE))
                return
            found = entry.result()
            self._finish(ProcessExit(code=found.code, signal=found.signal, at=found.at))
        finally:
            entry.cancel()
            self._close_pidfd()

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

    def _finish(self, end: ProcessExit) -> None:
        self.record = replace(self.record, exit=end)
        try:
            self.save()
        except AgentError as error:
            # The journal still has it for the next agent.
            log.warning("the exit of %s could not be saved: %s", self.record.key, error)
        self.streams.process_ended()
        self._ended.set()
        self._on_exit(self)

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

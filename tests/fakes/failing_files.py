"""A seam at which the n-th call of an attachment fails, in each way in which calls can fail.

Counted are the calls of file-system workers, programs, pseudo files of devices and, by
themselves, the writes of the state.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from agent.core.commands import CommandResult
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason, exhausted, timed_out
from agent.core.state import StateStore
from agent.linux.mountcalls import from_message
from agent.linux.mounting import UnmountFlag
from tests.fakes.inline_workers import InlineWorkers
from tests.fakes.storages import FakeFileCalls

T = TypeVar("T")


class Fault(StrEnum):
    """REFUSED: the kernel says no. LATE: the deadline passes before it does anything.
    DONE_LATE: it does it, the deadline passes all the same. KILLED: it does it, and the
    worker is killed before it can say so. LEFT, DONE_LEFT: the caller leaves before, after.
    DEAD, DONE_DEAD: the agent itself dies before, after: nothing is taken back.
    """

    REFUSED = "refused"
    LATE = "late"
    DONE_LATE = "done late"
    KILLED = "killed"
    LEFT = "left"
    DONE_LEFT = "done, left"
    DEAD = "dead"
    DONE_DEAD = "done, dead"

    @property
    def takes_effect(self) -> bool:
        return self in (Fault.DONE_LATE, Fault.KILLED, Fault.DONE_LEFT, Fault.DONE_DEAD)


class Seam:
    """Counts calls from 1; the call number `at` fails, 0 for none; with `on` all after it too."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.at = 0
        self.on = False
        self.struck = False
        self.fault = Fault.REFUSED
        self.errno = errno.EIO
        self.reached = asyncio.Event()

    def arm(
        self, at: int, fault: Fault = Fault.REFUSED, number: int = errno.EIO, *, on: bool = False
    ) -> None:
        self.calls.clear()
        self.reached.clear()
        self.struck = False
        self.on = on
        self.at, self.fault, self.errno = at, fault, number

    async def make(self, name: str, real: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(name)
        strikes = len(self.calls) == self.at or (self.struck and self.on)
        if not strikes:
            return await real()
        self.struck = True
        if self.fault.takes_effect:
            # A call that had something to refuse is cut off all the same.
            with suppress(OSError):
                await real()
        raise await self._failure(name)

    async def _failure(self, name: str) -> Exception:
        match self.fault:
            case Fault.REFUSED:
                return OSError(self.errno, f"{name}: {os.strerror(self.errno)}", "the object")
            case Fault.LATE | Fault.DONE_LATE:
                return timed_out(f"{name} did not come back from the kernel in time")
            case Fault.KILLED:
                why = f"{name}: the file-system worker ended in the middle of it"
                return AgentError(why, code=Code.UNAVAILABLE, reason=Reason.KERNEL_REFUSED)
            case _:
                self.reached.set()
                await asyncio.Event().wait()
                raise AssertionError("nobody sets it")


class FailingFiles(InlineWorkers):
    """Mounts are lines of a table, calls below the test's own folder are made for real."""

    def __init__(self, seam: Seam, kernel: FakeFileCalls) -> None:
        super().__init__()
        self.kernel = kernel
        self.addresses = ["192.0.2.7"]
        self._seam = seam

    async def _run(self, call: str, obj: str, deadline: Deadline, **arguments: Any) -> Any:
        try:
            return await self._seam.make(call, lambda: self._do(call, obj, deadline, arguments))
        except OSError as error:
            if call != "resolve":
                raise
            # `agent.linux.resolver` has words for all.
            return {"addresses": [], "failure": error.strerror}

    async def _do(self, call: str, obj: str, deadline: Deadline, arguments: dict[str, Any]) -> Any:
        match call:
            case "mount":
                plan = from_message(arguments["plan"])
                await self.kernel.mount(plan, arguments["target"], deadline)
            case "unmount":
                flags = UnmountFlag(arguments["flags"])
                await self.kernel.unmount(arguments["target"], flags, deadline)
            case "refresh_copy":
                return [True, 1, []]
            case "apply_fs_group" | "know_fs_type" | "clear_disk":
                return 0
            case "read_disk":
                return bytes(arguments["size"]).hex()
            case "written_sector":
                return -1
            case "resolve":
                return {"addresses": self.addresses, "failure": ""}
            case _:
                return await super()._run(call, obj, deadline, **arguments)
        return None


class FailingPrograms:
    """blkid and mkfs: `run` stands for that of `agent.core.commands`."""

    def __init__(self, seam: Seam) -> None:
        self.formatted: dict[str, str] = {}
        self._seam = seam

    async def run(self, argv: Sequence[str], **_: object) -> CommandResult:
        try:
            return await self._seam.make(argv[0], lambda: self._do(argv))
        except OSError as error:
            return _ended(argv, 1, error.strerror or "")

    async def _do(self, argv: Sequence[str]) -> CommandResult:
        device = argv[-1]
        if argv[0] == "blkid":
            found = self.formatted.get(device)
            return _ended(argv, 0 if found else 2, out=f"TYPE={found}\n" if found else "")
        self.formatted[device] = argv[0].removeprefix("mkfs.")
        return _ended(argv, 0)


def _ended(argv: Sequence[str], code: int, said: str = "", out: str = "") -> CommandResult:
    return CommandResult(argv=tuple(argv), code=code, stdout=out.encode(), stderr_tail=said)


class FailingState(StateStore):
    """The run directory is full at the write number `full_at`, counted from 1."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.writes: list[str] = []
        self.full_at = 0

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None:
        self.writes.append(f"{kind}/{key}")
        if len(self.writes) == self.full_at:
            raise exhausted("the run directory is full", reason=Reason.NO_SPACE)
        super().save(kind, key, data)

"""A VM that runs: its parts together, from boot to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.progress import Phase, Progress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from innkeeper.shim.guest import Guest
    from innkeeper.shim.helpers import Helpers
    from innkeeper.shim.link import Link
    from innkeeper.shim.machine import MachineShape
    from innkeeper.shim.plug import Plugger
    from innkeeper.shim.qemu import Qemu
    from innkeeper.shim.table import Table

# Above the sum of all bounds that PID 1 of the guest has on its way down, or the machine
# would be ended while disks are written.
DEFAULT_GRACE = 30.0
LONGEST_GRACE = 600.0

# How PID 1 begins what it says on the console.
_PID1_MARK = "innkeeper: "
# The last that it says: disks are written and let go, the kernel is to end the machine.
_ALL_STOPPED = f"{_PID1_MARK}everything is stopped"

_log = logging.getLogger(__name__)


def check_grace(seconds: float) -> float:
    """A request's grace: 0 is the default; raises BAD_FIELD."""
    if not (math.isfinite(seconds) and 0 <= seconds <= LONGEST_GRACE):
        raise ShimError(
            Reason.BAD_FIELD,
            f"grace_seconds {seconds}: not possible",
            hint=f"0 (for {DEFAULT_GRACE:g}) to {LONGEST_GRACE:g}",
            fields={"field": "grace_seconds"},
        )
    return seconds or DEFAULT_GRACE


class VmState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(slots=True, kw_only=True)
class Parts:
    """What a running VM is made of."""

    shape: MachineShape
    qemu: Qemu
    link: Link
    guest: Guest
    table: Table
    plugger: Plugger
    helpers: Helpers


class RunningVm:
    """One VM; see `daemon.py` for the order in which its parts come and go."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.state = VmState.STARTING
        self.first_answer_micros = 0
        self.why_ended = ""
        """Why `stop` had to end QEMU; empty while it did not."""
        self._answered = asyncio.Event()
        self._stopping: asyncio.Task[bool] | None = None
        # And did not end by itself before, of which there is more to tell.
        self._was_stopped = False

    async def boot(self, limit: float, report: Callable[[Progress], None]) -> None:
        """Returns with the agent's first answer; raises BOOT_FAILED, with the console's tail."""
        self._report_console(report)
        answer = asyncio.create_task(
            self.parts.guest.first_answer(self.parts.qemu.console.activity)
        )
        gone = asyncio.create_task(self.parts.qemu.gone.wait())
        try:
            await asyncio.wait({answer, gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() or gone.done():
                raise self._boot_failed(limit)
            await answer
        finally:
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)
        self._note_answer(report)

    @property
    def is_stopping(self) -> bool:
        return self._stopping is not None

    async def until_answered(self, limit: float) -> None:
        """Plugging has to wait for it: a guest that still scans its buses takes a
        device that comes meanwhile for one that is to be removed.

        Raises AGENT_AWAY after `limit` seconds.
        """
        try:
            async with asyncio.timeout(limit):
                await self._answered.wait()
        except TimeoutError:
            message = f"VM {self.parts.shape.name}: has not booted within {limit:g} s"
            raise ShimError(Reason.AGENT_AWAY, message) from None

    async def why_gone(self) -> ShimError | None:
        """Why calls to the guest fail, when it is because QEMU has ended."""
        if self._was_stopped:
            return ShimError(Reason.STOPPING, f"VM {self.parts.shape.name}: was stopped")
        if await self.parts.qemu.is_alive():
            return None
        await self.parts.qemu.gone.wait()
        return self.parts.qemu.explain(f"VM {self.parts.shape.name}")

    async def stop(self, grace: float) -> bool:
        """Powers the guest off, within `grace` seconds, else ends QEMU.

        True when the guest did it by itself. It goes on when the caller leaves,
        and who comes second waits for the first.
        """
        if self._stopping is None:
            self.state = VmState.STOPPING
            self._was_stopped = not self.parts.qemu.gone.is_set()
            self._stopping = asyncio.create_task(self._stop(grace))
        return await asyncio.shield(self._stopping)

    def require_running(self) -> None:
        """Raises STOPPING."""
        if self.state is VmState.STOPPING:
            raise ShimError(Reason.STOPPING, f"VM {self.parts.shape.name}: is being stopped")

    async def _stop(self, grace: float) -> bool:
        if self.parts.qemu.gone.is_set() or not self._answered.is_set():
            return await self._end(0, "its agent had not answered yet")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        why = await self._ask_to_power_off(grace)
        if why:
            return await self._end(0, why)
        left = max(deadline - loop.time(), 0)
        async with self._without_helpers_at_the_end():
            return await self._end(left, f"it did not power off within {grace:g} s")

    @contextlib.asynccontextmanager
    async def _without_helpers_at_the_end(self) -> AsyncIterator[None]:
        """Within the block they end once nothing in the guest needs them: the kernel resets
        its devices as the last act, and QEMU waits without end for a helper that hangs."""
        down = asyncio.Event()

        def note(line: str) -> None:
            if _ALL_STOPPED in line:
                down.set()

        async def end() -> None:
            await down.wait()
            await self.parts.helpers.close()

        console = self.parts.qemu.console
        console.on_line(note)
        for line in console.tail():
            note(line)
        ending = asyncio.create_task(end())
        try:
            yield
        finally:
            if not down.is_set():
                ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    async def _ask_to_power_off(self, grace: float) -> str:
        """Why the guest couldn't be asked; empty when it was, or is gone already.

        An agent that is away comes back within seconds, and only it can have the
        guest write out its disks: it is asked until it is there.
        """
        qemu = self.parts.qemu
        asked = asyncio.create_task(self.parts.guest.power_off(qemu.console.activity))
        gone = asyncio.create_task(qemu.gone.wait())
        try:
            await asyncio.wait({asked, gone}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                await asked
        except ShimError as error:
            _log.warning("the guest does not power off: %s", error)
            return f"its agent refused to power it off ({error.message})"
        finally:
            for task in (asked, gone):
                task.cancel()
            await asyncio.gather(asked, gone, return_exceptions=True)
        away = asked.cancelled() and not qemu.gone.is_set()
        return f"its agent was away for the {grace:g} s of grace" if away else ""

    async def _end(self, grace: float, why: str) -> bool:
        by_itself = await self.parts.qemu.end(grace)
        if not by_itself:
            self.why_ended = why
        return by_itself

    def _note_answer(self, report: Callable[[Progress], None]) -> None:
        seconds = self.parts.qemu.seconds
        self.first_answer_micros = round(seconds * 1e6)
        if self.state is VmState.STARTING:
            self.state = VmState.RUNNING
        self._answered.set()
        report(Progress(phase=Phase.AGENT, seconds=seconds, text="the agent answers"))

    def _boot_failed(self, limit: float) -> ShimError:
        qemu = self.parts.qemu
        name = self.parts.shape.name
        why = "ended while it booted"
        if not qemu.gone.is_set():
            why = f"its agent did not answer within {limit:g} s of QEMU's start"
        told = qemu.explain(f"VM {name}: {why}")
        return ShimError(Reason.BOOT_FAILED, told.message)

    def _report_console(self, report: Callable[[Progress], None]) -> None:
        """The console's first line is the kernel's; PID 1's lines have its mark."""
        qemu = self.parts.qemu
        seen: set[Phase] = set()

        def note(line: str) -> None:
            phase = Phase.PID1 if _PID1_MARK in line else Phase.KERNEL
            if phase not in seen and Phase.PID1 not in seen:
                seen.add(phase)
                report(Progress(phase=phase, seconds=qemu.seconds, text=line))

        for line in qemu.console.tail():
            note(line)
        qemu.console.on_line(note)

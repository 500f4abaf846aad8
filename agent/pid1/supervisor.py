"""PID 1 itself: boot, then a loop that ends only with the machine.

If PID 1 ends, the kernel panics. So nothing gets out of `run`: an error in one
event is said and the loop goes on, too many of them or a failed boot take the
orderly way down, and an error on that way leads to the shortest one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from agent.linux import pidfd, signals
from agent.pid1.console import Console, boottime
from agent.pid1.journal import Journal
from agent.pid1.layout import PowerAction, Role
from agent.pid1.loop import READ, Loop
from agent.pid1.reaper import Reaper
from agent.pid1.requests import Requests
from agent.pid1.server import Server
from agent.pid1.services import Services
from agent.pid1.shutdown import Shutdown
from agent.pid1.spawn import ENVIRONMENT, spawn, wait_for
from agent.pid1.store import Store

if TYPE_CHECKING:
    from agent.linux.fdpass import Message
    from agent.pid1.layout import Layout

# SIGINT is what the kernel makes of ctrl-alt-del once that is ours.
_POWER_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGPWR)
_SIGNALS = (signal.SIGCHLD, *_POWER_SIGNALS)
_ERRORS_LIMIT = 100
_ERRORS_WINDOW = 10.0
_TRACE_TAIL = 1500


def run(layout: Layout, console: Console, *, started: float) -> NoReturn:
    """Be PID 1, since `started` (CLOCK_BOOTTIME), until `layout.end` ends the machine."""
    action = PowerAction.OFF
    try:
        # Blocked signals are kept for us; PID 1 loses others without a handler.
        signals.block(_SIGNALS)
        action = Supervisor(layout, console, started).run()
    except BaseException as error:  # noqa: BLE001 - the outermost net
        console(f"PID 1 failed, the machine goes down: {_trace(error)}")
        _shortest_way_down(layout, console)
    _end(layout, console, action)


class Supervisor:
    """The parts of PID 1, and what happens in which order."""

    def __init__(self, layout: Layout, console: Console, started: float) -> None:
        self._layout = layout
        self._say = console
        self._phases = {"pid1_start": round(started, 3)}
        self._reached("imported")
        self._loop = Loop(self._on_error)
        self._store = Store(limit=layout.store_limit)
        self._errors: list[float] = []
        self._trouble: str | None = None

    def run(self) -> PowerAction:
        """Boot and serve; the way the machine is to end once all is stopped."""
        failure = self._run_steps()
        self._assemble()
        if failure is None:
            failure = self._start()
        if failure is not None:
            self._shutdown.begin(PowerAction.OFF, failure)
            self._shutdown.advance()
        while not self._shutdown.finished:
            try:
                self._loop.run_once()
            except Exception as error:  # noqa: BLE001 - PID 1 outlives the bugs of its parts
                self._on_error(error)
            self._shutdown.advance()
        return self._shutdown.action or PowerAction.OFF

    def _run_steps(self) -> str | None:
        """The boot's steps; why it failed, or None."""
        for step in self._layout.steps:
            try:
                step.action(self._say)
            except Exception as error:  # noqa: BLE001 - a boot ends in order or goes on
                if step.required:
                    return f"boot failed at {step.name}: {_trace(error)}"
                self._say(f"warning: {step.name}: {error}")
            self._reached(step.name)
        return None

    def _assemble(self) -> None:
        layout, loop = self._layout, self._loop
        self._journal = Journal(layout.journal, limit=layout.journal_limit)
        self._reaper = Reaper(layout.proc, self._journal)
        self._services = Services(loop, self._reaper, self._say, cgroup=layout.cgroup)
        self._shutdown = Shutdown(layout, loop, self._reaper, self._services, self._say)
        requests = Requests(store=self._store, journal=self._journal, status=self._status)
        self._server = Server(
            loop,
            requests,
            self._journal,
            self._say,
            lambda action: self._shutdown.begin(action, "asked for over the socket"),
        )
        fd = signals.signalfd(_SIGNALS)
        loop.watch(fd, READ, lambda _events: self._on_signals(fd))

    def _start(self) -> str | None:
        """Open the socket, then start the services, which need it; why that failed, or None."""
        try:
            self._server.listen(self._layout.socket)
            self._services.start_all(self._layout.services(self._say))
        except Exception as error:  # noqa: BLE001 - a boot ends in order or goes on
            return f"boot failed at the services: {_trace(error)}"
        self._reached("agent_spawned")
        self._say(f"booted: {self._boot_line()}")
        return None

    def _reached(self, phase: str) -> None:
        self._phases[phase] = round(boottime(), 3)

    def _boot_line(self) -> str:
        times = ", ".join(f"{name} {at:.3f}" for name, at in self._phases.items())
        pids = ", ".join(f"{name} {pid}" for name, pid in self._services.pids.items())
        return f"{times} s after the kernel; pids: {pids or 'none'}"

    def _status(self) -> Message:
        return {
            "boot": self._phases,
            "restarts": {role.value: 0 for role in (Role.AGENT, Role.RELAY)}
            | self._services.restarts,
            "stored": len(self._store),
        }

    def _on_signals(self, fd: int) -> None:
        while (info := signals.read_siginfo(fd)) is not None:
            if info.number == signal.SIGCHLD:
                self._collect()
            else:
                name = signal.Signals(info.number).name
                self._shutdown.begin(PowerAction.OFF, f"{name} from pid {info.pid}")

    def _collect(self) -> None:
        if self._reaper.collect():
            self._loop.call_after(0, self._collect)
        self._server.publish()
        trouble = str(self._journal.trouble) if self._journal.trouble else None
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(f"exit journal: {trouble or 'the file is complete again'}")

    def _on_error(self, error: Exception) -> None:
        now = time.monotonic()
        self._errors = [at for at in self._errors if at > now - _ERRORS_WINDOW] + [now]
        if len(self._errors) <= _ERRORS_LIMIT:
            self._say(f"error, going on: {_trace(error)}")
        elif self._shutdown.action is None:
            self._shutdown.begin(PowerAction.OFF, f"more than {_ERRORS_LIMIT} errors at once")


def _trace(error: BaseException) -> str:
    # Its import is slow, and rarely needed.
    import traceback

    return "".join(traceback.format_exception(error)).strip()[-_TRACE_TAIL:]


def _shortest_way_down(layout: Layout, console: Console) -> None:
    """Without the loop, which has failed: kill, sync, no more."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        deadline = time.monotonic() + layout.bounds.sync
        syncs = [spawn((*layout.sync, disk), ENVIRONMENT) for disk in layout.leaving().disks]
        for pid in syncs:
            wait_for(pid, deadline - time.monotonic())
    except BaseException as error:  # noqa: BLE001 - what is left is the end itself
        console(f"on the way down: {error!r}")


def _end(layout: Layout, console: Console, action: PowerAction) -> NoReturn:
    console(f"everything is stopped: {action}")
    while True:
        try:
            layout.end(action)
        except BaseException as error:  # noqa: BLE001 - PID 1 never exits
            console(f"{action} failed: {error}; PID 1 stays and reaps")
        _reap_for(_ERRORS_WINDOW)


def _reap_for(seconds: float) -> None:
    """A machine that cannot be switched off should at least not fill with zombies."""
    with contextlib.suppress(BaseException):
        select.select([], [], [], seconds)
        while (child := pidfd.peek_exit()) is not None:
            pidfd.reap(child.pid)

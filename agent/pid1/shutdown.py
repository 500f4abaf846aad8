"""The way down: everything stopped in order, synced, unmounted; each step with a bound.

It runs inside the loop, so that PID 1 reaps and answers until the end: the
agent, while it stops, still asks for exits and descriptors. A step that fails
or takes too long is said and followed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from agent.linux import pidfd
from agent.pid1 import cgroups
from agent.pid1.layout import Role
from agent.pid1.spawn import ENVIRONMENT, spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from agent.linux.pidfd import ChildExit
    from agent.pid1.console import Voice
    from agent.pid1.layout import Layout, PowerAction
    from agent.pid1.leaving import Leaving
    from agent.pid1.loop import Loop
    from agent.pid1.reaper import Reaper
    from agent.pid1.services import Services


class Until(NamedTuple):
    """What a step waits for, and for how many seconds at most."""

    done: Callable[[], bool]
    seconds: float


if TYPE_CHECKING:
    # A step is told whether what it waited for came true in time.
    Steps = Generator[Until, bool, None]


class Shutdown:
    """`begin` once, `advance` after each round of the loop, until `finished`."""

    def __init__(
        self, layout: Layout, loop: Loop, reaper: Reaper, services: Services, say: Voice
    ) -> None:
        self._layout = layout
        self._loop = loop
        self._reaper = reaper
        self._services = services
        self._say = say
        self._left: list[Steps] = []
        self._until: Until | None = None
        self._deadline = 0.0
        self._kill_left = layout.bounds.kill
        self.action: PowerAction | None = None
        self.finished = False

    def begin(self, action: PowerAction, why: str) -> None:
        """Start the way down; a second request changes nothing."""
        if self.action is not None:
            return
        self.action = action
        self._say(f"{why}: stopping everything, then {action}")
        self._services.stay_down()
        self._left = [
            self._stop(Role.EXTRA, self._layout.bounds.extra),
            self._stop(Role.AGENT, self._layout.bounds.agent),
            self._kill_groups(),
            # Until now, so that the answer to whoever asked for this gets out.
            self._stop(Role.RELAY, self._layout.bounds.relay),
            self._kill_rest(),
            self._leave(),
        ]
        self._resume(None)

    def advance(self) -> None:
        """Go on as far as the steps have what they wait for."""
        while self._until is not None:
            met = self._until.done()
            if not met and time.monotonic() < self._deadline:
                return
            self._resume(met)

    def _resume(self, met: bool | None) -> None:  # noqa: FBT001 - what a generator is sent
        """Run the current step to its next wait, and the ones after it where it ends."""
        self._until = None
        while self._left and self._until is None:
            try:
                self._until = next(self._left[0]) if met is None else self._left[0].send(met)
            except StopIteration:
                self._left.pop(0)
            except Exception as error:  # noqa: BLE001 - the steps after it still matter
                self._say(f"shutdown: {error!r}")
                self._left.pop(0)
            met = None
        if self._until is None:
            self.finished = True
            return
        self._deadline = time.monotonic() + self._until.seconds
        self._loop.call_after(self._until.seconds, lambda: None)

    def _stop(self, role: Role, seconds: float) -> Steps:
        def gone() -> bool:
            return not self._services.running(role)

        self._services.signal(role, signal.SIGTERM)
        # One that is stopped would not see it.
        self._services.signal(role, signal.SIGCONT)
        if (yield Until(gone, seconds)):
            return
        names = ", ".join(self._services.signal(role, signal.SIGKILL))
        self._say(f"{names} did not stop within {seconds:g} s: killed")
        yield from self._killed(gone)

    def _kill_groups(self) -> Steps:
        """Containers and the agent's workers: one that hangs must not be waited for twice."""
        root = self._layout.cgroup
        groups = [f"{root}/{name}" for name in ("agent", "pods")] if root is not None else []
        groups = [group for group in groups if cgroups.populated(group)]
        for group in groups:
            cgroups.kill_all(group)
        if not (yield from self._killed(lambda: not any(map(cgroups.populated, groups)))):
            left = ", ".join(filter(cgroups.populated, groups))
            self._say(f"processes in {left} outlived SIGKILL")

    def _killed(self, gone: Callable[[], bool]) -> Generator[Until, bool, bool]:
        """All that was killed has one time together."""
        began = time.monotonic()
        met = yield Until(gone, self._kill_left)
        self._kill_left = max(0.0, self._kill_left - (time.monotonic() - began))
        return met

    def _kill_rest(self) -> Steps:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        seconds = self._layout.bounds.rest
        if not (yield Until(lambda: not pidfd.has_children(), seconds)):
            self._say(f"processes outlived SIGKILL for {seconds:g} s")

    def _leave(self) -> Steps:
        """By children, as many at once as can be: a dead disk or server holds up no other."""
        leaving = self._layout.leaving()
        unwritten = yield from self._sync(leaving)
        yield from self._unmount(leaving, unwritten)
        yield from self._detach(leaving)

    def _sync(self, leaving: Leaving) -> Generator[Until, bool, set[str]]:
        """Returns those that hang."""
        seconds = self._layout.bounds.sync
        ends = self._run_each(self._layout.sync, leaving.disks)
        yield Until(lambda: all(ends.values()), seconds)
        for target, ended in ends.items():
            if not ended:
                self._say(f"sync of {target} had not ended after {seconds:g} s: going on")
            elif ended[0].code:
                self._say(f"sync of {target} ended with {ended[0].code}")
        return {target for target, ended in ends.items() if not ended}

    def _unmount(self, leaving: Leaving, unwritten: set[str]) -> Steps:
        deadline = time.monotonic() + self._layout.bounds.unmount
        for wave in leaving.waves:
            ends = self._run_each(self._layout.unmount, tuple(target for target, _ in wave))
            # What hangs gets its chance, but no other waits for it.
            awaited = [ends[target] for target, disk in wave if disk not in unwritten]
            yield Until(partial(all, awaited), max(0.0, deadline - time.monotonic()))
            for target, ended in ends.items():
                if not ended:
                    self._say(f"{target} could not be unmounted in time")
                elif ended[0].code:
                    self._say(f"{target} stays mounted: unmounting ended with {ended[0].code}")

    def _detach(self, leaving: Leaving) -> Steps:
        seconds = self._layout.bounds.served
        ends = self._run_each(self._layout.detach, leaving.served)
        yield Until(lambda: all(ends.values()), seconds)
        for target, ended in ends.items():
            if not ended:
                self._say(f"the server of {target} did not answer within {seconds:g} s: left")

    def _run_each(
        self, command: tuple[str, ...], targets: tuple[str, ...]
    ) -> dict[str, list[ChildExit]]:
        """Start the command for each; its exit appears in the list."""
        ends: dict[str, list[ChildExit]] = {target: [] for target in targets}
        for target, ended in ends.items():
            try:
                self._reaper.expect(spawn((*command, target), ENVIRONMENT), ended.append)
            except OSError as error:
                self._say(f"shutdown: {command[0]} for {target}: {error}")
                ended.append(pidfd.ChildExit(0, 127, 0))
        return ends

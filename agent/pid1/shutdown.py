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
            self._kill_group("agent"),
            self._kill_group("pods"),
            # Until now, so that the answer to whoever asked for this gets out.
            self._stop(Role.RELAY, self._layout.bounds.relay),
            self._kill_rest(),
            self._sync(),
            self._unmount(),
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
        yield Until(gone, self._layout.bounds.kill)

    def _kill_group(self, name: str) -> Steps:
        group = f"{self._layout.cgroup}/{name}"
        if self._layout.cgroup is None or not cgroups.populated(group):
            return
        cgroups.kill_all(group)
        seconds = self._layout.bounds.kill
        if not (yield Until(lambda: not cgroups.populated(group), seconds)):
            self._say(f"processes in {group} outlived SIGKILL for {seconds:g} s")

    def _kill_rest(self) -> Steps:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        seconds = self._layout.bounds.kill
        if not (yield Until(lambda: not pidfd.has_children(), seconds)):
            self._say(f"processes outlived SIGKILL for {seconds:g} s")

    def _sync(self) -> Steps:
        """By a child, as is unmounting: a dead disk or server must not hold up the rest."""
        seconds = self._layout.bounds.sync
        ended = self._run(self._layout.sync)
        if not (yield Until(partial(bool, ended), seconds)):
            self._say(f"sync had not ended after {seconds:g} s: going on without it")

    def _unmount(self) -> Steps:
        seconds = self._layout.bounds.unmount
        for target in self._layout.mount_points():
            ended = self._run((*self._layout.unmount, target))
            if not (yield Until(partial(bool, ended), seconds)):
                self._say(f"{target} could not be unmounted within {seconds:g} s")
            elif ended[0].code:
                self._say(f"{target} stays mounted: unmounting ended with {ended[0].code}")

    def _run(self, argv: tuple[str, ...]) -> list[ChildExit]:
        """Start a program; its exit appears in the list."""
        ended: list[ChildExit] = []
        self._reaper.expect(spawn(argv, ENVIRONMENT), ended.append)
        return ended

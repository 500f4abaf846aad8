"""Drivers without udev: a device that has none gets its module loaded.

The hotplug board feeds two ways in: the kernel's `add` events, and the devices
that a request waits for (they may have come before anybody listened). What was
there at boot PID 1 has seen to. The kernel announces a device just before it looks
for a driver itself, so a device is looked at again a moment later, and modprobe
runs only for one that still has none: once per alias, one after the other, in the
background. What came of it is in `SysfsTree.driver_notes`, as evidence for errors.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.core import commands
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.linux import modalias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.commands import CommandResult
    from agent.core.tree import SysfsTree
    from agent.linux.uevents import Uevent

log = logging.getLogger(__name__)

GRACE = 0.1
"""Seconds for a driver that is there already. Under emulation it takes up to 50 ms, and
modprobe would cost as much again."""

WITHIN = 30.0
"""Seconds for modprobe: a driver may wait for its device's firmware."""


class Run(Protocol):
    """What is needed of `core.commands.run`."""

    async def __call__(
        self, argv: Sequence[str], *, deadline: Deadline, check: bool
    ) -> CommandResult: ...


class Drivers:
    """Loads modules for devices of a tree, one at a time, until it is closed."""

    def __init__(self, tree: SysfsTree, *, run: Run = commands.run, grace: float = GRACE) -> None:
        self._tree = tree
        self._run = run
        self._grace = grace
        # Alias: one of the devices that have it.
        self._waiting: dict[str, Path] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loading: asyncio.Task[None] | None = None

    def on_event(self, event: Uevent | None) -> None:
        """Take an event of the kernel; None stands for lost ones: look at all devices."""
        if event is None:
            self._tree.driver_notes.clear()
            for path in modalias.on_buses(self._tree.roots.sys):
                self.look_after(Path(path))
        elif event.action == "add" and (alias := event.properties.get("MODALIAS")):
            # A device that is new is worth a new try.
            self._tree.driver_notes.pop(alias, None)
            self._expect(alias, self._tree.roots.sys / event.devpath.strip("/"))

    def look_after(self, device: Path) -> None:
        """Load the module for a device without a driver, unless that has been tried."""
        alias = self._tree.wanted_driver(device)
        if alias is not None and alias not in self._tree.driver_notes:
            self._expect(alias, device)

    async def close(self) -> None:
        """Give up what is being loaded."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])

    def _expect(self, alias: str, device: Path) -> None:
        self._waiting[alias] = device
        if self._timer is None and self._loading is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._grace, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._loading = asyncio.ensure_future(self._load_all())

    async def _load_all(self) -> None:
        while self._waiting:
            alias = next(iter(self._waiting))
            device = self._waiting.pop(alias)
            if self._tree.wanted_driver(device) is not None:
                await self._load(alias, device)
        self._loading = None

    async def _load(self, alias: str, device: Path) -> None:
        notes = self._tree.driver_notes
        notes[alias] = f"modprobe is loading the module for {alias}"
        outcome = await self._modprobe(alias)
        if self._tree.wanted_driver(device) is None:
            notes.pop(alias, None)
        else:
            notes[alias] = outcome

    async def _modprobe(self, alias: str) -> str:
        """Load the module, and say what came of it should there be no driver afterwards."""
        # -b: the image's blacklist holds, as it does where the kernel asks for a module.
        argv = ["modprobe", "-b", "--", alias]
        try:
            result = await self._run(argv, deadline=Deadline.after(WITHIN), check=False)
        except AgentError as error:
            log.warning("%s", error)
            return str(error)
        if result.code == 0:
            log.info("modprobe has loaded what %s asks for", alias)
            return f"modprobe found a module for {alias}, but no driver took the device"
        if modalias.is_unknown(result.stderr_tail):
            return f"no module matches its alias {alias}"
        failure = str(commands.CommandError(result))
        log.warning("%s", failure)
        return failure

"""CPUs and blocks of memory in a fake sysfs, and the kernel that their switches belong to.

Files, words, errnos and events are those of a q35 guest with Linux 6.12: what is
plugged in is there and offline, a write of `online` to a block that is online is
EINVAL, CPU 0 has no switch. `refusals` makes the kernel say no, `hangs` never answer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from pathlib import Path

from agent.core.cpus import parse_cpus, spell_cpus
from agent.core.deadlines import Deadline
from agent.core.errors import timed_out
from agent.core.hotplug import HotplugBoard
from agent.handlers.guest.resources import Publisher, Resources
from tests.fakes.sysfs import FakeSysfs
from tests.fakes.uevents import FakeUevents

BLOCK = 128 << 20


class FakeMachine:
    """Also the agent's `SlowFiles`: a write to a switch is done by this kernel."""

    def __init__(self, sysfs: FakeSysfs, kernel: FakeUevents, *, cpus: int = 1, possible: int = 4):
        self._sysfs = sysfs
        self._kernel = kernel
        self._cpu = sysfs.sys / "devices/system/cpu"
        self._memory = sysfs.sys / "devices/system/memory"
        self.writes: list[tuple[str, str]] = []
        self.refusals: dict[str, int] = {}
        self.hangs: set[str] = set()
        self.settled_after: list[str] = []
        self.deaf: set[str] = set()
        self.asked = asyncio.Event()
        self.brings_online = False
        for folder in ("cpufreq", "cpuidle", "cpu0"):
            (self._cpu / folder).mkdir(parents=True)
        sysfs.write(self._cpu / "possible", f"0-{possible - 1}")
        for name in ("present", "online"):
            sysfs.write(self._cpu / name, "0")
        sysfs.write(self._memory / "block_size_bytes", f"{BLOCK:x}")
        for number in range(1, cpus):
            self.add_cpu(number)
            self._set_cpu(number, online=True)
        for number in range(4):
            self.add_block(number, state="online")

    @property
    def online(self) -> frozenset[int]:
        return parse_cpus((self._cpu / "online").read_text())

    def blocks(self, state: str = "online") -> set[int]:
        found = self._memory.glob("memory*/state")
        numbers = {int(path.parent.name.removeprefix("memory")): path for path in found}
        return {number for number, path in numbers.items() if path.read_text().strip() == state}

    def add_cpu(self, number: int) -> None:
        """As after an ACPI notification; with `brings_online` somebody else does the rest."""
        present = parse_cpus((self._cpu / "present").read_text()) | {number}
        self._sysfs.write(self._cpu / "present", spell_cpus(present))
        self._sysfs.write(self._cpu / f"cpu{number}/online", "0")
        self._tell("add", self._cpu / f"cpu{number}")
        if self.brings_online:
            self._set_cpu(number, online=True)

    def remove_cpu(self, number: int) -> None:
        self._set_cpu(number, online=False)
        present = parse_cpus((self._cpu / "present").read_text()) - {number}
        self._sysfs.write(self._cpu / "present", spell_cpus(present))
        (self._cpu / f"cpu{number}/online").unlink()
        self._tell("remove", self._cpu / f"cpu{number}")

    def set_siblings(self, *cores: str) -> None:
        for listed in cores:
            for cpu in parse_cpus(listed):
                path = self._cpu / f"cpu{cpu}/topology/thread_siblings_list"
                self._sysfs.write(path, listed)

    def add_block(self, number: int, *, state: str = "offline") -> None:
        """With memhp_default_state=online the kernel brings it online by itself."""
        state = "online" if self.brings_online else state
        self._sysfs.write(self._memory / f"memory{number}/state", state)
        self._tell("add", self._memory / f"memory{number}")

    def without_memory_hotplug(self) -> None:
        (self._memory / "block_size_bytes").unlink()

    async def read_text(self, path: Path, deadline: Deadline) -> str:
        return path.read_text()  # noqa: ASYNC240 - a plain file of the test

    async def write_text(self, path: Path, text: str, deadline: Deadline) -> None:
        name = path.parent.name
        self.writes.append((name, text))
        self.asked.set()
        if name in self.hangs:
            try:
                async with deadline.limit():
                    await asyncio.Event().wait()
            except TimeoutError:
                raise timed_out(f"write_text of {path} was given up") from None
        self.write(path, text)

    async def settled(self, obj: str, patience: float | None = None) -> bool:
        self.settled_after.append(Path(obj).parent.name)
        return True

    def write(self, path: Path, text: str) -> None:
        """What the kernel does with a write to a switch. Raises OSError."""
        name = path.parent.name
        if not path.exists():
            raise _refusal(errno.ENOENT, path)
        if name in self.refusals:
            raise _refusal(self.refusals[name], path)
        if name in self.deaf:
            return
        if re.fullmatch(r"cpu[0-9]+", name):
            self._set_cpu(int(name.removeprefix("cpu")), online=text == "1")
        else:
            self._set_block(path, text)

    def _set_cpu(self, number: int, *, online: bool) -> None:
        now = self.online | {number} if online else self.online - {number}
        self._sysfs.write(self._cpu / "online", spell_cpus(now))
        self._sysfs.write(self._cpu / f"cpu{number}/online", str(int(online)))
        self._tell("online" if online else "offline", self._cpu / f"cpu{number}")

    def _set_block(self, path: Path, word: str) -> None:
        goal = {"online": "online", "online_movable": "online", "offline": "offline"}.get(word)
        if goal is None or goal == path.read_text().strip():
            raise _refusal(errno.EINVAL, path)
        self._sysfs.write(path, goal)
        self._tell(goal, path.parent)

    def _tell(self, action: str, device: Path) -> None:
        subsystem = "memory" if device.parent == self._memory else "cpu"
        self._kernel.send(action, self._sysfs.devpath(device), subsystem)


class PluggedGuest:
    """The agent's own parts that look after CPUs and memory, on such a machine; in a loop."""

    def __init__(self, base: Path, events: Publisher) -> None:
        sysfs = FakeSysfs(base)
        kernel = FakeUevents()
        self.machine = FakeMachine(sysfs, kernel)
        self.reserved = frozenset[int]()
        self._board = HotplugBoard(tree=sysfs.tree, source=kernel, files=self.machine, relooks=())
        self.resources = Resources(
            board=self._board,
            files=self.machine,
            events=events,
            default_timeout=10.0,
            reserved=lambda: self.reserved,
        )
        self._board.start()

    def close(self) -> None:
        self._board.close()


def _refusal(number: int, path: Path) -> OSError:
    return OSError(number, f"write: {os.strerror(number)}", str(path))

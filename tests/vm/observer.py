"""One container that stays and looks: what the guest holds, counted exactly.

A container made for each look would count itself: its streams, its exit, the
runtime's call that is just ending. This one is there before and after, so
whatever differs is somebody else's.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

from agent.core.fileops import LINGER
from innkeeper.v1 import types_pb2 as types
from tests.vm.attachment import STDOUT, Attachment
from tests.vm.guest import PROBE, Guest

_END = b"\x04\n"
_LOOP = r'while read -r line; do { eval "$line"; } 2>&1; printf "\004\n"; done'
_RUN = "/guest/run/innkeeper"
# How processes ended is kept for a minute on purpose.
_FILES = f"find {_RUN} -xdev ! -path '{_RUN}/state/departed*'; find {_RUN}/spools"
_SETTLING = 20.0
"""Seconds in which what was used must be given back; only a leak takes them."""
_POOL = 16
"""Threads of the agent that there may be at any time: its pool fills when much goes on."""
_LINGERING = LINGER + 5.0
"""Seconds until those that still are there are in a call, which may hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What could leak. Descriptors by what they are, so that a difference names it."""

    init: Counter[str]
    relay: Counter[str]
    agent: Counter[str]
    agent_threads: int
    processes: Counter[str]
    mounts: Counter[str]
    cgroups: Counter[str]
    files: Counter[str]

    def differences(self, later: Census) -> dict[str, str]:
        """What there was before and is not now, and the other way round, by kind."""
        found: dict[str, str] = {}
        for each in fields(self):
            before, now = getattr(self, each.name), getattr(later, each.name)
            if isinstance(before, int):
                before, now = Counter({"n": before}), Counter({"n": now})
            if before != now:
                found[each.name] = f"gone: {dict(before - now)}, new: {dict(now - before)}"
        return found


@dataclass(frozen=True, slots=True)
class _Running:
    """A process that is not the kernel's own."""

    pid: int
    state: str
    arguments: str


class Observer:
    """Runs one-line scripts in a container that sees all of the guest."""

    def __init__(self, guest: Guest, attachment: Attachment) -> None:
        self._guest = guest
        self._attachment = attachment

    async def ask(self, script: str) -> str:
        before = len(self._attachment.data[STDOUT])
        await self._attachment.send(script.encode() + b"\n")
        await self._attachment.until(lambda: self._attachment.data[STDOUT][before:].endswith(_END))
        return self._attachment.data[STDOUT][before : -len(_END)].decode()

    async def census(self) -> Census:
        """What there is at rest: no call of the runtime is under way, and no file worker but
        one waits for more to do."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LINGERING
        while await self._is_busy() and loop.time() < deadline:
            pass
        return await self._look()

    async def _is_busy(self) -> bool:
        running = _processes(await self.ask("ps -o pid,ppid,stat,args"))
        workers = sum("agent.linux.fsworker" in each.arguments for each in running)
        return workers > 1 or bool(await self._lines(f"ls {_RUN}/crun-logs 2>/dev/null"))

    async def _look(self) -> Census:
        running = _processes(await self.ask("ps -o pid,ppid,stat,args"))
        agent, relay = (_pid_of(running, words) for words in ("/agent agent", "agent.relay"))
        return Census(
            init=await self._descriptors(1),
            relay=await self._descriptors(relay),
            agent=await self._descriptors(agent),
            agent_threads=max(_POOL, len(await self._lines(f"ls /proc/{agent}/task"))),
            processes=Counter(f"{each.state} {each.arguments}" for each in running),
            mounts=Counter(_mount(line) for line in await self._lines("cat /proc/1/mountinfo")),
            cgroups=Counter(await self._lines("find /sys/fs/cgroup -type d")),
            files=Counter(await self._lines(_FILES)),
        )

    async def returns_to(self, before: Census, *kinds: str) -> None:
        """Fails when something is not given back; of some kinds only, where named."""

        async def differences() -> dict[str, str]:
            found = before.differences(await self._look())
            return {kind: found[kind] for kind in kinds or found if kind in found}

        await _until_nothing(differences)

    async def sees_only(self, pid: int, arguments: str) -> None:
        """Fails unless this process, and in the end no other, has these arguments."""

        async def wrong() -> str:
            running = _processes(await self.ask("ps -o pid,ppid,stat,args"))
            found = [each.pid for each in running if each.arguments == arguments]
            return f"{arguments}: {found}" if found != [pid] else ""

        await _until_nothing(wrong)

    async def sees_no_zombies(self) -> None:
        """Fails when some stay."""

        async def zombies() -> list[str]:
            running = _processes(await self.ask("ps -o pid,ppid,stat,args"))
            return [str(each) for each in running if each.state == "Z"]

        await _until_nothing(zombies)

    async def _lines(self, script: str) -> list[str]:
        return (await self.ask(script)).splitlines()

    async def _descriptors(self, pid: int) -> Counter[str]:
        lines = await self._lines(f"ls -l /proc/{pid}/fd")
        targets = [line.partition(" -> ")[2] for line in lines if " -> " in line]
        # Of sockets and pipes only how many there are: their numbers are new each time.
        return Counter(re.sub(r":\[\d+\]$", "", target) for target in targets)


@asynccontextmanager
async def observing(guest: Guest) -> AsyncIterator[Observer]:
    """An observer for the length of a block."""
    name = await guest.start(_LOOP, **PROBE)
    process = types.ProcessRef(container_id=name)
    # It may have to look for as long as the test runs.
    attachment = Attachment(guest.processes, timeout=None, process=process)
    try:
        yield Observer(guest, await attachment.open())
    finally:
        attachment.cancel()
        await guest.remove(name)


async def _until_nothing(look: Callable[[], Awaitable[object]]) -> None:
    """The kernel, and what ends in the background, may take a moment: look again for a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SETTLING
    while seen := await look():
        assert loop.time() < deadline, seen


def _processes(text: str) -> list[_Running]:
    found = []
    for line in text.splitlines()[1:]:
        pid, parent, state, arguments = line.split(maxsplit=3)
        own = arguments.startswith("{ps}")
        if "2" not in (pid, parent) and not own:
            found.append(_Running(int(pid), state[0].replace("R", "S"), arguments))
    return found


def _pid_of(running: list[_Running], words: str) -> int:
    return next(each.pid for each in running if each.arguments.endswith(words))


def _mount(line: str) -> str:
    """Where and what, of a line of mountinfo."""
    before, _, after = line.partition(" - ")
    return f"{before.split()[4]} {after.split()[0]}"

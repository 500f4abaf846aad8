"""VMs that a test brings to an end: their processes, and what they said, kept in sight.

Everything of a VM on the host has its directory in its command line: the
daemon, QEMU, and the transport's helper.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from innkeeper.shim.client import VmSpec
from tests.vm.guest import Guest, booted

LIMIT = 60.0
# What PID 1 and the kernel say when a step of the way down does not go as it should.
_TROUBLE = re.compile(
    "Kernel panic|did not stop within|outlived SIGKILL|could not be unmounted|stays mounted"
    "|had not ended after|PID 1 failed|error, going on|Oops:|BUG:"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A VM of which nothing may be left in the end."""

    guest: Guest
    programs: dict[str, int]
    """Descriptors of its processes, by the name of the program."""
    console: Path
    """The console's log under a name that outlives the VM's directory."""

    async def gone(self) -> None:
        """Returns when all of its processes have ended; fails when one does not, or is new."""
        async with asyncio.timeout(LIMIT):
            for pidfd in self.programs.values():
                await _ended(pidfd)
        assert processes_of(self.guest.vm.directory) == {}

    def went_down_in_order(self, action: str, kernel_says: str) -> str:
        """The console's text from the first step down to the kernel's last words."""
        text = self.console.read_text(errors="replace")
        start = text.index(f": stopping everything, then {action}")
        down = text[text.rindex("\n", 0, start) + 1 :]
        assert not _TROUBLE.search(text), down
        steps = [down.find(f"everything is stopped: {action}"), down.find(kernel_says)]
        assert 0 < steps[0] < steps[1], down
        return down


@asynccontextmanager
async def ending(
    image: Path, *names: str, transport: str = "serial"
) -> AsyncIterator[list[Ending]]:
    """VMs of these names, booted at the same time; only the first has that transport."""
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            kinds = (transport, *("serial" for _ in names[1:]))
            booting = [
                group.create_task(stack.enter_async_context(_booted(image, name, kind)))
                for name, kind in zip(names, kinds, strict=True)
            ]
        yield [each.result() for each in booting]


@asynccontextmanager
async def _booted(image: Path, name: str, transport: str) -> AsyncIterator[Ending]:
    spec = VmSpec(name=name, image=f"{image}/", transport=transport, ports=2, cmdline=("quiet",))
    async with booted(spec) as guest:
        with _watched(guest.vm.directory) as programs:
            console = guest.vm.directory.parent / f".{name}.console"
            os.link(guest.vm.directory / "console.log", console)
            yield Ending(guest=guest, programs=programs, console=console)


@contextlib.contextmanager
def _watched(directory: Path) -> Iterator[dict[str, int]]:
    programs = {name: os.pidfd_open(pid) for name, pid in processes_of(directory).items()}
    try:
        yield programs
    finally:
        # Gone already, unless the test has failed.
        for pidfd in programs.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def processes_of(directory: Path) -> dict[str, int]:
    """Pids of the VM's processes, by the name of the program."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                command_line = (entry / "cmdline").read_bytes()
                if bytes(directory) in command_line:
                    found[Path(os.fsdecode(command_line.split(b"\0")[0])).name] = int(entry.name)
    return found


async def _ended(pidfd: int) -> None:
    """Returns when the process has: its descriptor becomes readable then."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(pidfd)

"""One QEMU: started, watched, ended.

It is tied to this process (see `commands.spawn_tied`), and it gets its monitor
and console as connected sockets, so there is no moment at which it runs and
nobody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import time
from typing import TYPE_CHECKING, Any

from innkeeper.shim import commands
from innkeeper.shim.console import Console
from innkeeper.shim.console_log import ConsoleLog
from innkeeper.shim.errors import Reason, ShimError, with_tail
from innkeeper.shim.logs import tail
from innkeeper.shim.machine import PROGRAM, QEMU_VARIABLE, MachineShape, Pipes
from innkeeper.shim.qmp import Monitor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import FileIO
    from pathlib import Path

_QUIT_LIMIT = 5.0
_CONSOLE_ROOM = 1 << 20
# For a QEMU that has given up, to say why and end by itself.
_LAST_WORDS = 1.0


class Qemu:
    """A QEMU that was started; `gone` is set once it has ended, however it did."""

    def __init__(self, process: asyncio.subprocess.Process, console: Console, log: Path) -> None:
        self._process = process
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []
        self.console = console
        self.monitor = Monitor(f"qemu {process.pid}")
        self.started = time.monotonic()
        self.gone = asyncio.Event()
        self.powered_off = False
        """The guest switched the machine off; a reset or panic is something else."""
        self.monitor.on_event(self._on_event)

    @classmethod
    async def start(cls, shape: MachineShape, log: Path) -> Qemu:
        """Spawns QEMU and speaks QMP to it. `log` takes what it says itself.

        Raises HOST_LACKS without QEMU, and QEMU_GONE with QEMU's own words when
        it refused its command line. The caller must `end()` what it gets.
        """
        require_program(shape.program, "qemu-system-x86")
        ours, theirs = socket.socketpair()
        with theirs:
            qemu = await cls._spawn(shape, theirs, log)
        qemu._watch()
        try:
            await qemu.monitor.connect(ours)
        except BaseException as error:
            await qemu.end(grace=_LAST_WORDS)
            if isinstance(error, ShimError):
                raise qemu.explain("QEMU did not start") from error
            raise
        return qemu

    @classmethod
    async def _spawn(cls, shape: MachineShape, monitor: socket.socket, log: Path) -> Qemu:
        console, guest_end = _console_pipe()
        try:
            with log.open("ab") as output:
                pipes = Pipes(monitor=monitor.fileno(), console=guest_end)
                process = await commands.spawn_tied(
                    shape.argv(pipes),
                    output=output.fileno(),
                    pass_fds=(pipes.monitor, pipes.console),
                )
            return cls(process, Console(console, ConsoleLog(shape.console_log)), log)
        except BaseException:
            console.close()
            raise
        finally:
            os.close(guest_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.started

    async def is_alive(self) -> bool:
        """Asks the monitor, which a QEMU on its way out does not answer."""
        try:
            async with asyncio.timeout(_QUIT_LIMIT):
                await self.monitor.execute("query-status")
        except ShimError:
            return False
        except TimeoutError:
            return not self.gone.is_set()
        return True

    def explain(self, message: str) -> ShimError:
        """QEMU_GONE, with what QEMU and the guest's console said last."""
        status = self._process.returncode
        if status is not None:
            message = f"{message}: QEMU ended, {commands.describe_status(status)}"
        message = with_tail(message, "QEMU said", tail(self._log))
        message = with_tail(message, "the console's last lines", self.console.tail())
        return ShimError(Reason.QEMU_GONE, message)

    async def end(self, grace: float = 0) -> bool:
        """Waits up to `grace` seconds for QEMU to end by itself, then ends it.

        True when it ended by itself. Safe to call twice.
        """
        by_itself = await self._wait(grace)
        if not by_itself:
            await self._quit()
        await self.monitor.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return by_itself

    async def _quit(self) -> None:
        # `quit` lets QEMU flush its disks; a QEMU that hangs gets no more time.
        with contextlib.suppress(ShimError, TimeoutError):
            async with asyncio.timeout(_QUIT_LIMIT):
                await self.monitor.execute("quit")
                await self.gone.wait()
        if not self.gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self.gone.wait()

    async def _wait(self, limit: float) -> bool:
        if limit > 0 and not self.gone.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self.gone.wait()
        return self.gone.is_set()

    def _watch(self) -> None:
        self._tasks.append(asyncio.create_task(self.console.follow(), name="console"))
        self._tasks.append(asyncio.create_task(self._note_end(), name="qemu end"))

    def _on_event(self, name: str, data: Mapping[str, Any]) -> None:
        if name == "SHUTDOWN":
            self.powered_off = data.get("reason") == "guest-shutdown"

    async def _note_end(self) -> None:
        await self._process.wait()
        self.gone.set()


def _console_pipe() -> tuple[FileIO, int]:
    """Our end and QEMU's. A serial port drops what its other end has no room for, and
    QEMU writes byte by byte: of those a pipe holds far more than a socket."""
    ours, theirs = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _CONSOLE_ROOM)
    return os.fdopen(ours, "rb", buffering=0), theirs


def require_program(program: str, package: str) -> None:
    """Raises HOST_LACKS with the way out: another name, or the package to install."""
    if shutil.which(program) is not None:
        return
    hint = f"install it with: apt install {package}"
    if program != PROGRAM:
        hint = f"{QEMU_VARIABLE} must name a program on PATH, or one by its absolute path"
    raise ShimError(
        Reason.HOST_LACKS,
        f"{program}: no such program",
        hint=hint,
        fields={"program": program},
    )

"""Programs beside QEMU that plugged hardware runs in, one for each: started, watched, ended.

They are tied to this process, as QEMU is (`commands.spawn_tied`), so none outlives it.
Each gets a socket that listens already: QEMU can connect to it at once, and one that
ends without a word takes the socket with it, which QEMU then says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.shim import commands
from innkeeper.shim.errors import Reason, ShimError, with_tail
from innkeeper.shim.logs import tail

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from innkeeper.shim.hardware.base import Helper

# For one whose end was noticed by QEMU first.
_LAST_WORDS = 1.0
_END_LIMIT = 2.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Running:
    helper: Helper
    process: asyncio.subprocess.Process
    watch: asyncio.Task[None]
    log_start: int
    """Where in the log its own lines begin."""


class Helpers:
    """Those of one VM, by the id of the device; `on_end` is told of one that ended though
    nobody stopped it, with its id and how it ended."""

    def __init__(self, log: Path) -> None:
        self._log_file = log
        self._running: dict[str, _Running] = {}
        self.on_end: Callable[[str, str], None] = lambda _id, _how: None

    async def start(self, device_id: str, helper: Helper) -> None:
        """Returns when it runs; it may not have come to its socket yet. Raises HOST_LACKS."""
        with _listening(helper.socket) as listener, self._log_file.open("ab") as output:
            log_start = output.tell()
            try:
                process = await commands.spawn_tied(
                    helper.argv(listener.fileno()),
                    output=output.fileno(),
                    pass_fds=(listener.fileno(),),
                    own_group=True,
                )
            except commands.CommandError as error:
                raise ShimError(Reason.HOST_LACKS, str(error)) from error
        watch = asyncio.create_task(self._watch(device_id, process))
        self._running[device_id] = _Running(
            helper=helper, process=process, watch=watch, log_start=log_start
        )

    async def why_ended(self, device_id: str) -> ShimError | None:
        """None while it runs, or for a device that has none."""
        running = self._running.get(device_id)
        if running is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await running.process.wait()
        status = running.process.returncode
        if status is None:
            return None
        name = running.helper.name
        told = f"device {device_id}: {name} ended, {commands.describe_status(status)}"
        message = with_tail(told, "it said", tail(self._log_file, running.log_start))
        return ShimError(Reason.HOST_LACKS, message, fields={"id": device_id, "program": name})

    async def stop(self, device_id: str) -> None:
        """Once QEMU has hung up; fine when there is none."""
        running = self._running.pop(device_id, None)
        if running is None:
            return
        # Nothing is lost: it keeps no data of its own, and nobody asks it any more.
        with contextlib.suppress(ProcessLookupError):
            running.process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_LIMIT):
                await running.process.wait()
        await _end(running)

    async def close(self) -> None:
        """All that are left."""
        left = [self._running.pop(device_id) for device_id in tuple(self._running)]
        await asyncio.gather(*(_end(running) for running in left))

    async def _watch(self, device_id: str, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        _kill_group(process)
        if device_id in self._running:
            name = self._running[device_id].helper.name
            how = f"{name} ended, {commands.describe_status(status)}"
            _log.info("device %s: %s", device_id, how)
            self.on_end(device_id, how)


async def _end(running: _Running) -> None:
    running.watch.cancel()
    await asyncio.gather(running.watch, return_exceptions=True)
    # Of one that ended earlier the number may be another's by now.
    if running.process.returncode is None:
        _kill_group(running.process)
    await running.process.wait()
    running.helper.socket.unlink(missing_ok=True)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """virtiofsd serves in a child of its own, which no SIGTERM reaches while it is stopped."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _listening(path: Path) -> socket.socket:
    """The caller closes it: then only the helper holds it."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(path))
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener

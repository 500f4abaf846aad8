"""What containers use: the kernel's own figures, once or again and again.

cgroupfs, sysfs and a namespace's list of interfaces answer from the kernel's memory, so all
of it is read in the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from agent.core.usage import ContainerStats
from agent.handlers.runtime.cgroup import open_member
from agent.handlers.runtime.usage import files as usagefiles
from agent.handlers.runtime.usage.cgroupfiles import pressure, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from agent.core.roots import Roots
    from agent.core.usage import InterfaceStats
    from agent.handlers.runtime.process import Process
    from agent.handlers.runtime.table import Container, ContainerTable


class Usage:
    """Reads what the table's containers use."""

    def __init__(
        self,
        table: ContainerTable,
        roots: Roots,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._roots = roots
        self._clock = clock

    async def stats(self, container_id: str) -> ContainerStats:
        """What it uses now, in whatever state it is. Raises UNKNOWN_CONTAINER."""
        return self._read(self._table.container(container_id))

    async def watch(
        self, ids: Sequence[str], interval: float
    ) -> AsyncGenerator[ContainerStats, None]:
        """The same of each container every `interval` seconds, the first at once.

        With `ids` it ends at the first turn at which all of them are removed; without, it
        is of those that there are and has no end. The turns are at fixed times: one that
        the reader took too long for is left out. Raises UNKNOWN_CONTAINER.
        """
        named = [self._table.container(each) for each in ids]
        begin = self._clock()
        while True:
            # One that was made anew under the same id is another one.
            alive = [each for each in named if self._table.find(each.id) is each]
            if named and not alive:
                return
            for each in alive or sorted(self._table.all(), key=lambda found: found.id):
                yield self._read(each)
            turns = (self._clock() - begin) // interval + 1
            await asyncio.sleep(begin + turns * interval - self._clock())

    def _read(self, container: Container) -> ContainerStats:
        group = self._roots.cgroup / container.record.cgroup.lstrip("/")
        return ContainerStats(
            id=container.id,
            at=time.time(),
            cpu=usagefiles.cpu(group),
            memory=usagefiles.memory(group),
            io=usagefiles.io(group, self._roots.sys),
            pids=usagefiles.pids(group),
            hugetlb=usagefiles.hugetlb(group),
            network=_network(self._roots, container.first),
            io_pressure=pressure(group / "io.pressure"),
        )


def _network(roots: Roots, first: Process | None) -> tuple[InterfaceStats, ...]:
    """Of the namespace that the first process is in; none once it has ended."""
    if first is None or not first.pid or first.exit is not None:
        return ()
    pidfd = open_member(roots, first.pid, first.record.cgroup)
    if pidfd < 0:
        return ()
    try:
        content = text(roots.proc / str(first.pid) / "net/dev")
        # It has its number until it is reaped: so that was its namespace, nobody else's.
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, 0)
            return usagefiles.parse_interfaces(content)
        return ()
    finally:
        os.close(pidfd)

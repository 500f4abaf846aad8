"""The processes of a container, as the kernel shows them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code
from agent.core.usage import ProcessInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.core.model import ProcessRef
    from agent.core.roots import Roots
    from agent.handlers.runtime.table import Container, ContainerTable

DEFAULT_TIMEOUT: Final = 10.0
"""Seconds for a list that brings no timeout."""

ARGUMENT_BYTES: Final = 4096
"""Most of the arguments of one process (processes.proto)."""

_ALL_ARGUMENTS = 1 << 20
_PORTION = 512
# Of the time that there is: the rest is for asking again without the arguments.
_SHARE_WITH_ARGUMENTS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")
_MICROS = 1_000_000
_KIB = 1024


class Lister(Protocol):
    """Runs `agent.linux.processlist.list_processes` where it may hang; FileWorkers does."""

    async def list_processes(
        self, question: Mapping[str, Any], deadline: Deadline
    ) -> list[dict[str, Any]]: ...


class Listing:
    """Lists processes of the table's containers."""

    def __init__(self, table: ContainerTable, roots: Roots, lister: Lister) -> None:
        self._table = table
        self._roots = roots
        self._lister = lister

    async def list(self, container_id: str, timeout: float | None) -> tuple[ProcessInfo, ...]:
        """Every process of it, by pid; those that end meanwhile are left out.

        Arguments that can't be had (a process's memory is on a file system that does not
        answer) are left out. Raises UNKNOWN_CONTAINER, OPERATION_TIMED_OUT, LIMIT_REACHED.
        """
        container = self._table.container(container_id)
        deadline = Deadline.of_request(timeout, DEFAULT_TIMEOUT)
        rows = await self._rows(container, deadline)
        return _infos(rows, _own(container), container.first.pid if container.first else 0)

    async def _rows(self, container: Container, deadline: Deadline) -> Sequence[dict[str, Any]]:
        pids = sorted(set(container.cgroup.members()))
        limit = min(ARGUMENT_BYTES, _ALL_ARGUMENTS // max(len(pids), 1))
        rows: list[dict[str, Any]] = []
        for start in range(0, len(pids), _PORTION):
            question = {
                "proc": str(self._roots.proc),
                "pids": pids[start : start + _PORTION],
                "cgroup": container.record.cgroup,
                "argument_bytes": limit,
            }
            rows += await self._portion(question, deadline)
        return rows

    async def _portion(
        self, question: dict[str, Any], deadline: Deadline
    ) -> Sequence[dict[str, Any]]:
        try:
            first = deadline.earlier(deadline.left() * _SHARE_WITH_ARGUMENTS)
            return await self._lister.list_processes(question, first)
        except AgentError as error:
            if error.code is not Code.DEADLINE_EXCEEDED:
                raise
        return await self._lister.list_processes({**question, "argument_bytes": 0}, deadline)


def _own(container: Container) -> dict[int, ProcessRef]:
    """Those that the agent started and that have not ended, by pid."""
    return {
        process.pid: process.record.ref
        for process in container.processes.values()
        if process.pid and process.exit is None
    }


def _infos(
    rows: Sequence[dict[str, Any]], own: Mapping[int, ProcessRef], first: int
) -> tuple[ProcessInfo, ...]:
    # How deep the container's pid namespace is: its first process lives in it. Those that
    # live deeper have a number for each namespace on the way.
    depths = {row["pid"]: len(row["numbers"]) - 1 for row in rows}
    depth = depths.get(first, min(depths.values(), default=0))
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return tuple(_info(row, own, depth, booted) for row in rows)


def _info(
    row: dict[str, Any], own: Mapping[int, ProcessRef], depth: int, booted: float
) -> ProcessInfo:
    numbers = row["numbers"]
    return ProcessInfo(
        pid=row["pid"],
        container_pid=numbers[min(depth, len(numbers) - 1)],
        parent_pid=row["parent"],
        process=own.get(row["pid"]),
        user_id=row["user"],
        name=row["name"],
        arguments=tuple(row["arguments"]),
        state=row["state"],
        cpu_micros=row["cpu"] * _MICROS // _TICKS,
        resident_bytes=row["resident"] * _KIB,
        threads=row["threads"],
        started=booted + row["started"] / _TICKS,
        terminal=row["terminal"],
    )

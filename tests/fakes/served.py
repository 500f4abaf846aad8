"""Storages that somebody serves: a guest whose resolver and network are tables."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, timed_out
from agent.core.fileops import FsMount, Resolution
from agent.core.model import StorageRequest
from agent.core.sources import Source
from agent.core.undo import UndoStack
from agent.handlers.storage import resolving
from agent.handlers.storage.base import MountPlan, StorageClass, Tools
from agent.handlers.storage.job import Job, Ledger
from agent.handlers.storage.wording import told
from tests.fakes.hotplug import Bench, bench


class FakeNames:
    """Addresses by host name; `late` are hosts whose resolver does not answer."""

    def __init__(self) -> None:
        self.hosts: dict[str, tuple[str, ...]] = {}
        self.failures: dict[str, str] = {}
        self.late: set[str] = set()
        self.asked: list[str] = []
        self.unknown_types: set[str] = set()

    async def resolve(self, host: str, deadline: Deadline) -> Resolution:
        self.asked.append(host)
        if host in self.late:
            raise timed_out(f"resolve of {host} did not come back from the kernel in time")
        failure = self.failures.get(host, "Name or service not known")
        addresses = self.hosts.get(host, ())
        return Resolution(addresses=addresses, failure="" if addresses else failure)

    async def know_fs_type(self, fs_type: str, deadline: Deadline) -> None:
        if fs_type in self.unknown_types:
            raise OSError(errno.ENODEV, f"fsopen: {os.strerror(errno.ENODEV)}", fs_type)


class FakeNetwork:
    """Who takes a connection, `answers`; all others say ECONNREFUSED."""

    def __init__(self) -> None:
        self.answers: set[tuple[str, int]] = set()
        self.tried: list[tuple[str, int]] = []

    async def connect(self, address: str, port: int) -> None:
        self.tried.append((address, port))
        if (address, port) not in self.answers:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


class ServedBench:
    """One class at work: `plan` is what it would mount."""

    def __init__(self, served: StorageClass[Any], guest: Bench) -> None:
        self.served = served
        self.guest = guest
        self.names = FakeNames()
        self.network = FakeNetwork()

    async def plan(self, source: Source, *options: str, **more: Any) -> MountPlan:
        timeout = more.pop("timeout", 30.0)
        request = StorageRequest(id="data", source=source, options=options, **more)
        board = self.guest.board
        # None of these holds a device, and of the files' calls they make two.
        tools = Tools(
            devices=None,  # type: ignore[arg-type]
            roots=self.guest.sysfs.roots,
            files=self.names,  # type: ignore[arg-type]
            board=board,
        )
        async with UndoStack("test") as undo:
            job = Job(
                request=request,
                source=source,
                deadline=Deadline.after(timeout),
                tools=tools,
                undo=undo,
                ledger=Ledger(note=_nothing_made, take_back=_nothing_to_take_back),
                locations={},
            )
            return await self.served.prepare(job)

    async def call(self, source: Source, *options: str, **more: Any) -> FsMount:
        plan = await self.plan(source, *options, **more)
        assert isinstance(plan.call, FsMount)
        return plan.call

    async def options(self, source: Source, *options: str, **more: Any) -> list[str]:
        """As fstab would have them, secrets hidden."""
        return [str(each) for each in (await self.call(source, *options, **more)).options]

    async def refusal(self, source: Source, *options: str, **more: Any) -> AgentError:
        with pytest.raises(AgentError) as caught:
            await self.plan(source, *options, **more)
        return caught.value


@asynccontextmanager
async def served_bench(
    base: Path, served: StorageClass[Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServedBench]:
    async with bench(base) as guest:
        made = ServedBench(served, guest)
        monkeypatch.setattr(resolving, "connect", made.network.connect)
        yield made


def shown(call: FsMount) -> str:
    """All that anybody gets to see of a mount."""
    return "\n".join((repr(call), str(call), told(call)))


def _nothing_made(piece: object) -> None:
    raise AssertionError(f"made {piece}")


async def _nothing_to_take_back(piece: object) -> None:
    raise AssertionError(f"took back {piece}")

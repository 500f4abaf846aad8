"""A process's streams, on real pipes and terminals, with a fake PID 1 that keeps their ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.pid1 import Pid1Client
from agent.handlers.runtime.streams.streams import StreamHome, Streams
from tests.fakes.pid1 import FakePid1
from tests.fakes.stream_ends import OPTIONS, REF, Agent, Child, Terminal


@pytest.fixture
async def pid1(tmp_path: Path) -> AsyncIterator[FakePid1]:
    async with FakePid1(tmp_path / "init.sock") as fake:
        yield fake


@pytest.fixture
async def home(tmp_path: Path, pid1: FakePid1) -> AsyncIterator[StreamHome]:
    client = Pid1Client(pid1.path)
    yield StreamHome(keeper=client, spools=tmp_path / "spools")
    client.close()


@pytest.fixture
async def agent(home: StreamHome) -> AsyncIterator[Agent]:
    agent = Agent(home)
    yield agent
    await agent.streams.discard()


@pytest.fixture
async def child(agent: Agent) -> AsyncIterator[Child]:
    child = await agent.start()
    yield child
    child.close()


@pytest.fixture
async def on_terminal(home: StreamHome) -> AsyncIterator[tuple[Streams, Terminal]]:
    terminal = Terminal()
    streams = Streams(home, REF, terminal=True, options=OPTIONS)
    await streams.open_terminal(terminal.master)
    streams.begin()
    yield streams, terminal
    await streams.discard()
    with contextlib.suppress(OSError):
        os.close(terminal.slave)

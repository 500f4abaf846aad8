"""An agent's server for the tests that talk to one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.agent_server import RunningAgent, serving_agent


@pytest.fixture
async def agent() -> AsyncIterator[RunningAgent]:
    """The real server over fakes; whatever a call began must be over with the server."""
    before = asyncio.all_tasks()
    with tempfile.TemporaryDirectory(prefix="ik-") as folder:
        async with serving_agent(Path(folder)) as running:
            yield running
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        # They end by themselves once the loop runs; what doesn't is a leak.
        _, left = await asyncio.wait(left, timeout=5)
    assert not left, f"left running: {left}"

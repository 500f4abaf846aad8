"""A bed for containers: real code of ours, a fake crun and a fake PID 1 at the wire."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.fakes.bed import FakeBed, Life
from tests.fakes.crun import FakeGroup, reaping
from tests.fakes.pid1 import FakePid1


@pytest.fixture
async def bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeBed]:
    """In a directory with a short name, because of the length of a socket's path."""
    async with AsyncExitStack() as stack:
        stack.enter_context(reaping())
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bed")))
        pid1 = await stack.enter_async_context(FakePid1(top / "init.sock"))
        bed = FakeBed(top, pid1)
        monkeypatch.setenv("PATH", f"{bed.crun.directory}:{os.environ['PATH']}")
        yield bed
        await bed.close()
        FakeGroup.frozen_groups.clear()


@pytest.fixture
async def life(bed: FakeBed) -> Life:
    return await bed.start()

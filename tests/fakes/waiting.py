"""Waiting in a test for what another process or a task does, which tells nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE = 20.0
"""Seconds; only a test that fails takes them."""


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until `condition` holds. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nobody could set an event here
            await asyncio.sleep(0.001)

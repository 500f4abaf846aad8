"""Blocking work of ours in a thread, that nobody may overtake."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

T = TypeVar("T")


async def to_its_end(work: Callable[[], T], stop: threading.Event) -> T:
    """The result of `work()` in a thread; whoever is cancelled waits until it has ended.

    `work` looks at `stop`, which is set then: what it writes is not to be put back meanwhile.
    """
    job = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([job])
        job.exception()  # marks it as seen: its caller has left
        raise

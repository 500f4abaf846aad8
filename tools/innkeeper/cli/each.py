"""The same for several containers: all of them are tried, and each failure is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from innkeeper.cli import output
from innkeeper.cli.errors import EXPECTED, OUR_FAILURE, explain
from innkeeper.shim.client import find_vm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from grpc import aio


async def of(
    vm_name: str, words: Sequence[str], action: Callable[[aio.Channel, str], Awaitable[object]]
) -> int:
    """The exit code; words are printed as they are done, in their order."""
    async with find_vm(vm_name).channel() as channel:
        tasks = [asyncio.ensure_future(action(channel, word)) for word in words]
        await asyncio.wait(tasks)
    failed = False
    for word, task in zip(words, tasks, strict=True):
        failed = not _tell(word, task) or failed
    return OUR_FAILURE if failed else 0


def _tell(word: str, task: asyncio.Future[object]) -> bool:
    try:
        task.result()
    except EXPECTED as error:
        output.fail(explain(error))
        return False
    output.say(word)
    return True

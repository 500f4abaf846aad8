"""Where the commands' coroutines run: one event loop for one command."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Answer = TypeVar("Answer")


def wait_for(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Runs a command's work to its end; what it raises comes out of groups of one."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise _only(group) from group


def _only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error

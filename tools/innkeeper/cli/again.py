"""Calls that are made again when the way to the guest breaks: the agent restarts, say.

What is asked for is there as before; so these go on for as long as the VM is there
and an answer comes within some time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from grpc import aio

from innkeeper.cli.errors import CliError
from innkeeper.shim.errors import Reason
from innkeeper.shim.statedir import VmPaths, is_locked
from innkeeper.shim.streams import is_broken_connection, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from innkeeper.shim.client import Vm

    Answer = TypeVar("Answer")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_PATIENCE = 30.0
_STOPPED = frozenset({Reason.STOPPING, Reason.QEMU_GONE, Reason.UNKNOWN_VM})


class Patience:
    """Pauses between attempts, longer each time, up to a deadline."""

    def __init__(self, vm: Vm, channel: aio.Channel, seconds: float = _PATIENCE) -> None:
        self._vm = vm
        self._channel = channel
        self._seconds = seconds
        self._pause = _FIRST_PAUSE
        self._deadline: float | None = None

    def renew(self) -> None:
        """There was an answer."""
        self._deadline = None
        self._pause = _FIRST_PAUSE

    async def pause(self, error: aio.AioRpcError) -> None:
        """Returns when it is time to call again. Raises the error when it is an answer, or has
        been there for too long, and CliError when the VM is gone."""
        if not is_broken_connection(error):
            raise error
        if reason_of(error) in _STOPPED or not is_locked(VmPaths(directory=self._vm.directory)):
            raise CliError(f"VM {self._vm.name}: it was stopped meanwhile") from error
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            raise error
        await self._one_pause()

    async def _one_pause(self) -> None:
        """The daemon answers for a guest whose agent is away, and nothing tells when it is
        back; a change of the channel does."""
        try:
            async with asyncio.timeout(self._pause):
                await self._channel.wait_for_state_change(self._channel.get_state())
        except TimeoutError:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)


async def ask(vm: Vm, channel: aio.Channel, call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer of a call that may be made twice. Raises aio.AioRpcError, CliError."""
    patience = Patience(vm, channel)
    while True:
        try:
            return await call()
        except aio.AioRpcError as error:
            await patience.pause(error)


async def stream(
    vm: Vm,
    channel: aio.Channel,
    call: Callable[[], aio.UnaryStreamCall[Any, Answer]],
) -> AsyncGenerator[Answer, None]:
    """The answers, until the guest ends the call; `call` begins after what came already.
    Raises aio.AioRpcError, CliError."""
    patience = Patience(vm, channel)
    while True:
        opened = call()
        try:
            async for answer in opened:
                patience.renew()
                yield answer
        except aio.AioRpcError as error:
            await patience.pause(error)
        else:
            return
        finally:
            opened.cancel()

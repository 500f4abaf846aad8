"""Waiting for a guest whose agent is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from innkeeper.shim.streams import is_broken_connection, reason_of

if TYPE_CHECKING:
    import grpc
    from grpc import aio

_FIRST = 0.05
_LONGEST = 2.0


class Pauses:
    """Pauses between attempts, longer each time until something works."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel
        self._seconds = _FIRST

    def renew(self) -> None:
        self._seconds = _FIRST

    async def one(self) -> None:
        """Until the channel's state changes, or a moment: the relay, or the daemon, answers
        for an agent that is away, and nothing tells when it is back."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._channel.wait_for_state_change(self._channel.get_state())
        except TimeoutError:
            self._seconds = min(2 * self._seconds, _LONGEST)


def is_away(error: grpc.RpcError) -> bool:
    """Whether the agent did not answer, as opposed to a refusal of it."""
    return is_broken_connection(error) and reason_of(error) in ("", "AGENT_AWAY")

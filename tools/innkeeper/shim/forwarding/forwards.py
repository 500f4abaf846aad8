"""Any number of forwards between this host and one guest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from innkeeper.shim.forwarding.inward import GuestListener, Watcher
from innkeeper.shim.forwarding.outward import HostListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from grpc import aio

    from innkeeper.shim.forwarding.words import Forward, ForwardState


class Forwards:
    """Listens on this host from the beginning, and carries connections while it serves.

    What connects before that waits in the kernel's queue. Raises ADDRESS_IN_USE, BAD_FIELD
    and HOST_LACKS, with nothing left open.
    """

    def __init__(self, forwards: Iterable[Forward], *, patient: bool) -> None:
        self._outward: list[HostListener] = []
        self._inward: list[GuestListener] = []
        try:
            for forward in forwards:
                if forward.reverse:
                    self._inward.append(GuestListener(forward, patient=patient))
                else:
                    self._outward.append(HostListener(forward))
        except BaseException:
            self.close()
            raise

    @property
    def states(self) -> tuple[ForwardState, ...]:
        return (
            *(each.state for each in self._outward),
            *(each.state for each in self._inward),
        )

    async def serve(
        self,
        channel: aio.Channel,
        *,
        note: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Until cancelled. `note` gets a line for each connection that failed."""
        watcher = Watcher(note=note, changed=changed)
        async with asyncio.TaskGroup() as group:
            for outward in self._outward:
                group.create_task(outward.serve(channel, note))
            for inward in self._inward:
                group.create_task(inward.serve(channel, watcher))

    async def settled(self) -> None:
        """Until the guest has answered, well or not, to each that listens there."""
        for each in self._inward:
            await each.first_answer.wait()

    def close(self) -> None:
        for each in self._outward:
            each.close()

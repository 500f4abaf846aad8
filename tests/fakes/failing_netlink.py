"""A Netlink whose n-th change fails once."""

from __future__ import annotations

import errno
from typing import Any

from agent.core.deadlines import Deadline
from agent.core.netlink import Change, Netlink, NetlinkRefusal, Question


class FailingNetlink:
    """Passes everything on, one change at a time, but fails the n-th (from 1) with EIO.

    `done`: that change is made all the same, as when the answer is lost. `made` are the
    changes that were passed on. With n of 0 nothing fails, and `made` counts.
    """

    def __init__(self, netlink: Netlink, n: int, *, done: bool = False) -> None:
        self._netlink = netlink
        self._fails = n
        self._done = done
        self.seen = 0
        self.made: list[Change] = []

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        for change in changes:
            self.seen += 1
            failing = self.seen == self._fails
            if self._done or not failing:
                await self._netlink.change(change, deadline=deadline)
                self.made.append(change)
            if failing:
                raise NetlinkRefusal(errno.EIO, "a fake failure", change)

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        return await self._netlink.ask(question, deadline)

    def close(self) -> None:
        self._netlink.close()

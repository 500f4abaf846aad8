"""What containers ask of the network: interfaces that go and come, and what DNS files say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.errors import AgentError
    from agent.core.network import DnsState, LendingOrder


class FakeNetwork:
    """`lent` are the orders that are out, by container; `files` the inodes of the namespaces
    that they named; `done` is all that happened, in order."""

    def __init__(self) -> None:
        self.dns: DnsState | None = None
        self.lent: dict[str, LendingOrder] = {}
        self.namespaces: dict[str, int] = {}
        self.done: list[str] = []
        self.refusal: AgentError | None = None
        self.keeps: AgentError | None = None
        """Why interfaces don't come back."""

    async def lend(self, order: LendingOrder, deadline: Deadline) -> None:
        if deadline.passed:
            raise AssertionError("a deadline that has passed")
        if self.refusal is not None:
            raise self.refusal
        self.namespaces[order.container_id] = os.fstat(order.namespace).st_ino
        self.lent[order.container_id] = order
        self.done.append(f"lend {order.container_id}")

    async def take_back(
        self, container_id: str, deadline: Deadline, *, undone: bool = False
    ) -> None:
        if deadline.passed:
            raise AssertionError("a deadline that has passed")
        if self.keeps is not None:
            raise self.keeps
        if self.lent.pop(container_id, None) is not None:
            self.done.append(f"take back {container_id}{' undone' if undone else ''}")

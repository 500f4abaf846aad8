"""Interfaces that a container gets: after the runtime made its namespace, before it starts."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.core.errors import AgentError
from agent.core.network import LendingOrder
from agent.handlers.runtime.namespaces import network_of

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.spec.network import WantedInterfaces
    from agent.handlers.runtime.table import Container


async def give(
    context: RuntimeContext, container: Container, wanted: WantedInterfaces, deadline: Deadline
) -> None:
    """Move them; all or none. Raises what `Network.lend` does, and WRONG_STATE."""
    if not wanted or container.first is None:
        return
    container.save(replace(container.record, lent=True))
    with network_of(context.roots, container.first.record) as namespace:
        order = LendingOrder(
            container_id=container.id,
            namespace=namespace,
            lent=wanted.lent,
            moved=wanted.moved,
        )
        await context.network.lend(order, deadline)


async def take_back(
    context: RuntimeContext, container: Container, deadline: Deadline, *, undone: bool
) -> None:
    """Those that it was lent; when it was never made (`undone`) all. Twice is fine."""
    if container.record.lent:
        await context.network.take_back(container.id, deadline, undone=undone)


async def take_back_early(
    context: RuntimeContext, container: Container, deadline: Deadline
) -> None:
    """The same of one whose first process has ended, and which stays."""
    await take_back(context, container, deadline, undone=False)
    with contextlib.suppress(AgentError):
        # Not knowing that they are back, another agent would look for them in vain.
        container.save(replace(container.record, lent=False))

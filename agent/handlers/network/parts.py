"""The parts of the network that speak netlink, put together; loaded when first needed.

Whoever imports this loads pyroute2's messages: nobody but `manager.py` does, and late.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from agent.core.deadlines import Deadline
from agent.core.netlink import open_netlink
from agent.core.network import InterfaceState
from agent.core.rtnl.ethtool import open_ethtool
from agent.core.rtnl.monitor import open_monitor
from agent.handlers.network import watching
from agent.handlers.network.interfaces import Interfaces
from agent.handlers.network.lending import Lending, Sandbox
from agent.handlers.network.listing import hardware_of
from agent.handlers.network.neighbors import Neighbors
from agent.handlers.network.routes import Routes
from agent.handlers.network.watching import NetworkWatcher

if TYPE_CHECKING:
    from agent.core.events import EventLog
    from agent.core.hotplug import HotplugBoard
    from agent.core.netlink import KernelNetlink
    from agent.core.network import Link
    from agent.core.pid1 import Pid1Client
    from agent.core.state import StateStore

log = logging.getLogger(__name__)

RESTORE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the parts are made with."""

    board: HotplugBoard
    state: StateStore
    events: EventLog
    keeper: Pid1Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What does the work, and the watch over all changes."""

    interfaces: Interfaces
    routes: Routes
    neighbors: Neighbors
    lending: Lending
    stack: AsyncExitStack

    async def close(self) -> None:
        """End the watch; the network stays as it is."""
        await self.stack.aclose()


async def assemble(around: Surroundings) -> Parts:
    """Open the sockets, watch, and take back what a dead agent left half-way.

    Raises OSError where the kernel gives no netlink.
    """
    async with AsyncExitStack() as stack:
        netlink = open_netlink()
        stack.callback(netlink.close)
        ethtool = open_ethtool()
        stack.callback(ethtool.close)
        watcher = await _watch(around, netlink, stack)
        interfaces = Interfaces(
            netlink=netlink, ethtool=ethtool, board=around.board, state=around.state
        )
        await interfaces.restore(Deadline.after(RESTORE_SECONDS))
        return Parts(
            interfaces=interfaces,
            routes=Routes(netlink),
            neighbors=Neighbors(netlink),
            lending=_lending(around, netlink, watcher),
            stack=stack.pop_all(),
        )


def _lending(around: Surroundings, netlink: KernelNetlink, watcher: NetworkWatcher) -> Lending:
    tree = around.board.tree

    def describe(link: Link) -> InterfaceState:
        hardware = hardware_of(tree, link)
        return InterfaceState(
            link=link,
            driver=hardware.driver,
            pci_path=str(hardware.path or ""),
            pci_bdf=hardware.bdf,
        )

    sandbox = Sandbox(
        netlink=netlink,
        namespace=tree.roots.proc / str(os.getpid()) / "ns/net",
        describe=describe,
        moving=watcher.moving,
    )
    return Lending(sandbox, state=around.state, keeper=around.keeper)


async def _watch(
    around: Surroundings, netlink: KernelNetlink, stack: AsyncExitStack
) -> NetworkWatcher:
    """Our own routes are no news; links wake whoever waits for an interface."""
    monitor = open_monitor(own={netlink.port})
    stack.callback(monitor.close)
    look = partial(watching.look, netlink)
    watcher = NetworkWatcher(monitor, look, around.events, on_link=around.board.look_again)
    running = asyncio.create_task(watcher.run(), name="watch the network")
    running.add_done_callback(_told)
    stack.push_async_callback(_ended, running)
    # What changes from now on is told, that of the first request too.
    await watcher.ready.wait()
    return watcher


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the network is watched no more: %s", error, exc_info=error)

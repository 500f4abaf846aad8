"""Puts the agent together: mechanisms, managers, services; restores, serves, stops.

The socket is bound last, so whoever can connect finds an agent that has taken
over everything an earlier one left.
"""

from __future__ import annotations

import contextlib
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent.core import commands
from agent.core.deadlines import Deadline
from agent.core.events import RING_SIZE
from agent.core.exits import ExitWatcher, Expectation
from agent.core.life import WINDOW
from agent.handlers.guest import entropy
from agent.handlers.guest.clock import Clock
from agent.handlers.guest.describe import Describer, Limits
from agent.handlers.guest.shutdown import Shutdown
from agent.handlers.guest.teardown import Teardown
from agent.handlers.runtime.restore import restore as restore_containers
from agent.handlers.runtime.retention import EXEC_LIMIT
from agent.linux.uevents import KernelUevents
from agent.server import app
from agent.server.assembly import Mechanisms, Tables, make_mechanisms, make_tables
from agent.server.health import Health, Probe
from agent.server.limits import MESSAGE_BYTES, OBJECTS
from agent.server.sandbox import Guest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from agent.core.config import AgentConfig
    from agent.core.roots import Roots
    from agent.handlers.guest.describe import BootPhases
    from agent.linux.uevents import UeventSource

log = logging.getLogger(__name__)

STOP_GRACE: Final = 3.0
"""Seconds that calls in progress have to end when the agent is stopped."""

_AGENT_KIND, _AGENT_KEY = "agent", "agent"
_AGENT_CGROUP = "/agent"
_VERSION_SECONDS = 5.0

LIMITS: Final = Limits(
    message_bytes=MESSAGE_BYTES,
    stream_window_bytes=WINDOW,
    event_ring=RING_SIZE,
    objects=OBJECTS,
    processes_per_container=EXEC_LIMIT,
)


async def run(
    config: AgentConfig,
    roots: Roots,
    phases: BootPhases,
    stopping: asyncio.Event,
    *,
    uevents: Callable[[], UeventSource] = KernelUevents,
) -> None:
    """Serve until `stopping` is set. Raises AgentError when PID 1 can't be reached."""
    async with contextlib.AsyncExitStack() as stack:
        mechanisms = await make_mechanisms(config, roots, uevents(), stack)
        tables = make_tables(mechanisms)
        stack.push_async_callback(_close, tables)
        tables.runtime.watchers.oom.start()
        problems = await _restore(tables)
        await _announce(mechanisms, problems)
        health = _health(mechanisms, stack)
        server = _server(mechanisms, tables, health, phases)
        await server.start(roots.agent_socket)
        stack.push_async_callback(server.stop, STOP_GRACE)
        roots.agent_status.unlink(missing_ok=True)
        phases.note("agent_serving")
        log.info("serving", extra={"phases": phases.reached})
        # The worker is for the first mount: the first answer does not wait for it.
        await mechanisms.files.start()
        await stopping.wait()
        log.info("stopping")


async def _restore(tables: Tables) -> dict[str, str]:
    """Take over what an earlier agent left; what went wrong, by kind of object.

    A kind that can't be restored must not keep the agent away from all others.
    """
    runtime = tables.runtime
    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "devices": tables.devices.restore,
        "storages": tables.storages.restore,
        "network": tables.network.restore,
        "freezes": tables.storage_operations.restore,
        "sandbox": runtime.setup.restore,
        "containers": partial(
            restore_containers, tables.runtime.context, tables.runtime.containers
        ),
    }
    problems: dict[str, str] = {}
    for kind, restore in steps.items():
        try:
            await restore()
        except Exception as error:
            log.exception("%s could not be restored", kind)
            problems[kind] = str(error) or repr(error)
    return problems


async def _announce(parts: Mechanisms, problems: dict[str, str]) -> None:
    """Tell when an earlier agent was here, and how it ended; leave our own mark."""
    before = parts.state.load(_AGENT_KIND, _AGENT_KEY)
    if before is not None:
        cause = _cause(parts.exits, before)
        log.warning("taking over from an earlier agent: %s", cause)
        parts.events.publish("agent_restarted", "", {"cause": cause, **problems})
    mark = {"pid": os.getpid(), "after": await parts.exits.note()}
    parts.state.save(_AGENT_KIND, _AGENT_KEY, mark)


def _cause(exits: ExitWatcher, before: dict[str, Any]) -> str:
    pid = int(before.get("pid", 0))
    after = int(before.get("after", 0))
    entry = exits.find(Expectation(pid=pid, cgroup=_AGENT_CGROUP, after=after))
    if entry is None:
        return f"agent {pid} is gone, its end is not in the journal"
    if entry.signal:
        return f"agent {pid} was ended by signal {entry.signal}"
    return f"agent {pid} ended with status {entry.code}"


def _health(parts: Mechanisms, stack: contextlib.AsyncExitStack) -> Health:
    health = Health(Probe(parts.roots.state, parts.pid1), parts.events)
    health.start()
    stack.callback(health.stop)
    return health


def _server(
    parts: Mechanisms, tables: Tables, health: Health, phases: BootPhases
) -> app.AgentServer:
    guest = Guest(
        sandbox=tables.runtime.setup.sandbox,
        describer=Describer(
            roots=parts.roots,
            pid1=parts.pid1,
            phases=phases,
            limits=LIMITS,
            runtime_version=RuntimeVersion(),
        ),
        clock=Clock(),
        seed=partial(entropy.seed, parts.roots),
        shutdown=Shutdown(parts.pid1),
        teardown=Teardown(
            containers=tables.runtime.containers,
            storages=tables.storages,
            devices=tables.devices,
            dns=tables.network.resolver,
            setup=tables.runtime.setup,
        ),
        setup=tables.runtime.setup,
        resources=tables.resources,
        events=parts.events,
    )
    managers = app.Managers(
        devices=tables.devices,
        storages=tables.storages,
        storage_operations=tables.storage_operations,
        containers=tables.runtime.containers,
        usage=tables.runtime.usage,
        processes=tables.runtime.processes,
        listing=tables.runtime.listing,
        logs=tables.runtime.logs,
        files=tables.files,
        network=tables.network,
        sockets=tables.sockets,
    )
    timeout = parts.config.hotplug_timeout
    return app.build_server(guest, managers, health, hotplug_timeout=timeout)


class RuntimeVersion:
    """The first line of `crun --version`, asked for once."""

    def __init__(self) -> None:
        self._known = ""

    async def __call__(self) -> str:
        """Raises AgentError when crun can't be run."""
        if not self._known:
            deadline = Deadline.after(_VERSION_SECONDS)
            result = await commands.run(["crun", "--version"], deadline=deadline)
            self._known = result.stdout.decode(errors="replace").partition("\n")[0]
        return self._known


async def _close(tables: Tables) -> None:
    """Let go of everything and change nothing: the next agent takes it over."""
    await tables.copies.close()
    await tables.sockets.close()
    await tables.runtime.containers.close()
    await tables.runtime.setup.close()
    tables.runtime.watchers.oom.close()
    tables.runtime.watchers.pressure.close()
    await tables.network.close()
    await tables.exclusive.close()
    await tables.storage_operations.close()
    await tables.storages.close()
    await tables.devices.close()

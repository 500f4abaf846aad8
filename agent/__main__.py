"""Entry point of the agent: shuts what must be shut, then serves until told to stop.

The order matters. The filter against vsock comes before gRPC is imported, so
that it holds for every thread and child there will ever be. The heavy imports
come after the log is there to say why one failed.
"""

from __future__ import annotations

import time

# Before any import of ours: this is when the interpreter was ready.
_STARTED = time.clock_gettime(time.CLOCK_BOOTTIME)

import faulthandler  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from agent.core import logs  # noqa: E402
from agent.core.config import AgentConfig  # noqa: E402
from agent.core.roots import Roots  # noqa: E402
from agent.handlers.guest.describe import BootPhases  # noqa: E402
from agent.handlers.guest.hardening import harden  # noqa: E402
from agent.linux import pseudo  # noqa: E402

if TYPE_CHECKING:
    from agent.handlers.guest.describe import BootPhases as Phases

log = logging.getLogger("agent")


def main() -> None:
    """Be the agent; returns after SIGTERM or SIGINT, raises when it can't serve."""
    roots, phases = Roots(), BootPhases()
    phases.reached["agent_interpreter"] = _STARTED
    config, warnings = AgentConfig.from_cmdline(pseudo.read_text(roots.proc / "cmdline"))
    logs.start(config.log_level)
    _prepare_process()
    for warning in (*warnings, *harden(roots)):
        log.warning("%s", warning)
    try:
        _serve(config, roots, phases)
    except BaseException:
        # PID 1 starts us again; this line is what a person has to go by.
        log.critical("the agent ends", exc_info=True)
        raise


def _prepare_process() -> None:
    # gRPC's fork handlers deadlock or abort in children; ours are started by vfork.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    # Its own log is not JSON, and what matters of it comes as an error as well.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # The agent opens no TLS: asyncio does without, and libssl stays out of memory.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _serve(config: AgentConfig, roots: Roots, phases: Phases) -> None:
    import asyncio

    from agent.server import wiring

    phases.note("agent_imported")

    async def until_signalled() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        await wiring.run(config, roots, phases, stopping)

    asyncio.run(until_signalled())


if __name__ == "__main__":
    main()

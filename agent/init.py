"""Entry point of PID 1; all it does is in `agent.pid1`."""

from __future__ import annotations

import os
import sys
import time

_NOT_PID_1 = (
    "innkeeper init: this is the guest's PID 1 and does nothing as another process;"
    " boot the image, or use the test bed in tests/privileged\n"
)


def main() -> int:
    """Never returns as PID 1; as any other process says so and returns 2."""
    if os.getpid() == 1:
        _be_pid_1(time.clock_gettime(time.CLOCK_BOOTTIME))
    sys.stderr.write(_NOT_PID_1)
    return 2


def _be_pid_1(started: float) -> None:
    # Imported here so that the time this takes is measured.
    from agent.pid1 import guest, supervisor
    from agent.pid1.console import Console

    console = Console()
    supervisor.run(guest.layout(console), console, started=started)


if __name__ == "__main__":
    sys.exit(main())

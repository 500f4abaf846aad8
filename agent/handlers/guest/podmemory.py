"""The bound of all containers' memory follows the guest's memory.

PID 1 sets `memory.max` of /pods at boot, from what there is then. What is plugged in
later is for the containers, so the bound has to grow with it, and to shrink with what
goes offline, also when the kernel does it without us.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agent.linux import podmemory, pseudo

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.core.roots import Roots
    from agent.linux.uevents import Uevent

log = logging.getLogger(__name__)


class PodMemory:
    """Keeps /pods/memory.max right; `total` tells the guest's memory in bytes."""

    def __init__(self, roots: Roots, *, total: Callable[[], int] = podmemory.total_memory) -> None:
        self._pods = roots.cgroup / "pods"
        self._total = total

    def on_event(self, event: Uevent | None) -> None:
        """A listener of the hotplug board: a block changed, or events were lost."""
        if event is None or event.subsystem == "memory":
            self.fit()

    def fit(self) -> None:
        """Write the bound for what there is now, but never less than is in use.

        The kernel would end containers to get below a bound (cgroup-v2.rst, memory.max):
        what they hold when memory goes is theirs.
        """
        limit = self._pods / "memory.max"
        try:
            held = (pseudo.read_optional(limit) or "").strip()
            used = int(pseudo.read_optional(self._pods / "memory.current") or 0)
            wanted = str(max(podmemory.bound(self._total()), used))
            if held and held != wanted:
                pseudo.write(limit, wanted)
                log.info("all containers together may have %s bytes of memory", wanted)
        except OSError as error:
            log.warning("the bound of all containers' memory could not be changed: %s", error)

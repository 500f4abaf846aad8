"""The kernel's log as a part of the tree that probes read (`core/tree.py`, `KernelLines`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.kernel_refusals import refusal
from agent.core.verdict import Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.core.kernel_log import KernelLog
    from agent.linux.kmsg import KernelRecord


class LogEvidence:
    """What a kernel log says of devices."""

    def __init__(self, log: KernelLog) -> None:
        self._log = log

    def lines(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The lines that name one of them since it came, oldest first; a bounded number."""
        return self._log.about(*names) if names else ()

    def refusal(self, names: tuple[str, ...]) -> Failed | None:
        """Why no driver will serve them: one has tried, and given up."""
        told = refusal(self._log.records(*names)) if names else None
        return Failed(told.text, told.reason, names) if told and told.final else None

    def explanation(self, names: tuple[str, ...]) -> Failed | None:
        """What went wrong with them, for a wait that is over: nobody has given up."""
        told = refusal(self._log.records(*names)) if names else None
        return Failed(told.text, told.reason, names) if told else None


def tells_of_trouble(then: Callable[[], None]) -> Callable[[KernelRecord], None]:
    """A listener that calls `then` for records that may end a wait, and for no others."""

    def listen(record: KernelRecord) -> None:
        if refusal((record,)) is not None:
            then()

    return listen

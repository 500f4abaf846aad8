"""QEMU's monitor: `qemu.qmp` with our errors and with callbacks for events.

A command that QEMU refuses raises QEMU_REFUSED with QEMU's own words; a monitor
that is gone raises QEMU_GONE. Events reach their handlers in the order in which
QEMU sent them, and before the answer to any command that QEMU took later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from qemu.qmp import ExecuteError, QMPClient, QMPError, Runstate
from qemu.qmp.events import EventListener

from innkeeper.shim.errors import Reason, ShimError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    EventHandler = Callable[[str, Mapping[str, Any]], None]

_log = logging.getLogger(__name__)


class QemuRefusedError(ShimError):
    """QEMU answered with an error; `error_class` and `text` are its own words."""

    def __init__(self, command: str, error_class: str, text: str) -> None:
        super().__init__(
            Reason.QEMU_REFUSED,
            f"QEMU refused {command}: {text}",
            fields={"command": command, "error": text},
        )
        self.command = command
        self.error_class = error_class
        self.text = text

    @property
    def is_unknown_device(self) -> bool:
        return self.error_class == "DeviceNotFound"


class Monitor:
    """One QMP connection; good until QEMU ends."""

    def __init__(self, name: str) -> None:
        self._client = QMPClient(name)
        self._handlers: list[EventHandler] = []
        self._listener = EventListener()
        self._client.register_listener(self._listener)
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.closed = asyncio.Event()

    def on_event(self, handler: EventHandler) -> None:
        """`handler(name, data)` for every event from now on; it must not block."""
        self._handlers.append(handler)

    async def connect(self, connected: socket.socket) -> None:
        """Takes a connected socket. Raises QEMU_GONE when QEMU ended at once."""
        # The library logs a failed greeting as an error; ours to report.
        logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)
        try:
            await self._client.connect(connected)
        except (QMPError, AssertionError) as error:
            # The library asserts that the session it has just made still stands.
            self.closed.set()
            raise _gone() from error
        self._tasks = (
            asyncio.create_task(self._pump(), name="qmp events"),
            asyncio.create_task(self._watch(), name="qmp end"),
        )

    async def execute(self, command: str, arguments: Mapping[str, object] | None = None) -> Any:
        try:
            return await self._client.execute(command, arguments)
        except ExecuteError as error:
            raise QemuRefusedError(command, error.error_class, str(error)) from None
        except QMPError as error:
            raise _gone() from error

    async def close(self) -> None:
        """Ends the connection; safe to call twice."""
        with contextlib.suppress(Exception):
            await self._client.disconnect()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = ()
        self.closed.set()

    async def _pump(self) -> None:
        async for event in self._listener:
            name, data = str(event["event"]), event.get("data") or {}
            _log.debug("event %s %s", name, data)
            for handler in self._handlers:
                self._call(handler, name, data)

    @staticmethod
    def _call(handler: EventHandler, name: str, data: Any) -> None:
        try:
            handler(name, data)
        except Exception:  # noqa: BLE001 - see below
            # One handler's bug must not take the events of all others away.
            _log.exception("handler of event %s failed", name)

    async def _watch(self) -> None:
        while self._client.runstate is Runstate.RUNNING:
            await self._client.runstate_changed()
        self.closed.set()


def _gone() -> ShimError:
    return ShimError(Reason.QEMU_GONE, "QEMU has ended")

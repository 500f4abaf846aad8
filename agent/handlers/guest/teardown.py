"""Sandbox.Destroy: removes everything, goes on after failures, lists what is left.

Order of dependency reversed: containers, then storages, then devices; then what Create set
up, and what DNS says. Storages can rest on each other, so what is refused is tried again
whenever one is gone; one that hangs keeps none of the others waiting.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from contextlib import AbstractContextManager

    from agent.core.model import AttachedDevice, ContainerStatus, MountedStorage

log = logging.getLogger(__name__)

GRACE: Final = 2.0
"""Seconds that a container has between SIGTERM and SIGKILL."""


_SETUP_SECONDS: Final = 2.0
"""Seconds for what Create set up, when the objects took all the time."""


class Containers(Protocol):
    """What is needed of handlers.runtime.containers."""

    async def remove(
        self,
        container_id: str,
        grace: float,
        timeout: float | None,
        *,
        sandbox_gone: bool = False,
    ) -> None: ...
    def list(self) -> tuple[ContainerStatus, ...]: ...
    def being_created(self) -> tuple[str, ...]: ...
    def closed(self) -> AbstractContextManager[None]: ...


class Storages(Protocol):
    """What is needed of handlers.storage.manager."""

    async def detach(self, storage_id: str, timeout: float | None) -> object: ...
    def list(self) -> tuple[MountedStorage, ...]: ...


class Devices(Protocol):
    """What is needed of handlers.devices.manager."""

    async def forget(self, device_id: str) -> None: ...
    def list(self) -> tuple[AttachedDevice, ...]: ...


class Dns(Protocol):
    """What is needed of handlers.network.resolver."""

    async def clear(self, deadline: Deadline) -> None: ...


class Setup(Protocol):
    """What is needed of handlers.guest.setup."""

    async def alone(
        self, work: Callable[[], Coroutine[Any, Any, tuple[str, ...]]]
    ) -> tuple[str, ...]: ...
    async def undo(self, deadline: Deadline, *, keep_dns: bool = False) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class _Removal:
    """One object and how it goes."""

    name: str
    remove: Callable[[], Awaitable[object]]


class Teardown:
    """Removes every object of the sandbox."""

    def __init__(
        self,
        *,
        containers: Containers,
        storages: Storages,
        devices: Devices,
        dns: Dns,
        setup: Setup,
    ) -> None:
        self._containers = containers
        self._storages = storages
        self._devices = devices
        self._dns = dns
        self._setup = setup

    async def run(self, timeout: float) -> tuple[str, ...]:
        """What could not be removed within `timeout`, one line each; the sandbox is gone
        in any case, and another one may be made."""
        deadline = Deadline.after(timeout)
        return await self._setup.alone(lambda: self._alone(deadline))

    async def _alone(self, deadline: Deadline) -> tuple[str, ...]:
        # Whoever came to life meanwhile would hold storages that go.
        with self._containers.closed():
            return await self._run(deadline)

    async def _run(self, deadline: Deadline) -> tuple[str, ...]:
        left = await _all_at_once(self._container_removals(deadline), deadline)
        left |= await _while_some_go(self._storage_removals(deadline), deadline)
        left |= await _all_at_once(self._device_removals(), deadline)
        forget = _Removal("resolv.conf and hosts", lambda: self._dns.clear(deadline))
        left |= await _all_at_once([forget], deadline)
        lines = tuple(f"{name}: {why}" for name, why in left.items())
        # When the time is over, what needs none is still taken back.
        lines += await self._setup.undo(_at_least(deadline, _SETUP_SECONDS), keep_dns=True)
        if lines:
            log.warning("the sandbox is not empty: %s", "; ".join(lines))
        return lines

    def _container_removals(self, deadline: Deadline) -> list[_Removal]:
        def removal(container_id: str) -> _Removal:
            return _Removal(
                f"container {container_id}",
                lambda: self._containers.remove(
                    container_id, GRACE, deadline.left(), sandbox_gone=True
                ),
            )

        made = [status.id for status in self._containers.list()]
        return [removal(each) for each in (*made, *self._containers.being_created())]

    def _storage_removals(self, deadline: Deadline) -> list[_Removal]:
        def removal(storage_id: str) -> _Removal:
            return _Removal(
                f"storage {storage_id}",
                lambda: self._storages.detach(storage_id, deadline.left()),
            )

        return [removal(mounted.request.id) for mounted in self._storages.list()]

    def _device_removals(self) -> list[_Removal]:
        """The agent forgets devices; unplugging them is the host's."""

        def removal(device_id: str) -> _Removal:
            return _Removal(f"device {device_id}", lambda: self._devices.forget(device_id))

        return [removal(attached.request.id) for attached in self._devices.list()]


async def _while_some_go(removals: Iterable[_Removal], deadline: Deadline) -> dict[str, str]:
    """Name and reason of each object that is still there when no more of them go.

    Told in the order of `removals`: which of them was refused first is chance.
    """
    chosen = list(removals)
    left: dict[str, str] = {}
    waiting: list[_Removal] = []
    running = {asyncio.create_task(_failure(one, deadline)): one for one in chosen}
    try:
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                one = running.pop(task)
                if why := task.result():
                    left[one.name] = why
                    waiting.append(one)
            if any(not task.result() for task in done):
                running |= {asyncio.create_task(_failure(one, deadline)): one for one in waiting}
                waiting = []
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return {one.name: left[one.name] for one in chosen if one in waiting}


async def _all_at_once(removals: Iterable[_Removal], deadline: Deadline) -> dict[str, str]:
    """Name and reason of each object that is still there."""
    chosen = list(removals)
    reasons = await asyncio.gather(*(_failure(removal, deadline) for removal in chosen))
    return {one.name: why for one, why in zip(chosen, reasons, strict=True) if why}


async def _failure(removal: _Removal, deadline: Deadline) -> str:
    try:
        async with deadline.limit():
            await removal.remove()
    except TimeoutError:
        return "the time is over"
    except AgentError as error:
        # Somebody else has removed it meanwhile.
        return "" if error.reason is Reason.UNKNOWN_CONTAINER else str(error)
    except Exception as error:  # one object's bug must not keep all others
        log.exception("%s: unexpected error", removal.name)
        return f"unexpected error: {error!r}"
    return ""


def _at_least(deadline: Deadline, seconds: float) -> Deadline:
    return max(deadline, Deadline.after(seconds), key=lambda each: each.at)

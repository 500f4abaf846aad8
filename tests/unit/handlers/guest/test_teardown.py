"""Sandbox.Destroy: what hangs keeps nothing else in place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, not_found, wrong_state
from agent.handlers.guest.teardown import Teardown

pytestmark = [pytest.mark.unit, pytest.mark.operations]


class _Nothing:
    def list(self) -> tuple[Any, ...]:
        return ()

    async def remove(
        self,
        container_id: str,
        grace: float,
        timeout: float | None,
        *,
        sandbox_gone: bool = False,
    ) -> None: ...

    def being_created(self) -> tuple[str, ...]:
        return ()

    def closed(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def forget(self, device_id: str) -> None: ...

    async def clear(self, deadline: Deadline) -> None: ...

    async def alone(
        self, work: Callable[[], Coroutine[Any, Any, tuple[str, ...]]]
    ) -> tuple[str, ...]:
        return await work()

    async def undo(self, deadline: Deadline, *, keep_dns: bool = False) -> tuple[str, ...]:
        return ()


class _Storages:
    """`hung` never goes; `base` is refused while `top` is there, `top` while `lid` is."""

    def __init__(self) -> None:
        self.there = ["hung", "base", "top", "lid"]
        self.gone: list[str] = []
        self.all_others_gone = asyncio.Event()

    def list(self) -> tuple[Any, ...]:
        return tuple(SimpleNamespace(request=SimpleNamespace(id=name)) for name in self.there)

    async def detach(self, storage_id: str, timeout: float | None) -> None:
        if storage_id == "hung":
            # Until the others are gone: in rounds they never would be.
            await self.all_others_gone.wait()
            raise wrong_state("its server is dead", reason=Reason.UNMOUNT_REFUSED)
        above = {"base": "top", "top": "lid"}.get(storage_id)
        if above in self.there:
            raise wrong_state(f"{above} builds on it", reason=Reason.STILL_IN_USE)
        self.there.remove(storage_id)
        self.gone.append(storage_id)
        if self.there == ["hung"]:
            self.all_others_gone.set()


class _Containers(_Nothing):
    """`c1` is removed by another meanwhile, `c2` is being created."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.is_closed = False

    def list(self) -> tuple[Any, ...]:
        return (SimpleNamespace(id="c1"),)

    def being_created(self) -> tuple[str, ...]:
        return ("c2",)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        self.is_closed = True
        yield
        self.is_closed = False

    async def remove(
        self,
        container_id: str,
        grace: float,
        timeout: float | None,
        *,
        sandbox_gone: bool = False,
    ) -> None:
        assert sandbox_gone
        assert self.is_closed
        self.removed.append(container_id)
        if container_id == "c1":
            raise not_found("there is no container c1", reason=Reason.UNKNOWN_CONTAINER)


def _teardown(
    storages: _Storages, *, setup: _Nothing | None = None, containers: _Nothing | None = None
) -> Teardown:
    return Teardown(
        containers=containers or _Nothing(),
        storages=storages,
        devices=_Nothing(),
        dns=_Nothing(),
        setup=setup or _Nothing(),
    )


async def test_what_rests_on_others_goes_in_order_beside_one_that_hangs() -> None:
    storages = _Storages()
    teardown = _teardown(storages)
    (line,) = await teardown.run(30)
    assert storages.gone == ["lid", "top", "base"]
    assert line.startswith("storage hung: ")
    assert "its server is dead" in line


async def test_what_nobody_lets_go_is_told_once_nothing_else_goes() -> None:
    storages = _Storages()
    storages.there = ["base", "top"]
    storages.detach = _refused  # type: ignore[method-assign]
    teardown = _teardown(storages)
    assert await teardown.run(30) == ("storage base: in use", "storage top: in use")


async def test_what_is_left_is_told_in_the_order_of_the_list() -> None:
    storages = _Storages()
    storages.there = [f"disk{number}" for number in range(20)]
    storages.detach = _refused  # type: ignore[method-assign]
    teardown = _teardown(storages)
    told = await teardown.run(30)
    assert told == tuple(f"storage disk{number}: in use" for number in range(20))


class _Setup(_Nothing):
    """Tells how much time it was given."""

    left = 0.0

    async def undo(self, deadline: Deadline, *, keep_dns: bool = False) -> tuple[str, ...]:
        self.left = deadline.left()
        assert keep_dns
        return ("module loop: Module loop is in use",)


async def test_what_create_set_up_goes_last_and_has_time_left() -> None:
    """Also when the objects took all the time."""
    storages, setup = _Storages(), _Setup()
    storages.there = ["hung"]
    lines = await _teardown(storages, setup=setup).run(0.01)
    assert lines == ("storage hung: the time is over", "module loop: Module loop is in use")
    assert setup.left > 1


async def _refused(storage_id: str, timeout: float | None) -> None:
    raise wrong_state("in use", reason=Reason.STILL_IN_USE)


async def test_containers_that_are_being_created_go_too_and_no_others_come() -> None:
    storages, containers = _Storages(), _Containers()
    storages.there = []
    assert await _teardown(storages, containers=containers).run(30) == ()
    assert containers.removed == ["c1", "c2"]
    assert not containers.is_closed

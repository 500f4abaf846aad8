"""Sandbox.Destroy: what hangs keeps nothing else in place."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, wrong_state
from agent.handlers.guest.teardown import Teardown

pytestmark = [pytest.mark.unit, pytest.mark.operations]


class _Nothing:
    def list(self) -> tuple[Any, ...]:
        return ()

    async def remove(self, container_id: str, grace: float, timeout: float | None) -> None: ...

    async def forget(self, device_id: str) -> None: ...

    async def clear(self, deadline: Deadline) -> None: ...


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


async def test_what_rests_on_others_goes_in_order_beside_one_that_hangs() -> None:
    storages = _Storages()
    teardown = Teardown(
        containers=_Nothing(), storages=storages, devices=_Nothing(), dns=_Nothing()
    )
    (line,) = await teardown.run(30)
    assert storages.gone == ["lid", "top", "base"]
    assert line.startswith("storage hung: ")
    assert "its server is dead" in line


async def test_what_nobody_lets_go_is_told_once_nothing_else_goes() -> None:
    storages = _Storages()
    storages.there = ["base", "top"]
    storages.detach = _refused  # type: ignore[method-assign]
    teardown = Teardown(
        containers=_Nothing(), storages=storages, devices=_Nothing(), dns=_Nothing()
    )
    assert await teardown.run(30) == ("storage base: in use", "storage top: in use")


async def test_what_is_left_is_told_in_the_order_of_the_list() -> None:
    storages = _Storages()
    storages.there = [f"disk{number}" for number in range(20)]
    storages.detach = _refused  # type: ignore[method-assign]
    teardown = Teardown(
        containers=_Nothing(), storages=storages, devices=_Nothing(), dns=_Nothing()
    )
    told = await teardown.run(30)
    assert told == tuple(f"storage disk{number}: in use" for number in range(20))


async def _refused(storage_id: str, timeout: float | None) -> None:
    raise wrong_state("in use", reason=Reason.STILL_IN_USE)

"""The network's parts are loaded when first needed, once."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, exhausted
from agent.core.state import StateStore
from agent.handlers.network.manager import Mechanisms, NetworkManager

pytestmark = [pytest.mark.unit, pytest.mark.network]


class FullStore(StateStore):
    """Has no room."""

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None:
        del kind, key, data
        raise exhausted("the run directory is full", reason=Reason.NO_SPACE)


@dataclass
class Routes:
    """Has none."""

    async def list(self, deadline: Deadline, **which: Any) -> str:
        del deadline, which
        return "no routes"


@dataclass
class Parts:
    """Counts how often it was made and closed."""

    made: int = 0
    closed: int = 0
    routes: Routes = field(default_factory=Routes)

    async def assemble(self, _around: object) -> Parts:
        self.made += 1
        return self

    async def close(self) -> None:
        self.closed += 1


async def test_without_room_for_a_note_it_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its sockets are opened once, not by each request anew."""
    parts = Parts()
    module = ModuleType("agent.handlers.network.parts")
    vars(module).update(assemble=parts.assemble, Surroundings=SimpleNamespace)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    nothing = cast("Any", None)
    mechanisms = Mechanisms(
        board=nothing,
        state=FullStore(tmp_path),
        events=nothing,
        keeper=nothing,
        devices=nothing,
        hotplug_timeout=1.0,
    )
    manager = NetworkManager(mechanisms, resolver=nothing, firewall=nothing)
    for _ in range(2):
        assert str(await manager.routes(table=0, family=None, timeout=1)) == "no routes"
    await manager.close()
    assert (parts.made, parts.closed) == (1, 1)

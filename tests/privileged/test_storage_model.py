"""Random lives of storages on the real kernel agree with a small model.

The same question as in tests/unit/handlers/storage/test_life.py, where any order is tried
on a fake; here fewer orders, with mounts, directories and state files as they are.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.core.errors import AgentError
from agent.core.model import StorageRequest
from agent.core.sources import (
    BindSource,
    LocalSource,
    OverlaySource,
    Source,
    StorageDirectory,
    TmpfsSource,
)
from tests.privileged.counts import often
from tests.privileged.sourcelab import SourceLab, source_lab

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts"),
]

IDS = ("a", "b", "c", "d", "e")
STEPS = 30


@dataclass
class Storage:
    request: StorageRequest
    bases: frozenset[str]
    users: set[str] = field(default_factory=set)


class Life:
    """One sequence: each step is done to the manager, and to the model if it should succeed."""

    def __init__(self, lab: SourceLab, seed: int) -> None:
        self._lab = lab
        self._chance = random.Random(seed)
        self._model: dict[str, Storage] = {}

    async def step(self) -> None:
        one = self._chance.choice(IDS)
        doing = self._chance.choice(
            (self._attach, self._attach, self._attach, self._use, self._leave, self._detach)
        )
        await doing(one)
        if self._chance.random() < 0.1:
            await self._restart()
        self._agree()

    async def end(self) -> None:
        for storage in self._model.values():
            storage.users.clear()
        self._lab.storages.keep_users([])
        assert await self._lab.storages.detach_all() == ()
        assert self._lab.mounts() == []
        assert self._lab.state.load_all("storages") == {}
        assert list(self._lab.roots.storages.iterdir()) == []

    async def _attach(self, one: str) -> None:
        source, bases, options = self._source(one)
        request = StorageRequest(id=one, source=source, options=options)
        known = self._model.get(one)
        fine = bases <= set(self._model) - {one} and not options
        wanted = known.request == request if known else fine
        assert await self._does(self._lab.storages.attach(request)) == wanted, request
        if wanted and known is None:
            self._model[one] = Storage(request, bases)

    def _source(self, one: str) -> tuple[Source, frozenset[str], tuple[str, ...]]:
        other, third = self._chance.sample(IDS, 2)
        place = StorageDirectory(storage_id=other)
        match self._chance.randrange(6):
            case 0:
                return TmpfsSource(size=1 << 20), frozenset(), ()
            case 1:
                return TmpfsSource(), frozenset(), ("nonsense=1",)
            case 2:
                return BindSource(directory=place), frozenset({other}), ()
            case 3:
                return LocalSource(), frozenset(), ()
            case 4:
                return LocalSource(storage_id=other), frozenset({other}), ()
            case _:
                upper = StorageDirectory(storage_id=third, path=f"upper-{one}")
                work = StorageDirectory(storage_id=third, path=f"work-{one}")
                layers = OverlaySource(lower=(place,), upper=upper, work=work)
                return layers, frozenset({other, third}), ()

    async def _use(self, one: str) -> None:
        if one in self._model:
            box = self._chance.choice("xy")
            self._lab.storages.acquire(one, box)
            self._model[one].users.add(box)

    async def _leave(self, one: str) -> None:
        box = self._chance.choice("xy")
        self._lab.storages.release(one, box)
        if one in self._model:
            self._model[one].users.discard(box)

    async def _detach(self, one: str) -> None:
        free = one in self._model and not (self._model[one].users or self._builders(one))
        assert await self._does(self._lab.storages.detach(one)) == free
        if free:
            del self._model[one]

    async def _restart(self) -> None:
        await self._lab.storages.close()
        self._lab.storages = self._lab.new_manager()
        await self._lab.storages.restore()
        kept = frozenset(self._chance.choice(("", "x", "xy")))
        self._lab.storages.keep_users(kept)
        for storage in self._model.values():
            storage.users &= kept

    async def _does(self, doing: object) -> bool:
        try:
            await doing  # type: ignore[misc]
        except AgentError:
            return False
        return True

    def _builders(self, base: str) -> set[str]:
        return {one for one, storage in self._model.items() if base in storage.bases}

    def _agree(self) -> None:
        mounted = sorted(Path(entry.mount_point).name for entry in self._lab.mounts())
        shown = {each.request.id: each for each in self._lab.storages.list()}
        assert mounted == sorted(self._model) == sorted(shown)
        assert set(self._lab.state.load_all("storages")) == set(self._model)
        folder = self._lab.roots.storages
        points = {path.name for path in folder.iterdir()} if folder.exists() else set()
        assert points == set(self._model)
        for one, storage in self._model.items():
            assert shown[one].users == storage.users
            assert shown[one].used_by == self._builders(one)


@pytest.mark.parametrize("seed", range(often(12)))
async def test_a_random_life_agrees_with_the_model(tmp_path: Path, seed: int) -> None:
    async with source_lab(tmp_path) as lab:
        life = Life(lab, seed)
        for _ in range(STEPS):
            await life.step()
        await life.end()

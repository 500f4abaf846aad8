"""Any order of attaching, sharing, failing, detaching and dying agrees with a small model."""

from __future__ import annotations

import asyncio
import errno
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.core.errors import AgentError
from agent.handlers.storage import taking
from agent.handlers.storage.pieces import PieceKind
from tests.fakes.storage_classes import Things, on, plain, with_classes
from tests.fakes.storages import StorageBench, storage_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

IDS = st.sampled_from(["a", "b", "c", "d"])
BOXES = st.sampled_from(["c1", "c2"])


@dataclass(frozen=True)
class Attach:
    """With `pieces`, of which the one of this number fails (0: none); `error` is the mount's."""

    id: str
    pieces: int
    failing: int
    error: int


@dataclass(frozen=True)
class Build:
    id: str
    base: str
    error: int


@dataclass(frozen=True)
class Use:
    id: str
    box: str


@dataclass(frozen=True)
class Leave:
    id: str
    box: str


@dataclass(frozen=True)
class Detach:
    id: str
    error: int


@dataclass(frozen=True)
class Die:
    """The agent is killed, at rest or (`half`) after the last storage's mount was noted."""

    half: bool
    boxes: frozenset[str]


Step: TypeAlias = Attach | Build | Use | Leave | Detach | Die

MOUNT_ERRORS = st.sampled_from([0, 0, 0, errno.EIO, errno.ENOSPC, errno.EBUSY])
STEPS = st.one_of(
    st.builds(Attach, IDS, st.integers(0, 2), st.sampled_from([0, 0, 1, 2]), MOUNT_ERRORS),
    st.builds(Build, IDS, IDS, MOUNT_ERRORS),
    st.builds(Use, IDS, BOXES),
    st.builds(Leave, IDS, BOXES),
    st.builds(Detach, IDS, st.sampled_from([0, 0, errno.EBUSY])),
    st.builds(Die, st.booleans(), st.frozensets(BOXES)),
)


@dataclass
class Storage:
    request: object
    base: str = ""
    users: set[str] = field(default_factory=set)
    pieces: int = 0


class Model:
    """What must be there."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}

    def builders(self, base: str) -> set[str]:
        return {name for name, each in self.storages.items() if each.base == base}

    def is_free(self, name: str) -> bool:
        return not (self.storages[name].users or self.builders(name))

    def attach(self, step: Attach) -> bool:
        request = plain(step.id, step.pieces, step.failing)
        if known := self.storages.get(step.id):
            return known.request == request
        if 0 < step.failing <= step.pieces or step.error:
            return False
        self.storages[step.id] = Storage(request, pieces=step.pieces)
        return True

    def build(self, step: Build) -> bool:
        request = on(step.id, step.base)
        if known := self.storages.get(step.id):
            return known.request == request
        if step.base == step.id or step.base not in self.storages or step.error:
            return False
        self.storages[step.id] = Storage(request, base=step.base)
        return True

    def detach(self, step: Detach) -> bool:
        if step.id not in self.storages or not self.is_free(step.id) or step.error:
            return False
        del self.storages[step.id]
        return True

    def die(self, step: Die) -> None:
        if step.half and self.storages:
            newest = list(self.storages)[-1]
            del self.storages[newest]
        for storage in self.storages.values():
            storage.users &= step.boxes


async def play(bench: StorageBench, model: Model, step: Step) -> bool:
    """Do one step to both; whether both had it succeed."""
    manager = bench.storages
    try:
        match step:
            case Attach():
                bench.files.errors = [step.error] if step.error else []
                await manager.attach(plain(step.id, step.pieces, step.failing))
                return model.attach(step)
            case Build():
                bench.files.errors = [step.error] if step.error else []
                await manager.attach(on(step.id, step.base))
                return model.build(step)
            case Use() | Leave():
                use(bench, model, step)
            case Detach():
                bench.files.unmount_error = step.error or None
                await manager.detach(step.id)
                return model.detach(step)
            case Die():
                await die(bench, step)
                model.die(step)
    except AgentError:
        return not would_do(model, step)
    finally:
        bench.files.errors = []
        bench.files.unmount_error = None
    return True


def use(bench: StorageBench, model: Model, step: Use | Leave) -> None:
    if isinstance(step, Use):
        bench.storages.acquire(step.id, step.box)
        model.storages[step.id].users.add(step.box)
    else:
        bench.storages.release(step.id, step.box)
        if step.id in model.storages:
            model.storages[step.id].users.discard(step.box)


def would_do(model: Model, step: Step) -> bool:
    match step:
        case Attach():
            return model.attach(step)
        case Build():
            return model.build(step)
        case Detach():
            return model.detach(step)
        case Use():
            return step.id in model.storages
        case _:
            return True


async def die(bench: StorageBench, step: Die) -> None:
    if step.half and (storages := bench.storages.list()):
        newest = storages[-1].request.id
        data = bench.lab.state.load("storages", newest)
        assert data is not None
        bench.lab.state.save("storages", newest, {**data, "phase": "mounting"})
    bench.storages = bench.new_manager()
    await bench.storages.restore()
    bench.storages.keep_users(step.boxes)


def agree(bench: StorageBench, things: Things, model: Model) -> None:
    names = set(model.storages)
    assert {Path(path).name for path in bench.files.mounted} == names
    assert len(bench.files.mounted) == len(names)
    shown = {each.request.id: each for each in bench.storages.list()}
    assert set(shown) == names == set(bench.lab.state.load_all("storages"))
    folder = bench.roots.storages
    assert {path.name for path in folder.iterdir()} == names if folder.exists() else not names
    for name, storage in model.storages.items():
        assert shown[name].users == storage.users
        assert shown[name].used_by == model.builders(name)
    pieces = {f"{name}.{n}" for name, each in model.storages.items() for n in range(each.pieces)}
    assert things.there == pieces


async def scenario(steps: list[Step], base: Path) -> None:
    things, model = Things(), Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taking, "_BY_KIND", dict.fromkeys(PieceKind, things.take_back))
        async with storage_bench(base) as bench:
            with_classes(bench, things)
            for step in steps:
                assert await play(bench, model, step), step
                agree(bench, things, model)
            model.die(Die(half=False, boxes=frozenset()))
            bench.storages.keep_users([])
            assert await bench.storages.detach_all() == ()
            assert (bench.files.mounted, things.there) == ([], set())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=14))
def test_any_sequence_agrees_with_the_model(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as base:
        asyncio.run(scenario(steps, Path(base)))

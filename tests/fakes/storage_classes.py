"""Storage classes whose pieces are names, for tests of what holds for every class."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from functools import partial

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.fileops import FsMount
from agent.core.model import StorageRequest
from agent.core.sources import BindSource, StorageDirectory, TmpfsSource
from agent.handlers.storage.base import MountPlan, StorageClass, Tools
from agent.handlers.storage.classes import ClassTable
from agent.handlers.storage.job import Job
from agent.handlers.storage.manager import StorageManager
from agent.handlers.storage.pieces import Piece, PieceKind
from tests.fakes.storages import StorageBench, made_from


@dataclass
class Things:
    """What pieces stand for: `there` now, and the order of what was done."""

    there: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    stays: set[str] = field(default_factory=set)

    async def make(self, name: str, *, fail: bool = False) -> str:
        self.there.add(name)
        self.done.append(f"make {name}")
        if fail:
            raise AgentError("no", code=Code.FAILED_PRECONDITION, reason=Reason.MAPPING_REFUSED)
        return name

    async def take_back(self, _tools: Tools, piece: Piece, _deadline: Deadline) -> None:
        if piece.name in self.stays:
            raise OSError(errno.EBUSY, "ioctl: Device or resource busy", piece.name)
        self.there.discard(piece.name)
        self.done.append(f"take {piece.name}")


class WithPieces(StorageClass[TmpfsSource]):
    """`size` pieces before the mount; the piece of number `mode` fails."""

    name = "pieces"
    source = TmpfsSource

    def __init__(self, things: Things) -> None:
        self._things = things

    async def prepare(self, job: Job[TmpfsSource]) -> MountPlan:
        for number in range(job.source.size):
            name = f"{job.request.id}.{number}"
            fail = job.source.mode == number + 1
            await job.make(
                Piece(kind=PieceKind.MAPPING, name=name, lasts=number != 9),
                partial(self._things.make, name, fail=fail),
            )
        return MountPlan(call=FsMount(fs_type="tmpfs", source="none"))


class On(StorageClass[BindSource]):
    """Builds on the storage of its directory."""

    name = "on"
    source = BindSource

    def storages(self, source: BindSource) -> tuple[str, ...]:
        return (source.directory.storage_id,) if source.directory else ()

    async def prepare(self, job: Job[BindSource]) -> MountPlan:
        assert job.source.directory is not None
        place = job.location(job.source.directory)
        return MountPlan(call=FsMount(fs_type="tmpfs", source=str(place.root).replace("/", "_")))


def plain(name: str, pieces: int = 0, failing: int = 0, **more: object) -> StorageRequest:
    return made_from(TmpfsSource(size=pieces, mode=failing), name, **more)


def on(name: str, base: str, **more: object) -> StorageRequest:
    source = BindSource(directory=StorageDirectory(storage_id=base))
    return made_from(source, name, **more)


def with_classes(bench: StorageBench, things: Things) -> None:
    """The bench's managers serve these classes, also those made later."""
    make = bench.new_manager

    def manager() -> StorageManager:
        fresh = make()
        fresh._classes = ClassTable((WithPieces(things), On()))
        return fresh

    bench.new_manager = manager  # type: ignore[method-assign]
    bench.storages = manager()

"""What a copy's root is: a storage's mount point, a container's own view, its bare root."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.core.copies import CopyInRules, CopyOutRules, CopyWorkers
from agent.core.errors import AgentError, Reason, wrong_state
from agent.core.model import ContainerState, RootStorage
from agent.core.roots import Roots
from agent.handlers.guest.files import ContainerFiles, FileRoot, Files, StorageFiles
from agent.handlers.runtime.table import ContainerTable
from agent.linux.copyframes import Entry, EntryType, pack_part, unpack_parts
from tests.fakes.bed import FakeBed, Life
from tests.fakes.copies import FolderStorages
from tests.fakes.copying import tree
from tests.fakes.waiting import until
from tests.unit.handlers.runtime.conftest import bed, life  # noqa: F401 - fixtures

pytestmark = [pytest.mark.unit, pytest.mark.containers]

CGROUP = "/pods/s/c1"
CONTAINER = ContainerFiles(container_id="c1")


@dataclass(slots=True, kw_only=True)
class OneContainer:
    """A table with one container, as far as copies ask for it."""

    pid: int
    rootfs: Path
    state: ContainerState = ContainerState.RUNNING
    removing: bool = False
    id: str = "c1"
    record: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(cgroup=CGROUP))

    def container(self, _id: str) -> OneContainer:
        return self

    @property
    def status(self) -> SimpleNamespace:
        return SimpleNamespace(pid=self.pid)

    @property
    def bundle(self) -> SimpleNamespace:
        return SimpleNamespace(config=lambda: {"root": {"path": str(self.rootfs)}})

    def require(self, doing: str, *_states: ContainerState) -> None:
        if self.removing:
            raise wrong_state(f"it is being removed: can't {doing}")


class Box:
    """A process with a /proc entry of its own, whose root is `view`."""

    def __init__(self, top: Path, pid: int) -> None:
        self.view, self.rootfs = top / "view", top / "rootfs"
        self.view.mkdir()
        self.rootfs.mkdir()
        self.proc = top / "proc" / str(pid)
        self.proc.mkdir(parents=True)
        (self.proc / "root").symlink_to(self.view)
        self.say(CGROUP)
        self.table = OneContainer(pid=pid, rootfs=self.rootfs)
        self.storages = FolderStorages()
        self.workers = CopyWorkers()
        self.files = Files(
            workers=self.workers,
            storages=self.storages,
            containers=cast(ContainerTable, self.table),
            roots=Roots(proc=top / "proc"),
        )

    def say(self, cgroup: str) -> None:
        (self.proc / "cgroup").write_text(f"0::{cgroup}\n")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE) as held:
        yield Box(tmp_path, held.pid)
        held.communicate(b"\n")


async def one_file(data: bytes = b"x") -> AsyncIterator[tuple[bytes, ...]]:
    entry = Entry("f", EntryType.FILE, 0o644, os.getuid(), os.getgid(), len(data))
    yield pack_part(entry, 0, data)


async def half_a_file() -> AsyncIterator[tuple[bytes, ...]]:
    entry = Entry("f", EntryType.FILE, 0o644, os.getuid(), os.getgid(), 10)
    yield pack_part(entry, 0, b"half")
    await asyncio.Event().wait()


async def copy_in(files: Files, root: FileRoot) -> None:
    await files.copy_in(root, "", CopyInRules(), one_file())


async def refused(work: Any) -> AgentError:
    with pytest.raises(AgentError) as raised:
        await work
    return raised.value


@pytest.mark.parametrize("state", [ContainerState.CREATED, ContainerState.RUNNING])
async def test_a_container_with_a_process_is_seen_as_the_process_sees_it(
    box: Box, state: ContainerState
) -> None:
    box.table.state = state
    await copy_in(box.files, CONTAINER)
    assert (tree(box.view), tree(box.rootfs)) == ({"f": b"x"}, {})


async def test_one_that_has_ended_is_its_root(box: Box) -> None:
    box.table.state = ContainerState.STOPPED
    await copy_in(box.files, CONTAINER)
    assert (tree(box.view), tree(box.rootfs)) == ({}, {"f": b"x"})


async def test_another_process_of_that_number_is_not_the_container(box: Box) -> None:
    box.say("/agent")
    error = await refused(copy_in(box.files, CONTAINER))
    assert error.reason is Reason.WRONG_STATE
    assert (tree(box.view), tree(box.rootfs)) == ({}, {})


async def test_one_that_is_being_removed_is_left_alone(box: Box) -> None:
    box.table.removing = True
    assert (await refused(copy_in(box.files, CONTAINER))).reason is Reason.WRONG_STATE


async def test_a_storage_is_used_until_the_copy_is_over(box: Box) -> None:
    box.storages.folders["data"] = box.rootfs
    (box.rootfs / "f").write_bytes(b"data")
    root = StorageFiles(storage_id="data")
    async with aclosing(box.files.copy_out(root, "f", CopyOutRules())) as frames:
        parts = list(unpack_parts((await anext(frames)).parts))
        assert bytes(parts[0].data) == b"data"
        assert box.storages.users["data"] == 1
    assert box.storages.users["data"] == 0
    assert box.workers.busy == 0


async def test_copies_in_a_container_end_before_it_is_removed(box: Box) -> None:
    """Else the file systems below it would stay busy."""
    copy = asyncio.create_task(box.files.copy_in(CONTAINER, "d", CopyInRules(), half_a_file()))
    await until(lambda: (box.view / "d").exists())
    await box.files.leave("other")
    assert box.workers.busy == 1
    await box.files.leave("c1")
    assert box.workers.busy == 0
    error = await refused(copy)
    assert (error.reason, "being removed" in error.message) == (Reason.WRONG_STATE, True)
    assert tree(box.view) == {"d": 0o755}


async def test_a_removal_tells_whoever_works_in_the_container(bed: FakeBed, life: Life) -> None:  # noqa: F811
    told: list[tuple[str, bool]] = []

    async def leave(container_id: str) -> None:
        container = life.containers.table.container(container_id)
        told.append((container_id, container.bundle.path.exists()))

    life.containers.before_removal(leave)
    await life.containers.create(bed.request())
    await life.containers.remove("c1", 0, 10)
    assert told == [("c1", True)]


async def test_the_root_of_an_ended_container_is_in_its_bundle(bed: FakeBed, life: Life) -> None:  # noqa: F811
    """The real table and bundle: what crun was given as the root."""
    await life.containers.create(bed.request(rootfs=RootStorage(storage_id="data")))
    await life.containers.start("c1")
    await life.wait("c1")
    files = Files(
        workers=CopyWorkers(),
        storages=FolderStorages(),
        containers=life.containers.table,
        roots=bed.roots,
    )
    await copy_in(files, CONTAINER)
    assert (bed.root / "f").read_bytes() == b"x"

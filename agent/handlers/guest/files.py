"""Files: what a copy's root is, and who has to leave it alone meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from agent.core.copies import CopyPlace
from agent.core.errors import wrong_state
from agent.core.model import ContainerState
from agent.handlers.runtime.cgroup import open_member

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
    from contextlib import AbstractContextManager

    from agent.core.copies import (
        Copied,
        CopyFrame,
        CopyInRules,
        CopyOutRules,
        CopyWorkers,
    )
    from agent.core.model import MountedStorage
    from agent.core.roots import Roots
    from agent.handlers.runtime.table import Container, ContainerTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFiles:
    """The files of a mounted storage."""

    storage_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFiles:
    """The files of a container, as it sees them."""

    container_id: str


FileRoot: TypeAlias = StorageFiles | ContainerFiles


class Storages(Protocol):
    """What is needed of `handlers.storage.manager.StorageManager`."""

    def get(self, storage_id: str) -> MountedStorage: ...
    def using(self, storage_id: str, who: str) -> AbstractContextManager[object]: ...


class Files:
    """Copies into and out of storages and containers; `path` is below the root."""

    def __init__(
        self,
        *,
        workers: CopyWorkers,
        storages: Storages,
        containers: ContainerTable,
        roots: Roots,
    ) -> None:
        self._workers = workers
        self._storages = storages
        self._containers = containers
        self._roots = roots

    async def copy_in(
        self, root: FileRoot, path: str, rules: CopyInRules, batches: AsyncIterator[Sequence[bytes]]
    ) -> Copied:
        """Write; `batches` as for CopyWorkers.copy_in.

        Raises UNKNOWN_STORAGE, UNKNOWN_CONTAINER, WRONG_STATE and what the copy does.
        """
        with self._place(root, path, "Files.CopyIn") as place:
            return await self._workers.copy_in(place, rules, batches)

    async def copy_out(
        self, root: FileRoot, path: str, rules: CopyOutRules
    ) -> AsyncGenerator[CopyFrame, None]:
        """Read; has to be closed (`aclosing`). Raises as `copy_in`."""
        with self._place(root, path, "Files.CopyOut") as place:
            async with aclosing(self._workers.copy_out(place, rules)) as frames:
                async for frame in frames:
                    yield frame

    async def leave(self, container_id: str) -> None:
        """End the copies in a container, which is about to go."""
        why = wrong_state(
            f"container {container_id} is being removed: the copy was ended", id=container_id
        )
        await self._workers.stop(_container(container_id), why)

    @contextlib.contextmanager
    def _place(self, root: FileRoot, path: str, who: str) -> Iterator[CopyPlace]:
        match root:
            case StorageFiles(storage_id=storage_id):
                with self._storages.using(storage_id, who):
                    point = self._storages.get(storage_id).mount_point
                    yield CopyPlace(root=point, path=path, name=f"storage {storage_id}")
            case ContainerFiles(container_id=container_id):
                with self._in_container(self._containers.container(container_id), path) as place:
                    yield place

    @contextlib.contextmanager
    def _in_container(self, container: Container, path: str) -> Iterator[CopyPlace]:
        """With its mounts while its first process is there; else its root alone."""
        container.require("copy files", *ContainerState)
        name = _container(container.id)
        if container.state is ContainerState.STOPPED:
            root = str(container.bundle.config()["root"]["path"])
            yield CopyPlace(root=root, path=path, name=name)
            return
        pid = container.status.pid
        pidfd = open_member(self._roots, pid, container.record.cgroup)
        if pidfd < 0:
            raise _gone(container)
        try:
            yield CopyPlace(
                root=str(self._roots.proc / str(pid) / "root"),
                path=path,
                name=name,
                check=lambda: _check_alive(container, pidfd),
            )
        finally:
            os.close(pidfd)


def _container(container_id: str) -> str:
    """As errors say it, and as its copies are known."""
    return f"container {container_id}"


def _check_alive(container: Container, pidfd: int) -> None:
    """A process keeps its number until it is reaped: so what was opened by the number
    was this one's root."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError as error:
        raise _gone(container) from error


def _gone(container: Container) -> Exception:
    return wrong_state(
        f"container {container.id}: its first process has just ended",
        hint="try again",
        id=container.id,
    )

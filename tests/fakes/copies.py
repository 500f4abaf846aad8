"""Storages that are directories, for copies without a mount."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from agent.core.copies import CopyWorkers
from agent.core.errors import Reason, not_found
from agent.core.model import MountedStorage, StorageRequest
from agent.core.roots import Roots
from agent.core.sources import BlockSource
from agent.handlers.guest.files import Files
from agent.handlers.runtime.table import ContainerTable


class FolderStorages:
    """Each id is a directory; `users` counts who works in it now."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.users: Counter[str] = Counter()
        self.heard: list[str] = []

    def get(self, storage_id: str) -> MountedStorage:
        source = BlockSource(device_id="disk", fs_type="ext4")
        return MountedStorage(
            request=StorageRequest(id=storage_id, source=source),
            mount_point=str(self._folder(storage_id)),
        )

    @contextlib.contextmanager
    def using(self, storage_id: str, who: str) -> Iterator[None]:
        self._folder(storage_id)
        self.heard.append(who)
        self.users[storage_id] += 1
        try:
            yield
        finally:
            self.users[storage_id] -= 1

    def _folder(self, storage_id: str) -> Path:
        if storage_id not in self.folders:
            raise not_found(
                f"no storage {storage_id}", reason=Reason.UNKNOWN_STORAGE, id=storage_id
            )
        return self.folders[storage_id]


class FolderFiles(Files):
    """The real Files over directories; its parts are for a test to reach."""

    def __init__(self, roots: Roots, *, workers: CopyWorkers | None = None) -> None:
        self.storages = FolderStorages()
        self.containers = ContainerTable()
        self.workers = workers or CopyWorkers()
        super().__init__(
            workers=self.workers, storages=self.storages, containers=self.containers, roots=roots
        )

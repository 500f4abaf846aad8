"""A directory or file of the guest, or of another storage, once more."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.fileops import BindMount
from agent.core.sources import BindSource
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.guestpaths import guest_location, not_opened, storage_location
from agent.handlers.storage.options import parse_options

if TYPE_CHECKING:
    from agent.core.fileops import Location
    from agent.core.model import StorageRequest
    from agent.handlers.storage.job import Job

_FIELD = "source.bind"


class BindStorage(StorageClass[BindSource]):
    """The options are flags of the mount; the source's own stay on top of them."""

    name = "bind"
    source = BindSource

    def storages(self, source: BindSource) -> tuple[str, ...]:
        return (source.directory.storage_id,) if source.directory else ()

    def recursive(self, request: StorageRequest) -> bool:
        source = request.source
        asked = isinstance(source, BindSource) and source.recursive
        return asked or _says_rbind(request.options)

    async def prepare(self, job: Job[BindSource]) -> MountPlan:
        request = job.request
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux, bind=True
        )
        recursive = self.recursive(request)
        where = _location(job, recursive=recursive)
        kind = await _kind(job, where)
        return MountPlan(
            call=BindMount(source=where, recursive=recursive, flags=words.flags),
            on_file=kind != "directory",
            hints={errno.EINVAL: "an unbindable mount can't be bound"},
        )


def _says_rbind(entries: tuple[str, ...]) -> bool:
    return any("rbind" in entry.split(",") for entry in entries)


def _location(job: Job[BindSource], *, recursive: bool) -> Location:
    source = job.source
    if source.directory is not None:
        return storage_location(job.locations, source.directory)
    field = f"{_FIELD}.path"
    return guest_location(job.tools.roots, source.path, field, recursive=recursive)


async def _kind(job: Job[BindSource], where: Location) -> str:
    try:
        found = await job.tools.files.kind_of(where, job.deadline)
    except OSError as error:
        raise not_opened(error, where, _FIELD) from error
    if found.kind == "device":
        raise invalid(
            f"{where} is a device node: it can't be a storage",
            hint="attach the device and grant it to the container",
            field=_FIELD,
        )
    return found.kind

"""A small directory whose changes reach the containers as one switch.

A share tells of no change (inotify sees only what this guest does), so its source is looked
at now and then, or when the host says so, and copied when it has changed. Looking, copying and
switching are one call in a worker, `agent.linux.watchedcopy`: a share that hangs costs that
worker, and the copy stays as it is.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, invalid, kernel_refused
from agent.core.fileops import FsMount, MountOption, holder
from agent.core.sources import WatchedSource
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.guestpaths import guest_location, not_opened, storage_location
from agent.handlers.storage.options import parse_options
from agent.linux.mounting import MountFlag
from agent.linux.watchedtree import ENTRIES_MOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.fileops import Location, Refreshed
    from agent.core.roots import Roots
    from agent.handlers.storage.base import Service, ServiceSetting, Tools
    from agent.handlers.storage.job import Job

log = logging.getLogger(__name__)

_FIELD = "source.watched"
_TYPE = "tmpfs"
_LOOK_SECONDS = 60.0

# Room for the copy and the next one beside it; any number of files.
_OPTIONS = (
    MountOption(key="mode", value="755"),
    MountOption(key="size", value="50%"),
    MountOption(key="nr_inodes", value="0"),
)

_FILL_HINTS = {
    errno.EFBIG: f"it has more than {ENTRIES_MOST} names: this is for small directories",
    errno.ENOSPC: "it is bigger than the room that its copy has in the guest's memory",
}


class WatchedStorage(StorageClass[WatchedSource]):
    """A tmpfs that only the agent writes to, whatever the request says of read_only."""

    name = "watched"
    source = WatchedSource

    def storages(self, source: WatchedSource) -> tuple[str, ...]:
        return (source.directory.storage_id,) if source.directory else ()

    async def prepare(self, job: Job[WatchedSource]) -> MountPlan:
        words = parse_options(job.request.options, selinux=job.tools.selinux)
        where = _location(job.tools.roots, job.source, job.locations)
        await _check(job, where)
        return MountPlan(
            call=FsMount(
                fs_type=_TYPE,
                source=_TYPE,
                options=(*_OPTIONS, *words.options),
                # It becomes read-only once it is filled: its file system must not be.
                flags=words.flags & ~MountFlag.RDONLY,
            ),
            hints={errno.EINVAL: "an option is not one of tmpfs, or not as it wants it"},
        )

    def service(self, job: ServiceSetting, source: WatchedSource) -> Service | None:
        try:
            where = _location(job.tools.roots, source, job.locations)
        except AgentError as error:
            # After a restart its base may be gone; the copy stays.
            log.warning("storage %s is not watched any more: %s", job.request.id, error)
            return None
        return WatchedCopy(setting=job, where=where, interval=source.interval)


class WatchedCopy:
    """The copy of one source."""

    def __init__(
        self,
        *,
        setting: ServiceSetting,
        where: Location,
        interval: float,
    ) -> None:
        self._tools: Tools = setting.tools
        self._id = setting.request.id
        self._gid = setting.request.fs_group.gid if setting.request.fs_group else None
        self._point = setting.mount_point
        self._where = where
        self._interval = interval
        self._told = setting.told
        self._looked = asyncio.Event()
        self._said = ""
        self._left_out: list[str] = []

    async def fill(self, deadline: Deadline) -> bool:
        """Look, and copy what has changed; raises MOUNT_REFUSED when it can't be."""
        try:
            seen = await self._tools.files.refresh_copy(
                self._where, self._point, self._gid, deadline
            )
        except OSError as error:
            doing = f"copy {self._where} into storage {self._id}"
            raise kernel_refused(
                error,
                doing=doing,
                reason=Reason.MOUNT_REFUSED,
                hint=_FILL_HINTS.get(error.errno or 0),
            ) from error
        self._looked.set()
        self._tell(seen)
        return seen.changed

    async def run(self) -> None:
        while self._interval:
            await self._pause()
            await self._look()

    async def _pause(self) -> None:
        """The interval; it begins anew with a look that the host asked for."""
        looked = True
        while looked:
            self._looked.clear()
            looked = False
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    looked = await self._looked.wait()

    async def _look(self) -> None:
        # One worker at most is lost to a source that hangs.
        await self._tools.files.settled(holder(self._where))
        try:
            await self.fill(Deadline.after(_LOOK_SECONDS))
        except AgentError as error:
            self._complain(error)
        else:
            if self._said:
                log.info("storage %s: its source is there again", self._id)
            self._said = ""

    def _complain(self, error: AgentError) -> None:
        kind = f"{error.reason} {error.fields.get('errno', '')}"
        if kind != self._said:
            log.warning("storage %s keeps its last copy: %s", self._id, error)
        self._said = kind

    def _tell(self, seen: Refreshed) -> None:
        if seen.left_out and seen.left_out != self._left_out:
            log.warning("storage %s: not copied: %s", self._id, "; ".join(seen.left_out))
        self._left_out = seen.left_out
        if seen.changed:
            self._told({"entries": str(seen.entries), "left_out": "; ".join(seen.left_out)})


def _location(roots: Roots, source: WatchedSource, points: Mapping[str, str]) -> Location:
    if source.directory is not None:
        return storage_location(points, source.directory)
    return guest_location(roots, source.path, f"{_FIELD}.path")


async def _check(job: Job[WatchedSource], where: Location) -> None:
    try:
        found = await job.tools.files.kind_of(where, job.deadline)
    except OSError as error:
        raise not_opened(error, where, _FIELD) from error
    if found.kind not in ("directory", "file"):
        raise invalid(
            f"{where} is a {found.kind}: only directories and regular files can be watched",
            field=_FIELD,
        )

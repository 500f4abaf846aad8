"""Mounting and unmounting one plan, proved by the kernel's own table of mounts.

The table is /proc/self/mountinfo: reading it touches no file system, so it can be
asked at any time. All that may touch one runs in `FileWorkers`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, kernel_refused, timed_out, wrong_state
from agent.core.fileops import MountCall
from agent.handlers.storage.holders import holders
from agent.linux.mounting import MountEntry, UnmountFlag, parse_mountinfo
from agent.linux.pseudo import read_text

if TYPE_CHECKING:
    from agent.core.hotplug import HotplugBoard
    from agent.core.roots import Roots
    from agent.core.undo import UndoStack
    from agent.handlers.storage.base import MountPlan
    from agent.handlers.storage.mountpoints import MountPoint

log = logging.getLogger(__name__)

# Taking a mount back is not the request's time any more.
_UNDO_SECONDS = 5.0
_SETTLE_SECONDS = 2.0


class FileCalls(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def mount(self, call: MountCall, deadline: Deadline) -> None: ...
    async def unmount(self, target: str, flags: UnmountFlag, deadline: Deadline) -> None: ...
    async def check_empty_directory(self, path: str, deadline: Deadline) -> None: ...
    async def settled(self, obj: str, patience: float | None = None) -> bool: ...


class Mounter:
    """Makes mount points, mounts on them, and takes both back."""

    def __init__(self, *, files: FileCalls, board: HotplugBoard, roots: Roots) -> None:
        self._files = files
        self._board = board
        self._roots = roots
        self._late: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Give up waiting for mounts that are still in the kernel."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    def mounted_at(self, path: str) -> MountEntry | None:
        """The topmost mount at `path`."""
        return next((entry for entry in reversed(self._table()) if entry.mount_point == path), None)

    async def make_point(self, point: MountPoint, deadline: Deadline, undo: UndoStack) -> None:
        """Make the directory, or check the one that is there: empty, and not a mount point."""
        if self.mounted_at(point.path) is not None:
            raise _in_use(point, "something is mounted on it already")
        if not await self._files.settled(point.path, 0):
            raise _in_use(point, "an earlier mount on it has not come back from the kernel")
        try:
            if point.own:
                self._make_own(Path(point.path))
                undo.push(f"remove {point.path}", lambda: self.remove_point(point))
            await self._files.check_empty_directory(point.path, deadline)
        except OSError as error:
            reason = Reason.MOUNT_REFUSED
            doing = f"mount point {point.path} is not usable"
            raise kernel_refused(error, doing=doing, reason=reason) from error

    def _make_own(self, path: Path) -> None:
        self._roots.storages.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o755, exist_ok=True)

    def remove_point(self, point: MountPoint) -> None:
        """Remove a directory of our own: only if empty, never what is in it.

        The parent is the agent's own directory, so this cannot touch a served file system.
        """
        if not point.own:
            return
        try:
            Path(point.path).rmdir()
        except OSError as error:
            log.warning("the mount point %s stays: %s", point.path, error)

    async def mount(
        self, plan: MountPlan, point: MountPoint, deadline: Deadline, undo: UndoStack
    ) -> MountEntry:
        """Mount, again after each sign of change while the refusal may be transient."""
        undo.push(f"unmount {point.path}", lambda: self.take_off(point))
        call = MountCall(
            source=plan.source,
            target=point.path,
            fs_type=plan.fs_type,
            flags=plan.options.flags,
            data=plan.options.data,
        )
        with self._board.watch(plan.near) as watch:
            while (refusal := await self._attempt(call, plan, deadline)) is not None:
                if not await watch.news(deadline):
                    raise self._still_refused(call, refusal) from refusal
                watch.reset()
        return self._verified(call)

    async def unmount(self, point: MountPoint, mount_id: int, deadline: Deadline) -> None:
        """Unmount our mount; fine when it is gone already.

        Raises UNMOUNT_REFUSED naming who holds it, OPERATION_TIMED_OUT.
        """
        if not await self._files.settled(point.path, deadline.left()):
            raise timed_out(f"an earlier unmount of {point.path} has not come back from the kernel")
        top = self.mounted_at(point.path)
        if top is None:
            log.warning("%s was unmounted by someone else", point.path)
            return
        if top.mount_id != mount_id:
            raise wrong_state(
                f"another mount ({top.fs_type} of {top.source}) lies on {point.path}",
                reason=Reason.UNMOUNT_REFUSED,
                mount_point=point.path,
            )
        try:
            await self._files.unmount(point.path, UnmountFlag.NOFOLLOW, deadline)
        except OSError as error:
            if self.mounted_at(point.path) is not None:
                raise self._not_unmounted(error, point) from error

    async def take_off(self, point: MountPoint) -> None:
        """Undo a mount that may or may not have been made, whoever uses it by now."""
        if not await self._files.settled(point.path, _SETTLE_SECONDS):
            task = asyncio.get_running_loop().create_task(self._take_off_late(point))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise timed_out(f"the mount on {point.path} is still in the kernel")
        await self._take_off(point)

    async def _take_off_late(self, point: MountPoint) -> None:
        await self._files.settled(point.path)
        try:
            await self._take_off(point)
        except (AgentError, OSError) as error:
            log.warning("a mount that came late stays on %s: %s", point.path, error)

    async def _take_off(self, point: MountPoint) -> None:
        if self.mounted_at(point.path) is not None:
            flags = UnmountFlag.DETACH | UnmountFlag.NOFOLLOW
            await self._files.unmount(point.path, flags, Deadline.after(_UNDO_SECONDS))

    async def _attempt(
        self, call: MountCall, plan: MountPlan, deadline: Deadline
    ) -> OSError | None:
        try:
            await self._files.mount(call, deadline)
        except OSError as error:
            if error.errno in plan.transient:
                log.info("mount of %s on %s not possible yet: %s", call.source, call.target, error)
                return error
            raise _refused(call, error, plan.hints.get(error.errno or 0)) from error
        return None

    def _verified(self, call: MountCall) -> MountEntry:
        entry = self.mounted_at(call.target)
        if entry is None or (entry.source, entry.fs_type) != (call.source, call.fs_type):
            found = f"{entry.fs_type} of {entry.source}" if entry else "nothing"
            raise wrong_state(
                f"after the mount of {call.source} ({call.fs_type}), mountinfo shows {found} "
                f"on {call.target}",
                reason=Reason.MOUNT_REFUSED,
            )
        return entry

    def _still_refused(self, call: MountCall, refusal: OSError) -> AgentError:
        return timed_out(
            f"mount of {call.source} on {call.target} ({call.fs_type}) was refused until the "
            f"deadline: {refusal.strerror} [{errno.errorcode.get(refusal.errno or 0)}]",
            reason=Reason.MOUNT_REFUSED,
            hint="the device never became ready: is its node there, and its size right?",
            source=call.source,
            target=call.target,
            fs_type=call.fs_type,
            errno=errno.errorcode.get(refusal.errno or 0, refusal.errno),
        )

    def _not_unmounted(self, error: OSError, point: MountPoint) -> AgentError:
        users = holders(self._roots, self._table(), point.path)
        held = f"held by {', '.join(users)}" if users else "proc shows no holder"
        hint = "end what holds it, then detach again" if error.errno == errno.EBUSY else None
        return kernel_refused(
            error,
            doing=f"unmount {point.path} ({held})",
            reason=Reason.UNMOUNT_REFUSED,
            hint=hint,
        )

    def _table(self) -> tuple[MountEntry, ...]:
        return parse_mountinfo(read_text(self._roots.proc / "self/mountinfo"))


def _in_use(point: MountPoint, why: str) -> AgentError:
    return wrong_state(
        f"{point.path} cannot be a mount point: {why}",
        reason=Reason.MOUNT_POINT_IN_USE,
        mount_point=point.path,
    )


def _refused(call: MountCall, error: OSError, hint: str | None) -> AgentError:
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    options = f"flags {call.flags.name or 'none'}, options {call.data!r}"
    return wrong_state(
        f"mount of {call.source} on {call.target} ({call.fs_type}, {options}) refused: "
        f"{error.strerror} [{name}]",
        reason=Reason.MOUNT_REFUSED,
        hint=hint,
        source=call.source,
        target=call.target,
        fs_type=call.fs_type,
        options=call.data,
        errno=name,
    )

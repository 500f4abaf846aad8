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
from agent.core.fileops import BindMount, FileRefusal, FsMount, MountCall, OverlayMount
from agent.handlers.storage.holders import holders
from agent.handlers.storage.wording import shown, told
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
_UNDO_SECONDS = 10.0
_SETTLE_SECONDS = 2.0

# Of a directory that is not the agent's to make.
_POINT_HINTS = {
    errno.ENOENT: "it must exist already, empty: make it first, or leave mount_point out",
    errno.ENOTEMPTY: "it must be empty: what is in it would be hidden",
    errno.ELOOP: "a symbolic link is on the way: name the directory itself",
}


class FileCalls(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def mount(self, call: MountCall, target: str, deadline: Deadline) -> None: ...
    async def unmount(self, target: str, flags: UnmountFlag, deadline: Deadline) -> None: ...
    async def check_empty_directory(self, path: str, deadline: Deadline) -> None: ...
    async def check_regular_file(self, path: str, deadline: Deadline) -> None: ...
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

    async def make_point(
        self, point: MountPoint, plan: MountPlan, deadline: Deadline, undo: UndoStack
    ) -> None:
        """Make what is mounted on, or check what is there: empty, and not a mount point."""
        if self.mounted_at(point.path) is not None:
            raise _in_use(point, "something is mounted on it already")
        # One that was only just given up is over in a moment, as a rule.
        patience = min(deadline.left(), _SETTLE_SECONDS)
        if not await self._files.settled(point.path, patience):
            raise _in_use(point, "an earlier mount on it has not come back from the kernel")
        try:
            if point.own:
                self._make_own(Path(point.path), on_file=plan.on_file)
                undo.push(f"remove {point.path}", lambda: self.remove_point(point))
            check = self._files.check_empty_directory
            if plan.on_file:
                check = self._files.check_regular_file
            await check(point.path, deadline)
        except OSError as error:
            reason = Reason.MOUNT_REFUSED
            doing = f"mount point {point.path} is not usable"
            hint = None if point.own else _POINT_HINTS.get(error.errno or 0)
            raise kernel_refused(error, doing=doing, reason=reason, hint=hint) from error

    def _make_own(self, path: Path, *, on_file: bool) -> None:
        self._roots.storages.mkdir(mode=0o711, parents=True, exist_ok=True)
        if on_file:
            path.touch(mode=0o600)
        else:
            path.mkdir(mode=0o755, exist_ok=True)

    def remove_point(self, point: MountPoint) -> str | None:
        """Remove what was made: only if empty, never what is in it; says why it stays.

        The parent is the agent's own directory, so this cannot touch a served file system.
        """
        if not point.own:
            return None
        path = Path(point.path)
        try:
            if path.is_file() and not path.is_symlink() and not path.stat().st_size:
                path.unlink()
            else:
                path.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("the mount point %s stays: %s", point.path, error)
            return f"the mount point {point.path}: {error.strerror}"
        return None

    async def mount(
        self, plan: MountPlan, point: MountPoint, deadline: Deadline, undo: UndoStack
    ) -> MountEntry:
        """Mount, again after each sign of change while the refusal may be transient."""
        undo.push(f"unmount {point.path}", lambda: self.take_off(point))
        with self._board.watch(plan.near) as watch:
            while isinstance(made := await self._attempt(plan, point, deadline), OSError):
                if not await watch.news(deadline):
                    raise _still_refused(plan.call, point, made) from made
                watch.reset()
        return self._verified(made, point)

    async def unmount(
        self, point: MountPoint, mount_id: int, deadline: Deadline, *, recursive: bool = False
    ) -> bool:
        """Unmount our mount; fine when it is gone already. True: only lazily.

        With `recursive` what is mounted below it goes first, each as long as nobody is in it.
        A file system that does not answer is detached from the tree, and left to the kernel.
        Raises UNMOUNT_REFUSED naming who holds it, OPERATION_TIMED_OUT when an earlier call
        on it never came back.
        """
        if not await self._files.settled(point.path, deadline.left() / 2):
            return await self._take_off_stuck(point, mount_id)
        if not self._is_ours(point, mount_id):
            return False
        try:
            for each in (*self._below(point, recursive=recursive), point.path):
                await self._files.unmount(each, UnmountFlag.NOFOLLOW, deadline)
        except OSError as error:
            if self.mounted_at(point.path) is not None:
                raise self._not_unmounted(error, point) from error
        except AgentError as error:
            if error.reason is not Reason.OPERATION_TIMED_OUT:
                raise
            log.warning("%s does not answer: detached lazily", point.path)
            await self._take_off(point)
            return True
        return False

    async def _take_off_stuck(self, point: MountPoint, mount_id: int) -> bool:
        """A call on the mounted file system is stuck; taking it off the tree asks nothing of
        whoever serves it."""
        if not self._is_ours(point, mount_id):
            raise timed_out(f"an earlier call on {point.path} is still in the kernel")
        await self._take_off(point)
        return True

    def _below(self, point: MountPoint, *, recursive: bool) -> list[str]:
        """Mount points that go with it; those that were mounted last come first."""
        points = [entry.mount_point for entry in self._table()] if recursive else []
        return [each for each in reversed(points) if Path(point.path) in Path(each).parents]

    def _is_ours(self, point: MountPoint, mount_id: int) -> bool:
        top = self.mounted_at(point.path)
        if top is None:
            log.warning("%s was unmounted by someone else", point.path)
            return False
        if top.mount_id != mount_id:
            raise wrong_state(
                f"another mount ({top.fs_type} of {top.source}) lies on {point.path}",
                reason=Reason.UNMOUNT_REFUSED,
                mount_point=point.path,
            )
        return True

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
        if self.mounted_at(point.path) is None:
            return
        flags = UnmountFlag.DETACH | UnmountFlag.NOFOLLOW
        try:
            await self._files.unmount(point.path, flags, Deadline.after(_UNDO_SECONDS))
        except AgentError as error:
            # It is off the tree at once; without other users the kernel waits for the
            # server after that, which is nobody's business any more.
            late = error.reason is Reason.OPERATION_TIMED_OUT
            if not late or self.mounted_at(point.path) is not None:
                raise

    async def _attempt(
        self, plan: MountPlan, point: MountPoint, deadline: Deadline
    ) -> MountCall | OSError:
        """The mount that was made, or a refusal that may go away by itself."""
        calls = (plan.call, *plan.others)
        for call in calls:
            try:
                await self._files.mount(call, point.path, deadline)
            except OSError as error:
                if error.errno in plan.transient:
                    log.info("mount on %s not possible yet: %s", point.path, error)
                    return error
                if error.errno != errno.EPROTONOSUPPORT or call is calls[-1]:
                    raise _refused(call, point, error, plan.hints.get(error.errno or 0)) from error
            else:
                return call
        raise AssertionError("a plan has a call")

    def _verified(self, call: MountCall, point: MountPoint) -> MountEntry:
        entry = self.mounted_at(point.path)
        if entry is None or not _shows(entry, call):
            found = f"{entry.fs_type} of {entry.source}" if entry else "nothing"
            raise wrong_state(
                f"after the mount of {told(call)}, mountinfo shows {found} on {point.path}",
                reason=Reason.MOUNT_REFUSED,
            )
        return entry

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


def _shows(entry: MountEntry, call: MountCall) -> bool:
    """Whether mountinfo's line may be the mount's; a bind shows what its source shows."""
    match call:
        case FsMount(source=source, fs_type=fs_type):
            # A served file system may spell its source in its own way.
            served = not source.startswith("/") or source.startswith("//")
            named = served or entry.source == source
            return named and entry.fs_type == fs_type
        case OverlayMount():
            return entry.fs_type == "overlay"
        case BindMount():
            return True


def _in_use(point: MountPoint, why: str) -> AgentError:
    return wrong_state(
        f"{point.path} cannot be a mount point: {why}",
        reason=Reason.MOUNT_POINT_IN_USE,
        mount_point=point.path,
    )


def _still_refused(call: MountCall, point: MountPoint, refusal: OSError) -> AgentError:
    name = _name(refusal)
    return timed_out(
        f"mount of {told(call)} on {point.path} was refused until the deadline: "
        f"{refusal.strerror} [{name}]{_said(refusal)}",
        reason=Reason.MOUNT_REFUSED,
        hint="the device never became ready: is its node there, its size or tag right?",
        target=point.path,
        errno=name,
    )


def _refused(call: MountCall, point: MountPoint, error: OSError, hint: str | None) -> AgentError:
    name = _name(error)
    return wrong_state(
        f"mount of {told(call)} on {point.path} refused: {error.strerror} [{name}]{_said(error)}",
        reason=Reason.MOUNT_REFUSED,
        hint=hint,
        target=point.path,
        errno=name,
        **shown(call),
    )


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))


def _said(error: OSError) -> str:
    """What the file system itself said of its refusal."""
    log_lines = error.log if isinstance(error, FileRefusal) else ()
    return f": {'; '.join(log_lines)}" if log_lines else ""

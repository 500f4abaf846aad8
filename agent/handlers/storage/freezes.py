"""Frozen storages: each thaws by itself at its deadline, whatever happens to the agent.

The kernel freezes a superblock, not a mount, and only once; two storages may share one.
So each storage has a freeze of its own, the kernel's is made with the first of a
superblock and ended with the last. A freeze is saved before the kernel is asked, so one
that an agent before this one left is known, and thawed when it is over. Times are
CLOCK_BOOTTIME's.

What is done to one superblock is done in order, and to its end: a caller who leaves does
not stop it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, kernel_refused, timed_out, wrong_state
from agent.core.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from agent.core.events import EventLog
    from agent.core.state import StateStore
    from agent.handlers.storage.superblocks import MountTable
    from agent.linux.mounting import MountEntry

log = logging.getLogger(__name__)

Device: TypeAlias = tuple[int, int]

THAW_SECONDS: Final = 10.0
"""Time for a thaw that nobody waits for."""

RETRY_SECONDS: Final = 5.0
"""Time until the next try of a thaw that failed."""

# EINVAL: it is not. The others: it can't be.
_NOT_FROZEN: Final = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOTDIR}

_KIND: Final = "freezes"
_CLOSE_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """One storage's: `device` names the superblock, `until` is in seconds since the boot."""

    storage_id: str
    path: str
    mount_id: int
    device: Device
    until: float


class FreezeCalls(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def freeze(self, path: str, mount_id: int, deadline: Deadline) -> None: ...
    async def thaw(self, path: str, mount_id: int, deadline: Deadline) -> None: ...
    async def settled(self, obj: str, patience: float | None = None) -> bool: ...


def boot_time() -> float:
    """Seconds since the boot, with those in which the guest was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Freezes:
    """The freezes now, by storage id."""

    def __init__(
        self,
        *,
        files: FreezeCalls,
        mounts: MountTable,
        state: StateStore,
        events: EventLog,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._files = files
        self._mounts = mounts
        self._state = state
        self._events = events
        self._now = now
        self._table: dict[str, Freeze] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._turns = Turns()

    def restore(self) -> None:
        """Take over the freezes that an earlier agent saved."""
        for storage_id, data in self._state.load_all(_KIND).items():
            try:
                major, minor = data["device"]
                self._arm(Freeze(**{**data, "device": (major, minor)}))
            except (KeyError, TypeError, ValueError) as error:
                log.warning("the saved freeze of %s is of another shape: %r", storage_id, error)
                self._state.delete(_KIND, storage_id)

    async def close(self) -> None:
        """Stop the clocks and thaw nothing: the next agent takes the freezes over."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._turns.quiet("", _CLOSE_SECONDS)

    def holds(self, storage_id: str) -> bool:
        """Whether there is a freeze of this storage's own."""
        return storage_id in self._table

    @property
    def devices(self) -> frozenset[Device]:
        """The superblocks that are frozen."""
        return frozenset(freeze.device for freeze in self._table.values())

    async def freeze(
        self,
        storage_id: str,
        entry: MountEntry,
        seconds: float,
        deadline: Deadline,
        staying: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Freeze for so many seconds from the moment it is, also when it is frozen already.

        `staying` keeps the storage from being detached meanwhile, or says that it is too
        late. Raises WRONG_STATE when somebody else has frozen the file system,
        KERNEL_REFUSED for one that can't be, OPERATION_TIMED_OUT when it does not answer.
        """
        asked = Freeze(
            storage_id=storage_id,
            path=entry.mount_point,
            mount_id=entry.mount_id,
            device=entry.device,
            until=self._now() + seconds,
        )

        async def work() -> None:
            with staying():
                await self._freeze(asked, seconds, deadline)

        await self._turns.take(_key(asked.device), work)

    async def thaw(self, storage_id: str, entry: MountEntry | None, deadline: Deadline) -> None:
        """End a freeze; fine when there is none. Raises what the kernel says, OPERATION_TIMED_OUT.

        Without one of ours a freeze that somebody else made of `entry` is ended; one that
        another storage of the same superblock has asked for goes on.
        """

        async def work() -> None:
            if storage_id in self._table:
                await self._end(storage_id, deadline, why="asked for")
            elif entry is not None and entry.device not in self.devices:
                await self._melt(entry, deadline)

        held = self._table.get(storage_id)
        device = held.device if held else entry.device if entry else None
        if device is not None:
            await self._turns.take(_key(device), work)

    async def _freeze(self, asked: Freeze, seconds: float, deadline: Deadline) -> None:
        before = self._table.get(asked.storage_id)
        ours = asked.device in self.devices
        self._state.save(_KIND, asked.storage_id, asdict(asked))
        try:
            await self._files.freeze(asked.path, asked.mount_id, deadline)
        except OSError as error:
            if error.errno != errno.EBUSY or not ours:
                self._back_to(before, asked)
                raise _not_frozen(error, asked) from error
        except BaseException:
            if ours:
                self._back_to(before, asked)
            else:
                # Whether it took effect nobody knows: it is taken back as one that is over.
                self._arm(replace(asked, until=self._now()))
            raise
        self._arm(self._from_now(asked, seconds))
        if before is None:
            self._tell("storage-frozen", asked, seconds=f"{seconds:.3f}")

    def _from_now(self, asked: Freeze, seconds: float) -> Freeze:
        """The time that it took to write everything out is not the host's."""
        lasting = replace(asked, until=self._now() + seconds)
        try:
            self._state.save(_KIND, asked.storage_id, asdict(lasting))
        except AgentError as error:
            log.warning("%s: the end of the freeze stays as it was saved: %s", asked.path, error)
            return asked
        return lasting

    async def _end(self, storage_id: str, deadline: Deadline, *, why: str) -> None:
        held = self._table.get(storage_id)
        if held is None:
            return
        if not any(
            other.device == held.device and other is not held for other in self._table.values()
        ):
            await self._release(held, deadline)
        self._forget(storage_id)
        self._tell("storage-thawed", held, why=why)

    async def _release(self, held: Freeze, deadline: Deadline) -> None:
        """Through any mount of the superblock: the storage's own may be gone."""
        await self._settled(held.path, deadline)
        reaching = self._mounts.reaching(held.device)
        own = [entry for entry in reaching if entry.mount_id == held.mount_id]
        entry = next(iter([*own, *reaching]), None)
        if entry is None:
            log.warning("%s is mounted nowhere any more: it can't be thawed", held.path)
            return
        await self._melt(entry, deadline)

    async def _melt(self, entry: MountEntry, deadline: Deadline) -> None:
        try:
            await self._files.thaw(entry.mount_point, entry.mount_id, deadline)
        except OSError as error:
            if error.errno not in _NOT_FROZEN:
                raise kernel_refused(error, doing=f"thaw {entry.mount_point}") from error

    async def _settled(self, path: str, deadline: Deadline) -> None:
        """A freeze that was given up may take effect until the kernel lets go of it."""
        if not await self._files.settled(path, deadline.left()):
            raise timed_out(
                f"an earlier call on {path} has not come back from the kernel", object=path
            )

    def _arm(self, freeze: Freeze) -> None:
        self._table[freeze.storage_id] = freeze
        self._set_timer(freeze.storage_id, max(0.0, freeze.until - self._now()))

    def _set_timer(self, storage_id: str, seconds: float) -> None:
        self._stop_timer(storage_id)
        loop = asyncio.get_running_loop()
        self._timers[storage_id] = loop.call_later(seconds, self._over, storage_id)

    def _stop_timer(self, storage_id: str) -> None:
        timer = self._timers.pop(storage_id, None)
        if timer is not None:
            timer.cancel()

    def _over(self, storage_id: str) -> None:
        held = self._table.get(storage_id)
        if held is not None:
            self._turns.enqueue(_key(held.device), lambda: self._end_in_time(held))

    async def _end_in_time(self, held: Freeze) -> None:
        if self._table.get(held.storage_id) is not held:
            return  # thawed, or longer than it was
        try:
            deadline = Deadline.after(THAW_SECONDS)
            await self._end(held.storage_id, deadline, why="its time is over")
        except (AgentError, OSError) as error:
            log.warning("%s stays frozen for now: %s", held.path, error)
            self._set_timer(held.storage_id, RETRY_SECONDS)

    def _back_to(self, before: Freeze | None, asked: Freeze) -> None:
        if before is None:
            self._state.delete(_KIND, asked.storage_id)
        else:
            self._state.save(_KIND, before.storage_id, asdict(before))

    def _forget(self, storage_id: str) -> None:
        self._stop_timer(storage_id)
        self._table.pop(storage_id, None)
        self._state.delete(_KIND, storage_id)

    def _tell(self, kind: str, freeze: Freeze, **details: str) -> None:
        self._events.publish(kind, freeze.storage_id, {"mount_point": freeze.path, **details})


def _key(device: Device) -> str:
    return f"{device[0]}:{device[1]}"


def _not_frozen(error: OSError, asked: Freeze) -> AgentError:
    if error.errno == errno.EBUSY:
        return wrong_state(
            f"the file system on {asked.path} was frozen by somebody else",
            hint="Storages.Thaw ends that, too",
            id=asked.storage_id,
        )
    hints: dict[Any, str] = {
        errno.EOPNOTSUPP: "only file systems that keep a journal or log can be frozen: "
        "ext4, xfs, btrfs",
    }
    return kernel_refused(
        error,
        doing=f"freeze storage {asked.storage_id} on {asked.path}",
        hint=hints.get(error.errno),
    )

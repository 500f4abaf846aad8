"""The hotplug board: the one way to wait for hardware (DESIGN D7).

The socket of kernel events is bound when the board is made, before anything is
looked up. A wait subscribes, probes, and probes again whenever an event near its
device comes in, so it cannot miss: the answer is always what sysfs holds now, and
events only say when to look. Lost events (ENOBUFS, a truncated message) make every
waiter look. Nothing is locked while a wait goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from agent.core.errors import AgentError, Code, Reason, wrong_state
from agent.core.verdict import Failed, NotYet, Order, Ready, SlowRead, Verdict
from agent.linux.uevents import Uevent, UeventSource, parse

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.tree import SysfsTree

log = logging.getLogger(__name__)

T = TypeVar("T")

EVENTS_KEPT = 16
"""Events that a waiter remembers for its error."""

RELOOKS = (0.005, 0.025, 0.125)
"""Looks without news, in seconds after the last event. The kernel announces a removal
before it takes the directory away (device_del), and says nothing when a driver gives
up on a device: what an event announces may be true only a little later."""

_BATCH = 256

# None stands for "events were lost".
Listener: TypeAlias = Callable[[Uevent | None], None]


class SlowFiles(Protocol):
    """Pseudo files that may block; `core.fileops.FileWorkers` has them."""

    async def read_text(self, path: Path, deadline: Deadline) -> str: ...
    async def write_text(self, path: Path, text: str, deadline: Deadline) -> None: ...


class DriverSeeker(Protocol):
    """Finds drivers for devices without one; `core.drivers.Drivers` does."""

    def on_event(self, event: Uevent | None) -> None: ...
    def look_after(self, device: Path) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish(Generic[T]):
    """What a request waits for: `what` names it in errors, `probe` decides.

    `rescan`: on a platform without hot-plug notice, ask the PCI bus to look, once, and a
    moment after the request: a host may ask for a device while it still plugs it in.
    """

    what: str
    probe: Callable[[SysfsTree], Verdict[T]]
    rescan: bool = False


@dataclass(slots=True)
class Counters:
    """What the board has seen since it was made."""

    events: int = 0
    foreign: int = 0
    overflows: int = 0
    truncated: int = 0
    rescans: int = 0
    late_finds: int = 0


class Watch:
    """Sees events near some device paths; everything when no path is given."""

    def __init__(self, near: tuple[str, ...] = ()) -> None:
        self._wake = asyncio.Event()
        self._near: tuple[tuple[str, ...], ...] = ()
        self.seen: deque[str] = deque(maxlen=EVENTS_KEPT)
        self.total = 0
        self.look_near(near)

    def look_near(self, near: tuple[str, ...]) -> None:
        self._near = tuple(tuple(path.strip("/").split("/")) for path in near)

    def reset(self) -> None:
        """Forget the news so far: call it before looking, so that none is missed after."""
        self._wake.clear()

    def wake(self) -> None:
        self._wake.set()

    def offer(self, event: Uevent) -> None:
        """Take an event on, below or above one of the paths, by whole components."""
        parts = event.components
        if not self._near or any(_touches(parts, near) for near in self._near):
            self.total += 1
            self.seen.append(str(event))
            self._wake.set()

    async def news(self, deadline: Deadline) -> bool:
        """Wait for news since `reset`; False when the deadline comes first."""
        with contextlib.suppress(TimeoutError):
            async with deadline.limit():
                await self._wake.wait()
        return self._wake.is_set()


class HotplugBoard:
    """Receives the kernel's events and runs the waits."""

    def __init__(
        self,
        *,
        tree: SysfsTree,
        source: UeventSource,
        files: SlowFiles,
        relooks: tuple[float, ...] = RELOOKS,
        drivers: DriverSeeker | None = None,
    ) -> None:
        self.tree = tree
        self.counters = Counters()
        self._source = source
        self._files = files
        self.relooks = relooks
        self._watches: set[Watch] = set()
        self._congested = False
        self._drivers = drivers
        self._listeners: list[Listener] = [drivers.on_event] if drivers else []

    def start(self) -> None:
        """Read events from now on, in the running event loop."""
        asyncio.get_running_loop().add_reader(self._source.fileno(), self._readable)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._source.fileno())
        self._source.close()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every event of the kernel, None for lost ones, for ever."""
        self._listeners.append(listener)

    @contextlib.contextmanager
    def watch(self, near: tuple[str, ...] = ()) -> Iterator[Watch]:
        """See the events near some device paths while the block runs."""
        watch = Watch(near)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    async def wait(self, wish: Wish[T], deadline: Deadline) -> T:
        """Wait until the wish's probe is Ready, and return its result.

        Raises DEVICE_FAILED as soon as the probe says that it never will be, and at
        the deadline the reason of its last NotYet (DEVICE_NOT_READY as a rule), with
        the evidence and the events seen.
        """
        with self.watch() as watch:
            return await _Wait(self, wish, watch, deadline).run()

    @property
    def gives_notice(self) -> bool:
        """Whether the platform tells of plugged devices: by ACPI, or by a port with pciehp."""
        if (self.tree.roots.sys / "firmware/acpi").is_dir():
            return True
        bound = self.tree.names(self.tree.roots.sys / "bus/pci_express/drivers/pciehp")
        return any(":pcie" in name for name in bound)

    async def rescan(self, deadline: Deadline) -> str | None:
        """Ask the PCI core to look at all buses; returns why it could not, or None."""
        path = self.tree.roots.sys / "bus/pci/rescan"
        self.counters.rescans += 1
        return await self._order(path, deadline)

    def look_again(self) -> None:
        """Have every waiter look: something other than an event tells of news."""
        for watch in self._watches:
            watch.wake()

    def look_after(self, devices: tuple[Path, ...]) -> None:
        """See to it that devices without a driver get one."""
        if self._drivers is not None:
            for device in devices:
                self._drivers.look_after(device)

    async def write(self, path: Path, text: str, deadline: Deadline) -> None:
        """Write to a file of sysfs; raises OSError as write(2) does, OPERATION_TIMED_OUT."""
        await self._files.write_text(path, text, deadline)

    async def slow_text(self, read: SlowRead, deadline: Deadline) -> str | None:
        """The text of a slow file: empty when the driver has none, None when it hangs."""
        try:
            if read.poke is not None:
                await self._files.write_text(read.path, read.poke, deadline)
                return ""
            return (await self._files.read_text(read.path, deadline)).strip()
        except OSError:
            return ""
        except AgentError as error:
            log.warning("%s", error)
            return None

    async def _order(self, path: Path, deadline: Deadline) -> str | None:
        try:
            await self._files.write_text(path, "1\n", deadline)
        except (OSError, AgentError) as error:
            log.warning("writing 1 to %s failed: %s", path, error)
            return str(error)
        log.info("no hot-plug notice on this platform: wrote 1 to %s", path)
        return None

    def _readable(self) -> None:
        # A bounded batch: a storm of events must not keep the loop from everything else.
        for _ in range(_BATCH):
            try:
                datagram = self._source.receive()
            except BlockingIOError:
                self._drained()
                return
            except OSError as error:
                self._lost(error)
                continue
            if datagram.truncated:
                self.counters.truncated += 1
                self._all_look()
                continue
            self._take(parse(datagram.data, datagram.sender_port))

    def _take(self, event: Uevent | None) -> None:
        if event is None:
            self.counters.foreign += 1
            return
        self.counters.events += 1
        for watch in self._watches:
            watch.offer(event)
        for listener in self._listeners:
            listener(event)

    def _lost(self, error: OSError) -> None:
        if error.errno != errno.ENOBUFS:
            log.error("reading kernel events: %s", error)
        self.counters.overflows += 1
        self._congested = True
        self._all_look()

    def _drained(self) -> None:
        # After an overflow the kernel drops everything until the socket has been read empty,
        # and says so only once (NETLINK_S_CONGESTED, net/netlink/af_netlink.c).
        if self._congested:
            self._congested = False
            self._all_look()

    def _all_look(self) -> None:
        for watch in self._watches:
            watch.wake()
        for listener in self._listeners:
            listener(None)


class _Wait(Generic[T]):
    """One wait: probes, and sleeps until there is a reason to probe again."""

    def __init__(
        self, board: HotplugBoard, wish: Wish[T], watch: Watch, deadline: Deadline
    ) -> None:
        self._board = board
        self._wish = wish
        self._watch = watch
        self._deadline = deadline
        # A tree of its own: what slow reads said is true for this wait only.
        self._tree = replace(board.tree, slow_texts={})
        self._reads: dict[SlowRead, asyncio.Task[None]] = {}
        self._rescan_due = wish.rescan
        self._ordered: set[Order] = set()
        self._helpers: set[asyncio.Task[None]] = set()
        self._notes: list[str] = []

    async def run(self) -> T:
        try:
            return await self._until_ready()
        finally:
            for task in (*self._reads.values(), *self._helpers):
                task.cancel()

    async def _until_ready(self) -> T:
        relooks = iter(self._board.relooks)
        while True:
            self._watch.reset()
            late = self._deadline.passed
            verdict = self._wish.probe(self._tree)
            match verdict:
                case Ready():
                    self._board.counters.late_finds += late
                    return verdict.result
                case Failed():
                    raise self._failed(verdict)
            if late:
                raise self._expired(verdict)
            self._help(verdict)
            pause = next(relooks, None)
            until = self._deadline if pause is None else self._deadline.earlier(pause)
            if until is self._deadline:
                await self._look_at_all_buses()
            if await self._watch.news(until):
                relooks = iter(self._board.relooks)

    def _help(self, verdict: NotYet) -> None:
        """Start what the verdict asks for; the watch is set first, so its news counts."""
        self._watch.look_near(verdict.near)
        self._board.look_after(verdict.driverless)
        for read in verdict.needs:
            if read not in self._reads:
                self._reads[read] = asyncio.ensure_future(self._read(read))
        for order in verdict.orders:
            if order not in self._ordered:
                self._ordered.add(order)
                self._helpers.add(asyncio.ensure_future(self._give(order)))

    async def _look_at_all_buses(self) -> None:
        if not self._rescan_due or self._board.gives_notice:
            return
        self._rescan_due = False
        refusal = await self._board.rescan(self._deadline)
        self._notes.append(
            f"a bus rescan was refused: {refusal}" if refusal else "the bus was rescanned once"
        )
        self._watch.wake()

    async def _read(self, read: SlowRead) -> None:
        text = await self._board.slow_text(read, self._deadline)
        if text is not None:
            self._tree.slow_texts[read] = text
            self._watch.wake()

    async def _give(self, order: Order) -> None:
        """Ask the kernel to look: whatever it finds it tells by events."""
        try:
            await self._board.write(order.path, order.text, self._deadline)
        except (OSError, AgentError) as error:
            self._notes.append(f"writing {order.text.strip()!r} to {order.path} failed: {error}")
        self._watch.wake()

    def _failed(self, verdict: Failed) -> AgentError:
        lines = self._tree.log.lines(verdict.names)
        told = f"; the kernel's log: {lines[-1]}" if lines else ""
        return wrong_state(
            f"{self._wish.what}: {verdict.why}{told}",
            reason=verdict.reason,
            evidence=verdict.why,
            events=self._events(),
            kernel_log="\n".join(lines) or "none",
        )

    def _expired(self, verdict: NotYet) -> AgentError:
        told_why = self._tree.log.explanation(verdict.names)
        if told_why is not None and verdict.reason is Reason.DEVICE_NOT_READY:
            verdict = replace(
                verdict, reason=told_why.reason, evidence=f"{told_why.why}: {verdict.evidence}"
            )
        late = verdict.reason in (Reason.DEVICE_NOT_READY, Reason.DEVICE_STILL_PRESENT)
        notes = "".join(f"; {note}" for note in self._notes)
        lines = self._tree.log.lines(verdict.names)
        told = f"; the kernel's log names it {len(lines)} times, last: {lines[-1]}" if lines else ""
        return AgentError(
            f"{self._wish.what}: deadline passed: {verdict.evidence}{notes}; "
            f"events seen near it: {self._events()}{told}",
            code=Code.DEADLINE_EXCEEDED if late else Code.FAILED_PRECONDITION,
            reason=verdict.reason,
            fields={
                **dict(verdict.facts),
                "evidence": verdict.evidence,
                "events": self._events(),
                "events_seen": str(self._watch.total),
                "events_lost": str(self._board.counters.overflows),
                "kernel_log": "\n".join(lines) or "none",
            },
            hint=verdict.hint,
        )

    def _events(self) -> str:
        return ", ".join(self._watch.seen) or "none"


def _touches(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]

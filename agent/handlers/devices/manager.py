"""Devices come and go: attach, hold, detach, and what survives a restart.

Detach has two steps, because the host unplugs in between. `prepare_detach` refuses
while someone uses the device, lets no new user in, takes back what its class changed
and has the kernel let go of it; `detach` waits until it is gone and forgets it;
`cancel_detach` makes it usable again. A device that stays where it is, is given back
and forgotten in one step (`release_device`). One that goes by itself stays in the
table as VANISHED until it is detached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, exhausted, invalid, wrong_state
from agent.core.inflight import InFlight
from agent.core.kinds import MigProfile, Mode
from agent.core.model import AttachedDevice, DeviceRequest, DeviceState
from agent.core.names import check_id
from agent.core.undo import UndoStack
from agent.handlers.devices import CLASSES
from agent.handlers.devices.attached import entry_of
from agent.handlers.devices.base import DeviceClass, refused
from agent.handlers.devices.changes import Change, Changes
from agent.handlers.devices.gpus.mig import set_mig
from agent.handlers.devices.job import Hands, Job
from agent.handlers.devices.modes import (
    expectation_in,
    is_in,
    refuse_mode,
    switch_back,
    switch_driver,
)
from agent.handlers.devices.nodes import nodes_below
from agent.handlers.devices.removal import bring_back, probe_gone, take_out
from agent.handlers.devices.resizing import is_resize, note_size
from agent.handlers.devices.table import Entry, Table, address_in_use, refuse_held, repeated
from agent.handlers.devices.usage import HolderScan, NobodyHolds, own_holder, stacked, still_used

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from agent.core.events import EventLog
    from agent.core.holding import Holder
    from agent.core.hotplug import HotplugBoard
    from agent.core.state import StateStore
    from agent.linux.uevents import Uevent

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 10.0

DEVICE_LIMIT = 1024
"""Devices in the table; a PCI tree of a VM ends long before."""

# The kernel announces a removal a moment before sysfs shows it.
_CONFIRM_SECONDS = 1.0


class DeviceManager:
    """The devices of the sandbox, by id."""

    def __init__(
        self,
        *,
        board: HotplugBoard,
        state: StateStore,
        events: EventLog,
        default_timeout: float = DEFAULT_TIMEOUT,
        classes: Iterable[DeviceClass[Any]] = CLASSES,
        holders: HolderScan | None = None,
    ) -> None:
        self._board = board
        self._tree = board.tree
        self._events = events
        self._default_timeout = default_timeout
        self._classes = _by_name(classes)
        self._holders = holders or NobodyHolds()
        self._table = Table(state)
        self._changes = Changes(state)
        self._claims: dict[Path, str] = {}
        self._hands = Hands(board=board, peer=self._peer, others=self._known)
        self._attaching: InFlight[DeviceRequest, AttachedDevice] = InFlight("device")
        self._changing: InFlight[object, None] = InFlight("device")
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._vanished: list[Callable[[str], None]] = []
        self._attached: list[Callable[[AttachedDevice], None]] = []
        board.listen(self._on_event)

    def on_vanished(self, listener: Callable[[str], None]) -> None:
        """Have `listener` called with the id of each device that goes by itself from now on.

        One that an earlier agent had and that is gone by `restore` is not told of: nobody
        can hold it any more.
        """
        self._vanished.append(listener)

    def on_attached(self, listener: Callable[[AttachedDevice], None]) -> None:
        """Have `listener` called with each device that is attached from now on."""
        self._attached.append(listener)

    def get(self, device_id: str) -> AttachedDevice:
        """Raises UNKNOWN_DEVICE."""
        return self._table.entry(device_id).device

    def list(self) -> tuple[AttachedDevice, ...]:
        """All devices, those of an earlier agent first."""
        return tuple(entry.device for entry in self._table)

    async def holders(self, device_id: str) -> tuple[Holder, ...]:
        """Who uses a device: those whom the agent gave it to, and what the kernel shows."""
        entry = self._table.entry(device_id)
        found = await self._users(entry)
        return (*map(own_holder, sorted(entry.device.users)), *found)

    async def attach(self, request: DeviceRequest) -> AttachedDevice:
        """Make the device usable, and enter it in the table.

        The same request again gives the same answer, also while the first waits. Raises
        ID_IN_USE, ADDRESS_IN_USE, DEVICE_NOT_READY (with what was seen and what is missing),
        UNEXPECTED_DEVICE, DEVICE_FAILED and its class's own; after an error nothing is left
        of the request.
        """
        check_id("device", request.id)
        known = self._table.find(request.id)
        if known is not None and (answer := repeated(known.device, request)):
            return answer
        return await self._attaching.run(request.id, request, lambda: self._attach(request))

    async def prepare_detach(self, device_id: str) -> None:
        """Refuse while someone uses the device (STILL_IN_USE, with the list; NOT_REMOVABLE),
        nothing changed; else let no one in from now on and have the kernel let go of it."""
        self._table.entry(device_id)
        await self._changing.run(device_id, "prepare", lambda: self._prepare(device_id))

    async def detach(self, device_id: str, timeout: float | None) -> None:
        """Wait until sysfs no longer has the device, and forget it.

        Raises STILL_IN_USE; DEVICE_STILL_PRESENT at the deadline, and then the device
        stays as it is after `prepare_detach`: the host may unplug it late, or cancel.
        """
        deadline = Deadline.of_request(timeout, self._default_timeout)
        entry = self._table.entry(device_id)
        refuse_held(entry.device)
        if entry.device.state is DeviceState.ATTACHED:
            entry = self._table.mark(entry, DeviceState.LEAVING)
        await self._wait_gone(entry, deadline)
        current = self._table.find(device_id)
        if current is None or current.instance != entry.instance:
            return  # another call was first
        if current.device.state is DeviceState.ATTACHED:
            raise wrong_state(f"the detachment of {device_id} was cancelled", id=device_id)
        await self._give_back_rest(current)
        self._drop(current)

    async def cancel_detach(self, device_id: str) -> None:
        """Take `prepare_detach` back: the host could not or did not unplug the device."""
        self._table.entry(device_id)
        await self._changing.run(device_id, "cancel", lambda: self._cancel(device_id))

    async def release_device(self, device_id: str) -> None:
        """Give a device back that stays where it is, and forget it; raises STILL_IN_USE."""
        self._table.entry(device_id)
        await self._changing.run(device_id, "release", lambda: self._release(device_id))

    async def reconfigure(
        self, device_id: str, mode: Mode, timeout: float | None
    ) -> AttachedDevice:
        """Switch the device's mode while it is attached.

        Raises STILL_IN_USE, MODE_REFUSED, and what attaching in that mode raises; the
        device is in its former mode then.
        """
        self._table.entry(device_id)
        deadline = Deadline.of_request(timeout, self._default_timeout)
        await self._changing.run(
            device_id, mode, lambda: self._reconfigure(device_id, mode, deadline)
        )
        return self.get(device_id)

    async def forget(self, device_id: str) -> None:
        """Take an attach back, the device staying where it is; fine when there is none.

        Raises STILL_IN_USE.
        """
        entry = self._table.find(device_id)
        if entry is not None:
            refuse_held(entry.device)
            await self._give_back(entry)
            self._drop(entry)

    def hold(self, device_id: str, user: str) -> AttachedDevice:
        """Note that `user` (e.g. "storage data") needs the device; holding twice is once.

        Raises UNKNOWN_DEVICE, WRONG_STATE for a device that leaves or has vanished.
        """
        entry = self._table.entry(device_id)
        if entry.device.state is not DeviceState.ATTACHED:
            raise wrong_state(
                f"device {device_id} is {entry.device.state}: {user} cannot use it",
                id=device_id,
                state=entry.device.state,
            )
        return self._table.set_users(entry, entry.device.users | {user})

    def release(self, device_id: str, user: str) -> None:
        """Take a hold back; fine when there is none, so that clean-up never fails here."""
        entry = self._table.find(device_id)
        if entry is not None:
            self._table.set_users(entry, entry.device.users - {user})

    async def restore(self) -> None:
        """Take over what an earlier agent saved; devices that are gone since are dropped.

        What it was in the middle of is taken back: a device that it was preparing, switching
        or giving back when it died is as it was before, and the host asks again.
        """
        for device_id, entry in self._table.load(self._tree):
            self._events.publish("device-lost", device_id, entry.place() if entry else {})
        for found in self._table:
            self._classes[found.served_by].restored(found.device, found.kept)
        for change in self._changes.take_over():
            await self._take_back(change)
        await asyncio.gather(*map(self._stay, filter(self._is_half_way, self._table)))

    async def close(self) -> None:
        """Stop the checks that are under way."""
        for task in list(self._checks.values()):
            task.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)

    # Coming.

    async def _attach(self, request: DeviceRequest) -> AttachedDevice:
        self._table.refuse_taken(request.id, request.address)
        self._refuse_awaited(request)
        if len(self._table) >= DEVICE_LIMIT:
            raise exhausted(f"{DEVICE_LIMIT} devices are attached", reason=Reason.LIMIT_REACHED)
        if (vanished := self._table.find(request.id)) is not None:
            await self._give_back_rest(vanished)
        deadline = Deadline.of_request(request.timeout, self._default_timeout)
        async with self._changing_of(request.id, "attach") as undo:
            entry = await self._take(request, deadline, undo)
            self._table.refuse_same(entry)
            self._refuse_claimed(entry)
            self._table.put(entry)
            undo.commit()
        self._events.publish("device-attached", request.id, entry.place())
        for listener in self._attached:
            listener(entry.device)
        return entry.device

    @contextlib.asynccontextmanager
    async def _changing_of(self, device_id: str, doing: str) -> AsyncIterator[UndoStack]:
        """Undone at the end unless committed; what was noted until then is needed no more."""
        try:
            async with UndoStack(f"{doing} device {device_id}") as undo:
                yield undo
        finally:
            self._changes.forget(device_id)
            for place in [key for key, owner in self._claims.items() if owner == device_id]:
                del self._claims[place]

    async def _take(
        self,
        request: DeviceRequest,
        deadline: Deadline,
        undo: UndoStack,
        *,
        mode: Mode | None = None,
    ) -> Entry:
        """Make the device usable, as asked for or in the mode that it was switched to."""
        expected = expectation_in(request.kind, mode)
        device_class = self._serving(type(expected))
        await self._hands.load(request.load_modules, deadline)
        job = Job(
            request=request,
            expected=expected,
            what=f"{device_class.name} device {request.id} at {request.address}",
            hands=self._hands,
            deadline=deadline,
            undo=undo,
            note=partial(self._changes.note, request, device_class.name),
            claim=partial(self._claim, request),
        )
        switched = await switch_driver(job, mode)
        taken = await device_class.take(job)
        entry = entry_of(self._tree, request, device_class.name, taken)
        return replace(entry, mode=mode, kept={**switched, **entry.kept})

    def _serving(self, expectation: type) -> DeviceClass[Any]:
        for device_class in self._classes.values():
            if device_class.expectation is expectation:
                return device_class
        known = ", ".join(sorted(self._classes))
        raise invalid(f"no device class serves {expectation.__name__}: known: {known}")

    async def _reconfigure(self, device_id: str, mode: Mode, deadline: Deadline) -> None:
        entry = self._table.entry(device_id)
        await self._refuse_given(entry)
        if entry.device.state is not DeviceState.ATTACHED:
            state = entry.device.state
            raise wrong_state(f"device {device_id} is {state}", id=device_id, state=state)
        if is_in(entry, mode):
            return
        refuse_mode(entry, mode)
        self._table.mark(entry, DeviceState.LEAVING)
        await self._refuse_used(entry)
        try:
            async with self._changing_of(device_id, "switch") as undo:
                changed = await self._switch(entry, mode, deadline, undo)
                self._table.put(changed)
                undo.commit()
        except BaseException:
            # A caller that leaves half-way, too: the device must not stay half detached.
            await self._stay(entry)
            raise
        details = {"driver": changed.device.driver, "former": entry.device.driver}
        self._events.publish("device-reconfigured", device_id, details)

    async def _switch(self, entry: Entry, mode: Mode, deadline: Deadline, undo: UndoStack) -> Entry:
        request = entry.device.request
        if isinstance(mode, MigProfile):
            # The GPU is what it was; the nodes of its instances are others.
            await set_mig(self._hands, entry.device, mode.name, deadline, undo)
            mode_after = entry.mode
        else:
            mode_after = mode
        await self._give_back(entry)
        return await self._take(request, deadline, undo, mode=mode_after)

    def _claim(self, request: DeviceRequest, directory: Path) -> None:
        """One device at a time is changed at a place: another one that is attached to it, or
        is about to be, would have its driver taken from under it."""
        if self._claims.setdefault(directory, request.id) != request.id:
            raise address_in_use(request.address, self._claims[directory])
        self._table.refuse_at(request, directory)

    def _refuse_claimed(self, found: Entry) -> None:
        """What was found there may be gone when the one who changes it is done."""
        for place, owner in self._claims.items():
            if owner != found.id and found.directory.is_relative_to(place):
                raise address_in_use(found.device.request.address, owner)

    def _peer(self, device_id: str) -> DeviceRequest | AttachedDevice | None:
        entry = self._table.find(device_id)
        return entry.device if entry else self._attaching.requests().get(device_id)

    def _known(self) -> tuple[DeviceRequest | AttachedDevice, ...]:
        return (*self.list(), *self._attaching.requests().values())

    def _refuse_awaited(self, request: DeviceRequest) -> None:
        for other, awaited in self._attaching.requests().items():
            if other != request.id and awaited.address == request.address:
                raise address_in_use(request.address, other)

    # Going.

    async def _prepare(self, device_id: str) -> None:
        entry = self._table.entry(device_id)
        await self._refuse_given(entry)
        state = entry.device.state
        leaving = state is DeviceState.LEAVING
        if state is DeviceState.VANISHED or (leaving and not entry.is_there(self._tree)):
            return
        # One that is leaving and still there was not let go of wholly: all of it once more.
        if why := self._classes[entry.served_by].removable(entry.device):
            raise refused(entry.device, why, Reason.NOT_REMOVABLE)
        # From here on nobody new comes in, so that the list of users stays true.
        entry = self._table.mark(entry, DeviceState.LEAVING)
        await self._refuse_used(entry, state)
        try:
            await self._let_go(entry)
        except BaseException:
            # A caller that leaves half-way, too: the device must not stay half detached.
            await self._stay(entry)
            raise

    async def _let_go(self, entry: Entry) -> None:
        deadline = Deadline.after(self._default_timeout)
        await self._give_back(entry)
        if not entry.is_there(self._tree):
            return
        self._table.put(replace(self._table.entry(entry.id), taken_out=True))
        if await take_out(self._board, entry, deadline):
            await self._wait_gone(entry, deadline)

    async def _stay(self, entry: Entry) -> None:
        """The way back from a half-done `prepare`; what it can't repair, `cancel_detach` may."""
        try:
            await self._return(self._table.entry(entry.id))
        except AgentError as error:
            log.warning("device %s could not be made usable again: %s", entry.id, error)

    async def _cancel(self, device_id: str) -> None:
        entry = self._table.entry(device_id)
        if entry.device.state is DeviceState.LEAVING:
            await self._return(entry)

    async def _return(self, entry: Entry) -> None:
        stayed = entry.is_there(self._tree)
        if not stayed and not entry.taken_out:
            self._mark_vanished(entry)
            return
        deadline = Deadline.after(self._default_timeout)
        if not stayed:
            await bring_back(self._board, entry, deadline)
        async with self._changing_of(entry.id, "bring back") as undo:
            found = await self._take(entry.device.request, deadline, undo, mode=entry.mode)
            # Of a function that stayed, what it was before the first time is what it goes
            # back to; one that came back begins anew.
            kept = {**found.kept, **entry.kept} if stayed else found.kept
            self._table.put(replace(found, kept=kept))
            undo.commit()

    async def _release(self, device_id: str) -> None:
        entry = self._table.entry(device_id)
        await self._refuse_given(entry)
        if entry.device.state is DeviceState.ATTACHED:
            entry = self._table.mark(entry, DeviceState.LEAVING)
            if self._was_changed(entry):
                await self._refuse_used(entry)
            try:
                await self._give_back(entry)
            except BaseException:
                # A caller that leaves half-way, too: the device must not stay half detached.
                await self._stay(entry)
                raise
        else:
            await self._give_back_rest(entry)
        self._drop(entry)

    def _was_changed(self, entry: Entry) -> bool:
        """Whether there is anything to give back: if not, a device that stays may be forgotten
        under its users."""
        changes = type(self._classes[entry.served_by]).give_back is not DeviceClass.give_back
        return changes or bool(entry.kept) or entry.mode is not None

    async def _refuse_given(self, entry: Entry) -> None:
        """Before anything else: those whom the agent gave it to keep it, and all are named."""
        if entry.device.users:
            raise still_used(entry.device, await self.holders(entry.id))

    async def _refuse_used(self, entry: Entry, former: DeviceState = DeviceState.ATTACHED) -> None:
        """Nothing of the device was changed so far, so it is not looked for anew: whoever
        uses it may have put it where that fails (a network namespace)."""
        try:
            if found := await self._users(entry):
                raise still_used(entry.device, found)
        except BaseException:
            current = self._table.entry(entry.id)
            if current.is_there(self._tree):
                self._table.mark(current, former)
            else:
                self._mark_vanished(current)
            raise

    async def _users(self, entry: Entry) -> tuple[Holder, ...]:
        """What the kernel shows of it, and all who use what goes with it: disks behind an
        adapter, virtual functions. While one of those is open for user space, the kernel
        waits for that and lets nothing else on PCI come or go."""
        found = await self._seen_users(entry)
        for each in tuple(self._table):
            if each.goes_with(entry):
                given = (*stacked(each, entry), *map(own_holder, sorted(each.device.users)))
                more = (*given, *await self._seen_users(each))
                found += tuple(holder for holder in more if holder not in found)
        return found

    async def _seen_users(self, entry: Entry) -> tuple[Holder, ...]:
        if not entry.is_there(self._tree):
            return ()
        # What has come below it since it was attached is in use as much as what was there.
        now, _ = nodes_below(self._tree, entry.directory)
        own = self._classes[entry.served_by].own_nodes(entry.device)
        deadline = Deadline.after(self._default_timeout)
        return await self._holders.of(entry.device, dict.fromkeys((*own, *now)), deadline)

    async def _give_back(self, entry: Entry) -> None:
        """Whatever was changed for it: by its class, and by a switch of its driver."""
        device_class = self._classes[entry.served_by]
        await device_class.give_back(self._hands, entry.device, entry.kept)
        await switch_back(self._hands, entry.kept)

    async def _give_back_rest(self, entry: Entry) -> None:
        """Of a device that is forgotten whatever comes: others of its group, or links that
        were made for it, outlive it. Most often that is done already."""
        try:
            await self._give_back(entry)
        except AgentError as error:
            log.warning("device %s could not be given back wholly: %s", entry.id, error)

    async def _take_back(self, change: Change) -> None:
        """What an earlier agent changed for a device, and had not entered in the table."""
        device_id = change.device.request.id
        entry = self._table.find(device_id)
        if entry is not None and entry.device.state is DeviceState.ATTACHED:
            return
        log.warning("device %s: an earlier agent died while it changed it", device_id)
        try:
            await self._classes[change.served_by].give_back(self._hands, change.device, change.kept)
            await switch_back(self._hands, change.kept)
        except AgentError as error:
            log.warning("device %s: what was changed stays so: %s", device_id, error)

    def _is_half_way(self, entry: Entry) -> bool:
        return entry.device.state is DeviceState.LEAVING and entry.is_there(self._tree)

    async def _wait_gone(self, entry: Entry, deadline: Deadline) -> None:
        what = f"removal of device {entry.id} at {entry.device.request.address}"
        await self._hands.wait(what, partial(probe_gone, entry), deadline)

    def _drop(self, entry: Entry) -> None:
        if self._table.find(entry.id) is None:
            return  # another call was first
        self._table.drop(entry)
        self._events.publish("device-detached", entry.id, entry.place())

    # Going by itself.

    def _on_event(self, event: Uevent | None) -> None:
        """Look after devices that an event may have taken away; None: events were lost."""
        if event is not None and is_resize(event):
            note_size(self._tree, self._table, event)
        if event is not None and event.action != "remove":
            return
        for entry in self._table:
            if entry.device.state is not DeviceState.ATTACHED or entry.id in self._checks:
                continue
            devpath = self._tree.devpath(entry.directory).strip("/").split("/")
            parts = event.components if event else ()
            if tuple(devpath[: len(parts)]) == parts:
                self._check(entry)

    def _check(self, entry: Entry) -> None:
        task = asyncio.get_running_loop().create_task(self._confirm_gone(entry))
        self._checks[entry.id] = task
        task.add_done_callback(lambda _: self._checks.pop(entry.id, None))

    async def _confirm_gone(self, entry: Entry) -> None:
        try:
            await self._wait_gone(entry, Deadline.after(_CONFIRM_SECONDS))
        except AgentError:
            return
        current = self._table.find(entry.id)
        if (
            current is not None
            and current.device.state is DeviceState.ATTACHED
            and current.instance == entry.instance
        ):
            self._mark_vanished(current)

    def _mark_vanished(self, entry: Entry) -> None:
        device = entry.device
        log.warning("device %s at %s has vanished", entry.id, device.request.address)
        self._table.mark_vanished(entry)
        users = ", ".join(sorted(device.users))
        self._events.publish("device-vanished", entry.id, {**entry.place(), "users": users})
        for listener in self._vanished:
            listener(entry.id)


def _by_name(classes: Iterable[DeviceClass[Any]]) -> dict[str, DeviceClass[Any]]:
    table: dict[str, DeviceClass[Any]] = {}
    for each in classes:
        for other in table.values():
            if other.expectation is each.expectation or other.name == each.name:
                raise ValueError(f"two device classes serve {each.expectation.__name__}")
        table[each.name] = each
    return table

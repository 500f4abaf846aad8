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
import json
import logging
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, exhausted, invalid, wrong_state
from agent.core.holding import Holder, HolderKind
from agent.core.inflight import InFlight
from agent.core.kinds import MigProfile, Mode
from agent.core.model import AttachedDevice, DeviceNode, DeviceRequest, DeviceState
from agent.core.names import check_id
from agent.core.undo import UndoStack
from agent.core.verdict import NotYet, Ready, Verdict
from agent.handlers.devices import CLASSES
from agent.handlers.devices.attached import entry_of
from agent.handlers.devices.base import DeviceClass, refused
from agent.handlers.devices.gpus.mig import set_mig
from agent.handlers.devices.job import Hands, Job
from agent.handlers.devices.modes import (
    expectation_in,
    refuse_mode,
    switch_back,
    switch_driver,
)
from agent.handlers.devices.removal import bring_back, take_out
from agent.handlers.devices.table import Entry, Table, address_in_use, refuse_held, repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.core.events import EventLog
    from agent.core.hotplug import HotplugBoard
    from agent.core.state import StateStore
    from agent.core.tree import SysfsTree
    from agent.linux.uevents import Uevent

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 10.0

DEVICE_LIMIT = 1024
"""Devices in the table; a PCI tree of a VM ends long before."""

# What the server lets through of one field is 800 bytes.
_HOLDERS_BYTES = 780

# The kernel announces a removal a moment before sysfs shows it.
_CONFIRM_SECONDS = 1.0


class HolderScan(Protocol):
    """Who uses a device, as the kernel shows it (`usage.py`)."""

    async def of(
        self, device: AttachedDevice, nodes: Iterable[DeviceNode], deadline: Deadline
    ) -> tuple[Holder, ...]: ...


class NobodyHolds:
    """For a guest in which nothing can hold a device."""

    async def of(
        self,
        device: AttachedDevice,  # noqa: ARG002 - a Protocol's
        nodes: Iterable[DeviceNode],  # noqa: ARG002 - a Protocol's
        deadline: Deadline,  # noqa: ARG002 - a Protocol's
    ) -> tuple[Holder, ...]:
        return ()


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
        self._hands = Hands(board=board, peer=self._peer, others=self._known)
        self._attaching: InFlight[DeviceRequest, AttachedDevice] = InFlight("device")
        self._changing: InFlight[object, None] = InFlight("device")
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._vanished: list[Callable[[str], None]] = []
        board.listen(self._on_event)

    def on_vanished(self, listener: Callable[[str], None]) -> None:
        """Have `listener` called with the id of each device that goes by itself from now on.

        One that an earlier agent had and that is gone by `restore` is not told of: nobody
        can hold it any more.
        """
        self._vanished.append(listener)

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
        return (*map(_own_holder, sorted(entry.device.users)), *found)

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
        self._drop(entry)

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
        """Take over what an earlier agent saved; devices that are gone since are dropped."""
        for device_id, entry in self._table.load(self._tree):
            self._events.publish("device-lost", device_id, entry.place() if entry else {})
        for found in self._table:
            self._classes[found.served_by].restored(found.device, found.kept)

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
        deadline = Deadline.of_request(request.timeout, self._default_timeout)
        async with UndoStack(f"attach device {request.id}") as undo:
            entry = await self._take(request, deadline, undo)
            self._table.refuse_same(entry)
            self._table.put(entry)
            undo.commit()
        self._events.publish("device-attached", request.id, entry.place())
        return entry.device

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
        if entry.mode == mode:
            return
        refuse_mode(entry, mode)
        self._table.mark(entry, DeviceState.LEAVING)
        await self._refuse_used(entry)
        try:
            async with UndoStack(f"switch device {device_id}") as undo:
                changed = await self._switch(entry, mode, deadline, undo)
                self._table.put(changed)
                undo.commit()
        except BaseException:
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
        if entry.device.state is not DeviceState.ATTACHED:
            return
        if why := self._classes[entry.served_by].removable(entry.device):
            raise refused(entry.device, why, Reason.NOT_REMOVABLE)
        # From here on nobody new comes in, so that the list of users stays true.
        entry = self._table.mark(entry, DeviceState.LEAVING)
        await self._refuse_used(entry)
        try:
            await self._let_go(entry)
        except BaseException:
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
        async with UndoStack(f"bring device {entry.id} back") as undo:
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
            await self._refuse_used(entry)
            try:
                await self._give_back(entry)
            except BaseException:
                await self._stay(entry)
                raise
        self._drop(entry)

    async def _refuse_given(self, entry: Entry) -> None:
        """Before anything else: those whom the agent gave it to keep it, and all are named."""
        if entry.device.users:
            raise _still_used(entry.device, await self.holders(entry.id))

    async def _refuse_used(self, entry: Entry) -> None:
        """Nothing of the device was changed so far, so it is not looked for anew: whoever
        uses it may have put it where that fails (a network namespace)."""
        try:
            if found := await self._users(entry):
                raise _still_used(entry.device, found)
        except BaseException:
            current = self._table.entry(entry.id)
            if current.is_there(self._tree):
                self._table.mark(current, DeviceState.ATTACHED)
            else:
                self._mark_vanished(current)
            raise

    async def _users(self, entry: Entry) -> tuple[Holder, ...]:
        """What the kernel shows of it, and all who use its virtual functions: they go with
        it, and while one of them is open for user space, the kernel waits for that and lets
        nothing else on PCI come or go."""
        found = await self._seen_users(entry)
        for each in tuple(self._table):
            if each.physical_function == entry.directory:
                found += tuple(map(_own_holder, sorted(each.device.users)))
                found += await self._seen_users(each)
        return found

    async def _seen_users(self, entry: Entry) -> tuple[Holder, ...]:
        if not entry.is_there(self._tree):
            return ()
        nodes = self._classes[entry.served_by].own_nodes(entry.device)
        deadline = Deadline.after(self._default_timeout)
        return await self._holders.of(entry.device, nodes, deadline)

    async def _give_back(self, entry: Entry) -> None:
        """Whatever was changed for it: by its class, and by a switch of its driver."""
        device_class = self._classes[entry.served_by]
        await device_class.give_back(self._hands, entry.device, entry.kept)
        await switch_back(self._hands, entry.kept)

    async def _wait_gone(self, entry: Entry, deadline: Deadline) -> None:
        what = f"removal of device {entry.id} at {entry.device.request.address}"
        await self._hands.wait(what, partial(_probe_gone, entry), deadline)

    def _drop(self, entry: Entry) -> None:
        self._table.drop(entry)
        self._events.publish("device-detached", entry.id, entry.place())

    # Going by itself.

    def _on_event(self, event: Uevent | None) -> None:
        """Look after devices that an event may have taken away; None: events were lost."""
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


def _probe_gone(entry: Entry, tree: SysfsTree) -> Verdict[None]:
    if not entry.is_there(tree):
        return Ready(None)
    driver = tree.link_name(entry.directory / "driver")
    return NotYet(
        evidence=(
            f"sysfs still has {entry.directory.name}, "
            f"{f'bound to {driver}' if driver else 'without a driver'}"
        ),
        near=(tree.devpath(entry.directory),),
        names=(entry.directory.name,),
        facts=(("driver", driver or "none"),),
        reason=Reason.DEVICE_STILL_PRESENT,
    )


def _own_holder(user: str) -> Holder:
    """Users are noted as "storage ID" and "container ID"."""
    kind, _, name = user.partition(" ")
    return Holder(kind=HolderKind(kind), name=name)


def _still_used(device: AttachedDevice, holders: tuple[Holder, ...]) -> AgentError:
    first = ", ".join(map(str, holders[:3]))
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    given = {"users": ", ".join(sorted(device.users))} if device.users else {}
    return wrong_state(
        f"device {device.request.id} is still used: {first}{more}",
        reason=Reason.STILL_IN_USE,
        hint="end what uses it first; nothing has changed. Devices.Holders has the whole list",
        id=device.request.id,
        holders=_as_json(holders),
        holders_in_all=len(holders),
        **given,
    )


def _as_json(holders: tuple[Holder, ...]) -> str:
    """As many as fit into one field of an error, which would be cut in the middle else."""
    texts: list[str] = []
    room = _HOLDERS_BYTES
    for holder in holders:
        text = json.dumps({name: value for name, value in asdict(holder).items() if value})
        room -= len(text) + 1
        if room < 0:
            break
        texts.append(text)
    return f"[{','.join(texts)}]"

"""Plugging and unplugging: one transaction over QEMU and the guest.

Plug: add the backends in QEMU (a file, a network, memory), put the devices in
their place (`device_add`) while the guest's agent already waits for them, take
the agent's answer. Unplug: the agent lets go (PREPARE), the guest's kernel is
asked to release the device (`device_del`), QEMU tells that it did
(DEVICE_DELETED), the agent forgets it (COMPLETE), the backends go. On any
failure the steps that were done are undone in reverse.

Removal is the guest kernel's to grant. When it takes longer than the caller
wants to wait, the device is `LEAVING`: its id, place and backends stay taken
until the event comes, however late, because until then the guest can still use
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from typing import TYPE_CHECKING, Any

import grpc

from innkeeper.shim import removal
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.plugged import DeviceState, Fate, Usable, new_fate
from innkeeper.shim.qmp import QemuRefusedError
from innkeeper.v1 import devices_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence

    from innkeeper.shim.hardware import Hardware
    from innkeeper.shim.helpers import Helpers
    from innkeeper.shim.plugged import Function, GuestDevices, Part, Plug, Wanted
    from innkeeper.shim.qmp import Monitor
    from innkeeper.shim.table import Table
    from innkeeper.v1 import sandbox_pb2

DEFAULT_TIMEOUT = 30.0
LONGEST_TIMEOUT = 3600.0

# How long undoing waits for the guest's kernel before the rest of it waits for
# the event, and how long for each answer of the agent's.
_UNDO_LIMIT = 10.0
_AGENT_LIMIT = 3.0
# For what is in the way of the next device of that id: a busy guest may take so long.
_FORGETTING_LIMIT = 15.0
_LOOK_AGAIN = 0.1
_DEVICES = "/machine/peripheral"
# A second plug after a removal nobody asked for; a third would fight the guest.
_ATTEMPTS = 2

# Of a share whose server has ended.
_STUCK = (
    "its server has ended while it was mounted; the guest's kernel would wait for an answer"
    " for good, and take no other device meanwhile"
)

_log = logging.getLogger(__name__)


class Plugger:
    """What is plugged into one VM, and how it comes and goes."""

    def __init__(
        self, monitor: Monitor, guest: GuestDevices, table: Table, helpers: Helpers
    ) -> None:
        self._monitor = monitor
        self._guest = guest
        self._table = table
        self._helpers = helpers
        helpers.on_end = self._on_helper_end
        self._unforgotten: dict[str, devices_pb2.Device] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        monitor.on_event(self._on_event)
        self._run_in_background(self._watch_monitor())

    def list(self) -> tuple[tuple[Function, Plug], ...]:
        """By id; what is coming and what is leaving too."""
        found = ((function, plug) for plug in self._table.plugs for function in plug.functions)
        return tuple(sorted(found, key=lambda each: each[0].id))

    async def plug(self, wanted: Sequence[Wanted], timeout: float, port: str = "") -> Usable:
        """Returns when the guest can use all of it; `timeout` in seconds for the whole.

        Raises what `Table.admit` does, NOT_PLUGGABLE, QEMU_TOO_OLD, FILE_IN_USE,
        CPUS_EXHAUSTED, MEMORY_EXHAUSTED, QEMU_REFUSED, GUEST_REFUSED, AGENT_AWAY,
        DEVICE_LOST, OPERATION_TIMED_OUT, QEMU_GONE; then, and when it is cancelled,
        both sides are as before.
        """
        for each in wanted:
            _require_pluggable(each)
        plug = self._table.admit(wanted, port)
        try:
            async with asyncio.timeout(timeout):
                usable = await self._bring_in(plug, time.monotonic() + timeout)
                await self._require_served(plug)
        except BaseException as error:
            late = _late(f"plug of {plug.name}", plug, timeout)
            await self._protect(self._undo(plug))
            if isinstance(error, TimeoutError):
                raise late from None
            if isinstance(error, ShimError):
                self._tell_if_stuck(plug, error)
            raise
        plug.state = DeviceState.PLUGGED
        return usable

    async def unplug(self, device_id: str, timeout: float) -> None:
        """Returns when all that came with the device is gone on both sides.

        Raises UNKNOWN_DEVICE, BUSY, NOT_REMOVABLE, STILL_IN_USE, GUEST_REFUSED,
        AGENT_AWAY and QEMU_REFUSED with nothing changed; OPERATION_TIMED_OUT and
        REMOVAL_PENDING while the guest has not let go.
        """
        plug = self._pluggable_out(device_id)
        plug.state = DeviceState.UNPLUGGING
        try:
            async with asyncio.timeout(timeout):
                await self._prepare(plug)
                await self._bring_out(plug)
        except TimeoutError:
            raise _late(f"unplug of {plug.name}", plug, timeout) from None
        await self._protect(self._forget(plug))

    async def close(self) -> None:
        """Ends what runs in the background."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _pluggable_out(self, device_id: str) -> Plug:
        plug = self._table.find(device_id)
        fields: dict[str, object] = {"id": device_id}
        match plug.state:
            case DeviceState.PLUGGED:
                _require_removable(plug, self._table.disks_on(plug))
                return plug
            case DeviceState.LEAVING | DeviceState.UNPLUGGING:
                message = f"device {device_id}: removal pending, the guest has not let go yet"
                raise ShimError(Reason.REMOVAL_PENDING, message, fields=fields)
            case DeviceState.PLUGGING:
                message = f"device {device_id}: is being plugged in"
                raise ShimError(Reason.BUSY, message, fields=fields)

    # In.

    async def _bring_in(self, plug: Plug, deadline: float) -> Usable:
        async with self._in_turn(plug):
            await self._settle_with_guest()
            await self._open(plug)
            for _ in range(_ATTEMPTS):
                usable = await self._plug_once(plug, deadline)
                if usable is not None:
                    return usable
                _log.warning("%s was removed though nobody asked for it", plug.name)
                plug.step = "clearing up, after a removal nobody asked for"
                await self._clear_after_loss(plug)
        raise ShimError(
            Reason.DEVICE_LOST,
            f"{plug.name}: QEMU removed it from {plug.where} {_ATTEMPTS} times"
            " though nobody asked for it",
            hint="the guest may still be scanning its PCI buses; try again",
            fields=plug.fields,
        )

    @contextlib.asynccontextmanager
    async def _in_turn(self, plug: Plug) -> AsyncIterator[None]:
        """Memory and CPUs are known by their number, or by how much came: one at a time."""
        if not plug.in_turn:
            yield
            return
        plug.step = "waiting for another plug of memory or CPUs"
        async with self._one_at_a_time:
            yield

    async def _open(self, plug: Plug) -> None:
        plug.step = "adding what it is made of in QEMU"
        self._table.number_pmem(plug)
        for function in plug.functions:
            function.hardware = function.hardware.claim()
            await self._require_known(function.hardware)
            function.hardware = await function.hardware.resolve(function.names, self._monitor)
            helper = function.hardware.helper(function.names)
            if helper is not None:
                await self._helpers.start(function.id, helper)
            for backend in function.hardware.backends(function.names):
                # Before the command: a caller that leaves meanwhile has it undone.
                plug.opened.append(backend)
                await self._execute(function, backend.add, backend.arguments)

    async def _require_served(self, plug: Plug) -> None:
        """Its program may have ended while the guest was still looking for it."""
        if not plug.failure:
            return
        for function in plug.functions:
            told = await self._helpers.why_ended(function.id)
            if told is not None:
                raise told

    async def _require_known(self, hardware: Hardware) -> None:
        """Asks QEMU itself: distributions leave devices out, or bring them back."""
        if not hardware.since:
            return
        question = {"implements": hardware.driver}
        if not await self._monitor.execute("qom-list-types", question):
            raise ShimError(
                Reason.QEMU_TOO_OLD,
                f"{hardware.model}: this QEMU has no such device",
                hint=f"QEMU has it since {hardware.since}",
                fields={"model": hardware.model, "since": hardware.since},
            )

    async def _execute(
        self, function: Function, command: str, arguments: Mapping[str, object]
    ) -> None:
        try:
            await self._monitor.execute(command, arguments)
        except QemuRefusedError as error:
            told = await self._helpers.why_ended(function.id) or function.hardware.explain(error)
            told.fields["id"] = function.id
            if told.reason is Reason.FILE_IN_USE:
                self._tell_owner(function, told)
            if command == "device_add" and told is error and "bus" in arguments:
                error.message = f"{error.message} (bus {arguments['bus']})"
                error.fields["bus"] = str(arguments["bus"])
            raise told from error

    def _tell_owner(self, function: Function, error: ShimError) -> None:
        """QEMU's lock tells that somebody has the file, and not who: it may be this VM."""
        owner = self._table.owner_of(function)
        if owner:
            error.message = f"disk file {function.hardware.source}: it is device {owner} of this VM"
            error.hint = f"detach {owner} first, or plug it read-only both times"
            error.fields["by"] = owner

    async def _plug_once(self, plug: Plug, deadline: float) -> Usable | None:
        """None when something was removed before the guest had answered.

        The agent is asked first: one that waits already sees the device 30 ms
        sooner than one that has to look.
        """
        plug.renew_parts()
        before = await self._online_before(plug)
        plug.asked_for = True
        begun = time.monotonic()
        answer = asyncio.create_task(self._ask_guest(plug, before, deadline))
        try:
            await self._add_parts(plug)
            plug.step = f"waiting for the guest to find it at {plug.where}"
            ends: set[asyncio.Future[Any]] = {answer, *(part.fate for part in plug.parts)}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not plug.is_settled:
                return await self._confirm(plug, await answer, begun)
        finally:
            await _end(answer)
        return self._if_removed(plug)

    async def _online_before(self, plug: Plug) -> sandbox_pb2.OnlineResourcesResponse | None:
        """The guest is asked for a total, so that what its
        kernel brings online by itself counts too."""
        if not plug.growth:
            return None
        plug.step = "asking the agent what is online"
        return await self._guest.online_now()

    async def _ask_guest(
        self,
        plug: Plug,
        before: sandbox_pb2.OnlineResourcesResponse | None,
        deadline: float,
    ) -> Usable:
        """Everything but the time it took."""
        attached: tuple[devices_pb2.AttachedDevice, ...] = ()
        if plug.devices:
            attached = await self._guest.attach(plug.devices, deadline - time.monotonic())
        if before is None:
            return Usable(attached=_by_function(plug, attached), micros=0)
        growth = plug.growth
        online = await self._guest.online(
            cpus=len(before.cpus_online) + growth.cpus if growth.cpus else 0,
            memory=before.memory_online + growth.memory if growth.memory else 0,
            timeout=deadline - time.monotonic(),
        )
        return Usable(attached=_by_function(plug, attached), micros=0, online=online)

    async def _add_parts(self, plug: Plug) -> None:
        owners = {id_: each for each in plug.functions for id_ in _part_ids(each)}
        for part in plug.parts:
            plug.step = f"plugging it in at {plug.where}"
            part.asked = True
            await self._execute(owners[part.qemu_id], "device_add", part.arguments)

    async def _confirm(self, plug: Plug, usable: Usable, begun: float) -> Usable | None:
        """One more exchange with QEMU: a removal that it told of before is known after it."""
        micros = round((time.monotonic() - begun) * 1e6)
        await self._monitor.execute("query-status")
        if plug.is_settled:
            return self._if_removed(plug)
        return Usable(attached=usable.attached, micros=micros, online=usable.online)

    @staticmethod
    def _if_removed(plug: Plug) -> None:
        if plug.has_part(Fate.QEMU_GONE):
            raise _qemu_gone()

    async def _clear_after_loss(self, plug: Plug) -> None:
        """What is left of it goes too, on both sides, before it can come again."""
        await self._ask_removal(plug)
        await plug.until_settled()
        self._if_removed(plug)
        await self._guest.ready()
        for device in plug.devices:
            await self._make_guest_forget(device)

    async def _undo(self, plug: Plug) -> None:
        """Takes everything out again, or leaves the rest to the guest's late event."""
        if plug.asked_for:
            for device in plug.devices:
                await self._ignore_refusal(self._prepare_if_there(device))
            try:
                async with asyncio.timeout(_UNDO_LIMIT):
                    await self._bring_out(plug)
            except (ShimError, TimeoutError) as error:
                _log.warning("undo of plug of %s: still in, %s", plug.name, error or plug.step)
                return
        await self._forget(plug)

    def _tell_if_stuck(self, plug: Plug, error: ShimError) -> None:
        if plug in self._table.plugs and plug.not_removable:
            error.message = f"{error.message}; it stays plugged in: {plug.not_removable}"

    async def _prepare_if_there(self, device: devices_pb2.Device) -> None:
        """Another device may have the id in the guest, which is why it refused ours."""
        if await self._guest.has(device):
            await self._guest.prepare_detach(device.id)

    # Out.

    async def _prepare(self, plug: Plug) -> None:
        plug.step = "waiting for the guest's agent to let go of it"
        await self._require_unmounted(plug)
        for device in plug.devices:
            try:
                await self._guest.prepare_detach(device.id)
            except ShimError as error:
                if error.code is grpc.StatusCode.NOT_FOUND:
                    # Somebody made the agent forget it before; nobody there uses it.
                    continue
                if _is_away(error):
                    self._run_in_background(self._keep(plug))
                else:
                    await self._protect(self._stay(plug, but=device.id))
                raise
            except asyncio.CancelledError:
                # Not known whether the agent has let go; the caller waits no longer.
                self._run_in_background(self._keep(plug))
                raise

    async def _require_unmounted(self, plug: Plug) -> None:
        """A share is no device, so the agent has nothing to prepare, and says what is mounted."""
        tags = [each.hardware.share_tag for each in plug.functions if each.hardware.share_tag]
        try:
            mounted = [name for tag in tags for name in await self._guest.storages_of(tag)]
        except BaseException:
            plug.state = DeviceState.PLUGGED
            raise
        if mounted:
            plug.state = DeviceState.PLUGGED
            raise _still_mounted(plug, mounted)

    async def _bring_out(self, plug: Plug) -> None:
        """`device_del` until QEMU says that all of it is gone.

        Ended from outside, the device is LEAVING and its late event is
        followed; refused, it is PLUGGED as before.
        """
        plug.step = "waiting for the guest's kernel to release it"
        try:
            await self._ask_removal(plug)
            await plug.until_settled()
        except (ShimError, asyncio.CancelledError) as error:
            if isinstance(error, ShimError):
                await self._protect(self._keep(plug))
            else:
                self._leave(plug)
            raise
        self._if_removed(plug)
        if plug.has_part(Fate.KEPT):
            why = next((part.why_kept for part in plug.parts if part.why_kept), "")
            await self._protect(self._keep(plug))
            raise _kept(plug, why)

    async def _ask_removal(self, plug: Plug) -> None:
        """Function 0 first: with it the guest gives up the whole slot, and a second
        request for the same slot would be taken back the first (PCI Express's
        attention button). Only where QEMU does not know it the others are asked for.
        """
        plug.removing = True
        for part in reversed(plug.parts):
            if not part.asked:
                part.settle(Fate.REMOVED)
            elif not part.fate.done() and await self._is_removal_asked(part) and plug.goes_whole:
                return

    async def _is_removal_asked(self, part: Part) -> bool:
        """False when it is not there: never added, or already removed by itself."""
        try:
            await self._monitor.execute("device_del", {"id": part.qemu_id})
        except QemuRefusedError as error:
            if not error.is_unknown_device:
                raise
            # It may have gone by itself, which nobody was told of.
            part.is_held = part.silent
            part.settle(Fate.REMOVED)
            return False
        if part.silent:
            self._run_in_background(self._look_for(part))
        return True

    async def _look_for(self, part: Part) -> None:
        """Where QEMU has no event, it is asked again and again what it has."""
        while not part.fate.done():
            await asyncio.wait({part.fate}, timeout=_LOOK_AGAIN)
            try:
                found = await self._monitor.execute("qom-list", {"path": _DEVICES})
            except ShimError:
                return
            if part.qemu_id not in {each["name"] for each in found} and not part.fate.done():
                part.is_held = True
                part.settle(Fate.REMOVED)

    def _leave(self, plug: Plug) -> None:
        plug.state = DeviceState.LEAVING
        self._run_in_background(self._finish_leaving(plug))

    async def _finish_leaving(self, plug: Plug) -> None:
        await plug.until_settled()
        if plug.has_part(Fate.QEMU_GONE):
            return
        if plug.has_part(Fate.KEPT):
            await self._keep(plug)
            return
        _log.info("%s has left, late", plug.name)
        await self._forget(plug)

    async def _keep(self, plug: Plug) -> None:
        """The device stays: the agent may use it again."""
        for part in plug.parts:
            if part.is_(Fate.KEPT):
                part.fate = new_fate()
        plug.removing = False
        await self._stay(plug)

    async def _stay(self, plug: Plug, but: str = "") -> None:
        """Usable as before, unless it was removed meanwhile. The agent has kept `but`."""
        for device in plug.devices:
            if device.id == but:
                break
            await self._ignore_refusal(self._guest.cancel_detach(device.id))
        plug.state = DeviceState.PLUGGED
        if plug.has_part(Fate.REMOVED):
            self._note_loss(plug)

    async def _forget(self, plug: Plug) -> None:
        """The device is out: removes its backends, frees its id and place."""
        if plug.asked_for:
            for device in plug.devices:
                await self._make_guest_forget(device)
        for backend in reversed(plug.opened):
            await self._ignore_refusal(self._monitor.execute(backend.remove, backend.removal))
        for function in plug.functions:
            await self._helpers.stop(function.id)
            function.hardware.release()
        self._table.remove(plug)

    async def _make_guest_forget(self, device: devices_pb2.Device) -> None:
        """A guest that can't be told now is told before the next plug."""
        self._unforgotten.pop(device.id, None)
        try:
            async with asyncio.timeout(_FORGETTING_LIMIT):
                if await self._guest.has(device):
                    await self._guest.complete_detach(device.id)
        except (ShimError, TimeoutError) as error:
            _log.info("guest can't be told that %s is gone: %s", device.id, error)
            if _is_away(error):
                self._unforgotten[device.id] = device

    async def _settle_with_guest(self) -> None:
        """What the guest still takes for attached may be in the way of what comes."""
        for device in tuple(self._unforgotten.values()):
            await self._make_guest_forget(device)
            if device.id in self._unforgotten:
                message = f"the guest can't be told that device {device.id} is gone"
                raise ShimError(Reason.AGENT_AWAY, message, fields={"id": device.id})

    # Events.

    def _on_event(self, name: str, data: Mapping[str, Any]) -> None:
        told = removal.read(name, data)
        found = self._table.part(told.device) if told is not None else None
        if told is None or found is None:
            return
        plug, part = found
        if told.fate is Fate.REMOVED:
            part.settle(Fate.REMOVED)
            if plug.state is DeviceState.PLUGGED:
                self._note_loss(plug)
        elif plug.removing:
            part.why_kept = told.why
            part.settle(Fate.KEPT)

    def _on_helper_end(self, device_id: str, how: str) -> None:
        """The VM goes on; what the guest has mounted of it hangs until it is detached, and
        an interface of it is one that nothing comes from."""
        plug = self._table.find(device_id)
        is_wanted = plug.state in (DeviceState.PLUGGING, DeviceState.PLUGGED)
        if is_wanted and not self._monitor.closed.is_set():
            plug.failure = how
            _log.warning("%s does not work any more: %s", plug.name, how)
            if any(each.hardware.share_tag for each in plug.functions):
                plug.stuck = _STUCK
                self._run_in_background(self._see_if_idle(plug))

    async def _see_if_idle(self, plug: Plug) -> None:
        """Of what is mounted some request is under way, if only that of the unmount. The
        driver waits for its answer when the device goes (fs/fuse/virtio_fs.c,
        virtio_fs_drain_queue): for good, and with the lock that all hot-plug needs."""
        try:
            mounted = [
                name
                for each in plug.functions
                for name in await self._guest.storages_of(each.hardware.share_tag)
            ]
        except ShimError as error:
            _log.warning("%s: not known if it is mounted: %s", plug.name, error)
            return
        if not mounted:
            plug.stuck = ""

    def _note_loss(self, plug: Plug) -> None:
        """A device that worked was removed by the guest itself. CPUs go one by one."""
        _log.warning("%s was removed though nobody asked for it", plug.name)
        left = [part for part in plug.parts if not part.is_(Fate.REMOVED)]
        if left and not plug.goes_whole:
            plug.parts = left
            return
        plug.state = DeviceState.LEAVING
        self._run_in_background(self._lose(plug))

    async def _lose(self, plug: Plug) -> None:
        for device in plug.devices:
            await self._ignore_refusal(self._guest.prepare_detach(device.id))
        await self._ignore_refusal(self._ask_removal(plug))
        await self._finish_leaving(plug)

    async def _watch_monitor(self) -> None:
        await self._monitor.closed.wait()
        for plug in self._table.plugs:
            for part in plug.parts:
                part.settle(Fate.QEMU_GONE)

    # Tasks.

    async def _protect(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` to its end, also when the caller is cancelled meanwhile."""
        await asyncio.shield(self._run_in_background(work))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _ignore_refusal(work: Coroutine[Any, Any, object]) -> None:
        """On the way back a refusal changes nothing: the next step is due anyway."""
        try:
            async with asyncio.timeout(_AGENT_LIMIT):
                await work
        except (ShimError, TimeoutError) as error:
            _log.info("on the way back: %s", error)


def check_timeout(seconds: float) -> float:
    """A request's timeout: 0 is the default; raises BAD_FIELD."""
    if not (math.isfinite(seconds) and 0 <= seconds <= LONGEST_TIMEOUT):
        raise ShimError(
            Reason.BAD_FIELD,
            f"timeout_seconds {seconds}: not possible",
            hint=f"0 (for {DEFAULT_TIMEOUT:g}) to {LONGEST_TIMEOUT:g}",
            fields={"field": "timeout_seconds"},
        )
    return seconds or DEFAULT_TIMEOUT


def _require_pluggable(wanted: Wanted) -> None:
    if wanted.hardware.not_pluggable:
        model = wanted.hardware.model
        raise ShimError(
            Reason.NOT_PLUGGABLE,
            f"device {wanted.id}: {wanted.hardware.not_pluggable}",
            hint=f"start the VM with --cold {model}",
            fields={"id": wanted.id, "model": model},
        )


def _require_removable(plug: Plug, disks: tuple[str, ...]) -> None:
    if plug.not_removable:
        raise ShimError(
            Reason.NOT_REMOVABLE,
            f"{plug.name}: {plug.not_removable}",
            hint="it goes when the VM stops",
            fields=plug.fields,
        )
    if disks:
        holders = [{"kind": "plugged", "name": name} for name in disks]
        raise ShimError(
            Reason.STILL_IN_USE,
            f"{plug.name}: disks are on it: {', '.join(disks)}",
            hint="unplug them first",
            fields=plug.fields | {"holders": json.dumps(holders)},
        )


def _still_mounted(plug: Plug, storages: Sequence[str]) -> ShimError:
    holders = [{"kind": "storage", "name": name} for name in storages]
    return ShimError(
        Reason.STILL_IN_USE,
        f"{plug.name}: is mounted in the guest as storage {', '.join(storages)}",
        hint="detach the storage first, as in: innkeeper storage detach VM ID",
        fields=plug.fields | {"holders": json.dumps(holders)},
    )


def _part_ids(function: Function) -> tuple[str, ...]:
    return tuple(str(words["id"]) for words in function.hardware.parts(function.names))


def _by_function(
    plug: Plug, attached: Sequence[devices_pb2.AttachedDevice]
) -> tuple[devices_pb2.AttachedDevice, ...]:
    """In the order of the functions; the agent answers in that of the devices."""
    answers = iter(attached)
    return tuple(
        next(answers)
        if each.device is not None
        else devices_pb2.AttachedDevice(device=devices_pb2.Device(id=each.id))
        for each in plug.functions
    )


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancels, and waits, so that its call does not outlive ours."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


def _is_away(error: ShimError | TimeoutError) -> bool:
    away = (Reason.AGENT_AWAY, Reason.OPERATION_TIMED_OUT)
    return isinstance(error, TimeoutError) or error.reason in away


def _late(doing: str, plug: Plug, timeout: float) -> ShimError:
    return ShimError(
        Reason.OPERATION_TIMED_OUT,
        f"{doing}: not done within {timeout:g} s, {plug.step}",
        fields=plug.fields,
    )


def _kept(plug: Plug, why: str) -> ShimError:
    message = f"{plug.name}: the guest's kernel refused to release it"
    message = f"{message}: {why}" if why else message
    return ShimError(Reason.GUEST_REFUSED, message, fields=plug.fields)


def _qemu_gone() -> ShimError:
    return ShimError(Reason.QEMU_GONE, "QEMU has ended")

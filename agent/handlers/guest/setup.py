"""Sandbox.Create: what all containers share, all of it or nothing.

In this order: modules, sysctls, host name, namespaces, DNS, hooks, pressure. Each part is
noted in the sandbox's record before it is changed, and one list of steps (wayback.py) takes
back what a record says: after a failure, after a crash of the agent half-way, and for
Sandbox.Destroy.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from agent.core import commands
from agent.core.deadlines import Deadline
from agent.core.errors import (
    AgentError,
    Reason,
    already_exists,
    kernel_refused,
    timed_out,
    wrong_state,
)
from agent.core.sandbox import NOTHING_MADE, Made, SandboxPhase, SandboxRecord
from agent.core.turns import Turns
from agent.core.undo import UndoStack
from agent.handlers.guest import sysctls
from agent.handlers.guest.modules import Modules
from agent.handlers.guest.wayback import WayBack
from agent.handlers.runtime.hooks import GuestHooks, scan_guest_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from agent.core.life import PressureThreshold
    from agent.core.network import DnsState, DnsWish
    from agent.core.roots import Roots
    from agent.core.sandbox import Sandbox, SandboxWish
    from agent.handlers.guest.modules import Run
    from agent.handlers.runtime.hooks import Programs

T = TypeVar("T")

log = logging.getLogger(__name__)

TIMEOUT: Final = 30.0
"""Seconds for a Create that brings no timeout (sandbox.proto)."""

WHOLE_GUEST: Final = ""
"""The guest's subject in `PressureWatch`."""

_ROLLBACK: Final = 15.0
"""Seconds for taking a failed Create back, whatever its own deadline was."""

_TURN: Final = "sandbox"
_DNS: Final = ("network", "dns")
_HOLDER_GROUP: Final = "_sandbox"


class State(Protocol):
    """What is needed of `core.state.StateStore`."""

    def load(self, kind: str, key: str) -> dict[str, Any] | None: ...


class Dns(Protocol):
    """What is needed of `handlers.network.resolver.Resolver`."""

    async def apply(self, wish: DnsWish, deadline: Deadline) -> DnsState: ...
    async def clear(self, deadline: Deadline) -> None: ...


class Holder(Protocol):
    """What is needed of `handlers.runtime.holder.NamespaceHolder`."""

    async def make(
        self, kinds: Sequence[str], *, cgroup: str, hostname: str, deadline: Deadline
    ) -> None: ...
    async def remove(self, deadline: Deadline) -> None: ...
    async def restore(self) -> None: ...
    async def close(self) -> None: ...


class Pressure(Protocol):
    """What is needed of `handlers.runtime.pressure.PressureWatch`."""

    def set(self, subject: str, cgroup: str, thresholds: Sequence[PressureThreshold]) -> None: ...
    def drop(self, subject: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostName:
    """The kernel's host name; tests have their own."""

    get: Callable[[], str] = socket.gethostname
    set: Callable[[str], None] = socket.sethostname


HOST_NAME: Final = HostName()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupTools:
    """What a sandbox is set up with."""

    roots: Roots
    sandbox: Sandbox
    state: State
    dns: Dns
    holder: Holder
    pressure: Pressure
    files: Programs
    host_name: HostName = HOST_NAME
    run: Run = commands.run


class SandboxSetup:
    """Makes the sandbox, and takes it apart. Create and Destroy take turns."""

    def __init__(self, tools: SetupTools) -> None:
        self.sandbox = tools.sandbox
        self._tools = tools
        self._modules = Modules(tools.roots, run=tools.run)
        self._turns = Turns()

    @property
    def guest_hooks(self) -> GuestHooks | None:
        """Hooks for every container; None without any."""
        record = self.sandbox.record
        if record is None or record.phase is not SandboxPhase.CREATED or not record.hooks:
            return None
        return GuestHooks.from_data(record.hooks)

    async def create(self, wish: SandboxWish) -> None:
        """Set all of it up; the same wish again is answered again.

        A caller that goes away does not stop it, the deadline does. Raises BAD_FIELD and
        SYSCTL_NOT_ALLOWED before anything is done; ID_IN_USE for another wish while a sandbox
        exists; MODULE_REFUSED, KERNEL_REFUSED, RUNTIME_REFUSED, NOT_SUPPORTED, NO_SPACE,
        OPERATION_TIMED_OUT and others with everything as before.
        """
        sysctls.wishes_of(wish.sysctls)
        deadline = Deadline.of_request(wish.timeout, TIMEOUT)
        await self.alone(lambda: self._create(wish, deadline))

    async def alone(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do `work` while nobody else sets up or takes down."""
        return await self._turns.take(_TURN, work)

    async def undo(self, deadline: Deadline, *, keep_dns: bool = False) -> tuple[str, ...]:
        """Take back what Create set up, as far as it can be; what is left, one line each.

        The sandbox is gone then. What is left of it is tried again by the next one that
        asks. `keep_dns`: somebody else sees to it.
        """
        record = self.sandbox.record
        if record is None:
            return ()
        made = replace(record.made, dns_changed=False) if keep_dns else record.made
        gone = replace(record, phase=SandboxPhase.GONE, made=made, hooks=None, pressure=())
        # Before anything is taken back: an agent that dies meanwhile leaves no half sandbox.
        self._keep(gone)
        self._tools.pressure.drop(WHOLE_GUEST)
        back = WayBack(self._tools, self._modules, deadline)
        left = await back.go(gone)
        if back.lines:
            self._keep(replace(gone, made=left))
        else:
            self.sandbox.forget()
        return tuple(back.lines)

    async def restore(self) -> None:
        """Take over what an earlier agent made; take back what it did not finish."""
        record = self.sandbox.record
        if record is None or record.phase is SandboxPhase.GONE:
            return
        if record.phase is SandboxPhase.CREATING:
            log.warning("sandbox %s was half made: it is taken back", record.identity.id)
            for line in await self.undo(Deadline.after(_ROLLBACK)):
                log.warning("not taken back: %s", line)
            return
        await self._tools.holder.restore()
        try:
            self._tools.pressure.set(WHOLE_GUEST, "", record.pressure)
        except AgentError as error:
            log.warning("the guest's pressure is not watched any more: %s", error)

    async def close(self) -> None:
        """Wait for what is under way, and let go of the rest without changing it."""
        await self._turns.all_done()
        await self._tools.holder.close()

    def _keep(self, record: SandboxRecord) -> None:
        """A run directory that is full must not keep a sandbox from being taken back."""
        try:
            self.sandbox.save(record)
        except AgentError as error:
            log.warning("the end of sandbox %s is not saved: %s", record.identity.id, error)
            self.sandbox.record = record

    async def _create(self, wish: SandboxWish, deadline: Deadline) -> None:
        before = self.sandbox.record
        if before is not None and before.phase is SandboxPhase.CREATED:
            _require_same(before, wish)
            return
        async with UndoStack(f"create sandbox {wish.id}") as undo:
            undo.push("the sandbox", self._roll_back)
            self._begin(wish, before)
            try:
                async with deadline.limit():
                    await self._all_parts(wish, deadline)
            except TimeoutError:
                raise timed_out(f"sandbox {wish.id} could not be made in time") from None
            self._save(phase=SandboxPhase.CREATED)
            undo.commit()

    def _begin(self, wish: SandboxWish, before: SandboxRecord | None) -> None:
        """What an earlier sandbox left behind is this one's to take back."""
        self.sandbox.save(
            SandboxRecord(
                identity=wish.identity,
                fingerprint=wish.fingerprint,
                phase=SandboxPhase.CREATING,
                made=before.made if before else NOTHING_MADE,
                pressure=wish.pressure,
            )
        )

    async def _all_parts(self, wish: SandboxWish, deadline: Deadline) -> None:
        await self._load_modules(wish, deadline)
        await self._set_sysctls(wish, deadline)
        self._set_hostname(wish.hostname)
        await self._make_namespaces(wish, deadline)
        await self._apply_dns(wish, deadline)
        await self._find_hooks(wish.guest_hooks, deadline)
        if wish.pressure:
            self._tools.pressure.set(WHOLE_GUEST, "", wish.pressure)

    async def _load_modules(self, wish: SandboxWish, deadline: Deadline) -> None:
        def note(names: tuple[str, ...]) -> None:
            known = self._made.modules
            self._note(modules=(*known, *(name for name in names if name not in known)))

        for module in wish.modules:
            await self._modules.load(module, note, deadline)

    async def _set_sysctls(self, wish: SandboxWish, deadline: Deadline) -> None:
        wishes = sysctls.wishes_of(wish.sysctls)
        if not wishes:
            return
        former = dict(await sysctls.former(self._tools.roots, wishes))
        # What was there before an earlier sandbox counts.
        self._note(sysctls=tuple((former | dict(self._made.sysctls)).items()))
        await sysctls.put(self._tools.roots, wishes, deadline)

    def _set_hostname(self, hostname: str) -> None:
        name = self._tools.host_name
        before = name.get()
        if hostname in ("", before):
            return
        if self._made.hostname is None:
            self._note(hostname=before)
        try:
            name.set(hostname)
        except OSError as error:
            raise kernel_refused(error, doing=f"set the host name {hostname}") from error

    async def _make_namespaces(self, wish: SandboxWish, deadline: Deadline) -> None:
        # One that an earlier sandbox could not get rid of.
        await self._tools.holder.remove(deadline)
        if wish.shared_namespaces:
            await self._tools.holder.make(
                wish.shared_namespaces,
                cgroup=f"/pods/{wish.id}/{_HOLDER_GROUP}",
                hostname=wish.hostname or self._tools.host_name.get(),
                deadline=deadline,
            )

    async def _apply_dns(self, wish: SandboxWish, deadline: Deadline) -> None:
        if wish.dns is None:
            return
        if not self._made.dns_changed:
            self._note(dns_changed=True, dns_before=self._tools.state.load(*_DNS))
        await self._tools.dns.apply(replace(wish.dns, hostname=wish.hostname), deadline)

    async def _find_hooks(self, directory: str, deadline: Deadline) -> None:
        if directory:
            found = await scan_guest_hooks(self._tools.files, directory, deadline)
            self._save(hooks=found.to_data())

    async def _roll_back(self) -> None:
        lines = await self.undo(Deadline.after(_ROLLBACK))
        if lines:
            raise wrong_state("; ".join(lines), reason=Reason.STILL_IN_USE)

    @property
    def _made(self) -> Made:
        return self.sandbox.record.made if self.sandbox.record else NOTHING_MADE

    def _note(self, **changes: Any) -> None:
        self._save(made=replace(self._made, **changes))

    def _save(self, **changes: Any) -> None:
        record = self.sandbox.record
        if record is None:
            raise AssertionError("a sandbox that is being made has a record")
        self.sandbox.save(replace(record, **changes))


def _require_same(record: SandboxRecord, wish: SandboxWish) -> None:
    if record.fingerprint == wish.fingerprint:
        return
    identity = record.identity
    raise already_exists(
        f"this guest is sandbox {identity.id} already, with the host name"
        f" {identity.hostname or 'it booted with'!r}, and was set up by another request",
        reason=Reason.ID_IN_USE,
        hint="Sandbox.Destroy comes first",
        id=identity.id,
    )

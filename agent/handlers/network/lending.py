"""Interfaces of the sandbox in containers' network namespaces: they go, and come back.

Order, so that nothing is lost whenever the agent dies: what an interface has is saved, PID 1
keeps the container's namespace, then the interface moves. A namespace that nobody keeps ends
with its last process: virtual interfaces end with it, and the kernel sends hardware back
without its configuration, under any name. An interface comes back with what it had when it
went, not with what the container has made of it: routes and addresses of the container's
choice would take the traffic of others.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, kernel_refused, wrong_state
from agent.core.netlink import NetlinkRefusal, open_netlink, refused
from agent.core.network import InterfaceState
from agent.core.rtnl import addresses, links
from agent.core.undo import UndoStack
from agent.handlers.network.borrowing import check, in_container, loan_of
from agent.handlers.network.holding import give_back
from agent.handlers.network.loans import LoanRecord
from agent.handlers.network.moving import Side, drop_altnames, free_name, move, names_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.core.netlink import Netlink
    from agent.core.network import LendingOrder, Link
    from agent.handlers.network.loans import Loan

log = logging.getLogger(__name__)

_LOOPBACK = 1
"""Its index in every network namespace (LOOPBACK_IFINDEX, include/net/net_namespace.h)."""

_UNDO_TIMEOUT = 10.0


class Keeper(Protocol):
    """What is needed of `core.pid1.Pid1Client`."""

    async def store(self, name: str, fd: int) -> None: ...
    async def fetch(self, names: Sequence[str]) -> dict[str, int]: ...
    async def drop(self, names: Sequence[str]) -> None: ...


class State(Protocol):
    """What is needed of `core.state.StateStore`."""

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None: ...
    def load(self, kind: str, key: str) -> dict[str, Any] | None: ...
    def load_all(self, kind: str) -> dict[str, dict[str, Any]]: ...
    def delete(self, kind: str, key: str) -> None: ...


def _untold(index: int, container_id: str) -> AbstractContextManager[None]:  # noqa: ARG001
    return contextlib.nullcontext()


def _links_alone(link: Link) -> InterfaceState:
    return InterfaceState(link=link)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The sandbox's own network: `netlink`, and the file of its namespace.

    `describe` tells what sysfs says of an interface, which it says only while that is here.
    `moving` is told, by index and container, of one that goes, while it does.
    """

    netlink: Netlink
    namespace: Path
    describe: Callable[[Link], InterfaceState] = _links_alone
    moving: Callable[[int, str], AbstractContextManager[None]] = _untold


class Lending:
    """What containers were given. One change at a time: the caller sees to it."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        state: State,
        keeper: Keeper,
        opened: Callable[[int], Netlink] = open_netlink,
    ) -> None:
        self._sandbox = sandbox
        self._state = state
        self._keeper = keeper
        self._opened = opened

    async def lend(self, order: LendingOrder, deadline: Deadline) -> None:
        """Move interfaces into a container's namespace: all, or none with an error.

        Raises UNKNOWN_INTERFACE, BAD_FIELD (one is asked for twice, or is the loopback),
        WRONG_STATE (it belongs to another interface), NAME_IN_USE, KERNEL_REFUSED,
        NO_SPACE, OPERATION_TIMED_OUT.
        """
        with self._home() as home, self._there(order.namespace) as there:
            with _answers():
                loans = await self._loans(order, deadline)
                check(loans, await links.all_links(there.netlink, deadline))
            record = LoanRecord(container_id=order.container_id, loans=loans)
            async with UndoStack(f"lend interfaces to container {order.container_id}") as undo:
                undo.push("take them back", lambda: self._undo(record))
                with _answers():
                    await self._go(record, home, there, deadline)
                undo.commit()

    async def take_back(
        self, container_id: str, deadline: Deadline, *, undone: bool = False
    ) -> None:
        """Bring a container's interfaces back; fine when there are none (any more).

        `undone`: the container was never made, so those that would stay come back too.
        Goes on after a failure, and can be asked for again. Raises KERNEL_REFUSED,
        OPERATION_TIMED_OUT.
        """
        record = self._load(container_id)
        if record is None:
            return
        failures: list[AgentError] = []
        async with self._kept(record) as there:
            for loan in reversed(record.loans):
                if loan.stays and not undone:
                    continue
                try:
                    with _answers():
                        await self._come_back(container_id, loan, there, deadline)
                except AgentError as error:
                    failures.append(error)
        if failures:
            raise failures[0]
        await self._keeper.drop([record.pin])
        self._state.delete(LoanRecord.KIND, container_id)

    def lent(self) -> tuple[str, ...]:
        """The containers that were given interfaces which are not all back."""
        return tuple(self._state.load_all(LoanRecord.KIND))

    async def list(self, deadline: Deadline) -> tuple[InterfaceState, ...]:
        """The interfaces that containers were given, as they are there now."""
        found: list[InterfaceState] = []
        for container_id in self.lent():
            record = self._load(container_id)
            if record is not None:
                async with self._kept(record) as there:
                    found += await _listed(record, there, deadline)
        return tuple(found)

    async def _loans(self, order: LendingOrder, deadline: Deadline) -> tuple[Loan, ...]:
        netlink = self._sandbox.netlink
        loans = [await loan_of(netlink, each, deadline, stays=False) for each in order.lent]
        loans += [await loan_of(netlink, each, deadline, stays=True) for each in order.moved]
        return tuple(map(self._described, loans))

    async def _go(self, record: LoanRecord, home: Side, there: Side, deadline: Deadline) -> None:
        self._save(record)
        await self._keeper.store(record.pin, there.namespace)
        up = links.changed(_LOOPBACK, "set the container's loopback up", up=True)
        await there.netlink.change(up, deadline=deadline)
        for loan in record.loans:
            await self._go_one(record.container_id, loan, home, there, deadline)

    async def _go_one(
        self, container_id: str, loan: Loan, home: Side, there: Side, deadline: Deadline
    ) -> None:
        link = loan.holding.link
        what = f"move {link.name} into container {container_id}"
        await drop_altnames(link, (loan.name,), home.netlink, deadline)
        with self._sandbox.moving(link.index, container_id):
            moved = await move(link, loan.name, home, there, what, deadline)
        self._noted(container_id, loan, index=moved.index, name=moved.name)
        left = await give_back(
            there.netlink, in_container(loan), deadline, index=moved.index, name=moved.name
        )
        if left:
            raise wrong_state(
                f"{what}: it can't have there all that it has here: {'; '.join(left)}",
                reason=Reason.KERNEL_REFUSED,
                hint="take off what needs another interface or is in the container's way",
            )

    async def _come_back(
        self, container_id: str, loan: Loan, there: Side | None, deadline: Deadline
    ) -> None:
        """Wherever it is, it becomes what it was; one that is nowhere is gone."""
        netlink, name = self._sandbox.netlink, loan.holding.link.name
        link = None if there is None else await self._fetched(container_id, loan, there, deadline)
        here = await links.all_links(netlink, deadline)
        link = link or next((each for each in here if loan.is_home(each)), None)
        if link is None:
            log.warning("interface %s, which container %s had, is gone", name, container_id)
            return
        taken = names_of(each for each in here if each.index != link.index)
        free = free_name(name, loan.name, taken)
        for line in await give_back(netlink, loan.holding, deadline, index=link.index, name=free):
            log.warning("interface %s came back from container %s: %s", free, container_id, line)

    async def _fetched(
        self, container_id: str, loan: Loan, there: Side, deadline: Deadline
    ) -> Link | None:
        """Moved from the container's namespace to here; None when it is not there."""
        link = await _lent(loan, there, deadline)
        if link is None:
            return None
        taken = names_of(await links.all_links(self._sandbox.netlink, deadline))
        name = free_name(loan.holding.link.name, loan.name, taken)
        self._noted(container_id, loan, home_name=name)
        await drop_altnames(link, {*taken, name}, there.netlink, deadline)
        what = f"move {link.name} back from container {container_id}"
        with self._home() as home:
            return await move(link, name, there, home, what, deadline)

    async def _undo(self, record: LoanRecord) -> None:
        deadline = Deadline.after(_UNDO_TIMEOUT)
        await self.take_back(record.container_id, deadline, undone=True)

    def _described(self, loan: Loan) -> Loan:
        state = self._sandbox.describe(loan.holding.link)
        return replace(loan, driver=state.driver, pci_path=state.pci_path, pci_bdf=state.pci_bdf)

    def _noted(self, container_id: str, loan: Loan, **changes: Any) -> Loan:
        """Save what has become known of a loan."""
        record = self._load(container_id)
        if record is None:
            raise AssertionError(f"container {container_id} has loans")
        now = replace(loan, **changes)
        same = loan.holding.link.index
        loans = (now if each.holding.link.index == same else each for each in record.loans)
        self._save(replace(record, loans=tuple(loans)))
        return now

    def _save(self, record: LoanRecord) -> None:
        self._state.save(record.KIND, record.container_id, record.to_data())

    def _load(self, container_id: str) -> LoanRecord | None:
        data = self._state.load(LoanRecord.KIND, container_id)
        return None if data is None else LoanRecord.from_data(data)

    @contextlib.contextmanager
    def _home(self) -> Iterator[Side]:
        with _opening():
            own = os.open(self._sandbox.namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield Side(netlink=self._sandbox.netlink, namespace=own)
        finally:
            os.close(own)

    @contextlib.contextmanager
    def _there(self, namespace: int) -> Iterator[Side]:
        with _opening():
            netlink = self._opened(namespace)
        try:
            yield Side(netlink=netlink, namespace=namespace)
        finally:
            netlink.close()

    @contextlib.asynccontextmanager
    async def _kept(self, record: LoanRecord) -> AsyncIterator[Side | None]:
        """The namespace that PID 1 keeps; None when it keeps none (any more)."""
        fetched = await self._keeper.fetch([record.pin])
        with contextlib.ExitStack() as stack:
            for descriptor in fetched.values():
                stack.callback(os.close, descriptor)
            found = fetched.get(record.pin)
            yield None if found is None else stack.enter_context(self._there(found))


@contextlib.contextmanager
def _opening() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kernel_refused(error, doing="enter a network namespace") from error


async def _listed(
    record: LoanRecord, there: Side | None, deadline: Deadline
) -> list[InterfaceState]:
    if there is None:
        return []
    found = [(loan, await _lent(loan, there, deadline)) for loan in record.loans]
    return [
        InterfaceState(
            link=link,
            addresses=await addresses.all_addresses(there.netlink, deadline, index=link.index),
            driver=loan.driver,
            pci_path=loan.pci_path,
            pci_bdf=loan.pci_bdf,
            container_id=record.container_id,
        )
        for loan, link in found
        if link is not None
    ]


async def _lent(loan: Loan, there: Side, deadline: Deadline) -> Link | None:
    """The interface in the container's namespace, by its index as soon as that is known: a
    container may have made thousands of others, or go on making them, and a list of all that
    there is would have no end."""
    if loan.index:
        link = await links.one_link(there.netlink, deadline, index=loan.index)
        return link if link is not None and loan.is_there(link) else None
    present = await links.all_links(there.netlink, deadline)
    return next((link for link in present if loan.is_there(link)), None)


@contextlib.contextmanager
def _answers() -> Iterator[None]:
    """Refusals of the kernel as answers to a request."""
    try:
        yield
    except NetlinkRefusal as error:
        raise refused(error) from error

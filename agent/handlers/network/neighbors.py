"""Neighbours and forwarding entries that shall be, in one transaction.

Looked at, planned, done, looked at again; when something is refused, or the caller
leaves, planned back from what is there then.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.core.deadlines import Deadline
from agent.core.errors import Reason, wrong_state
from agent.core.netlink import NetlinkRefusal, refused
from agent.core.network import NeighborsState
from agent.core.rtnl import links as rtnl_links
from agent.core.rtnl import neighbors as rtnl
from agent.core.undo import UndoStack
from agent.handlers.network.forwarding import (
    ForwardingTarget,
    ForwardingWant,
    forwarding_as_it_was,
    forwarding_lines,
    forwarding_plan,
    forwarding_target,
    forwarding_wants,
)
from agent.handlers.network.linknames import LinkNames
from agent.handlers.network.neighborplan import (
    NeighborKey,
    NeighborTarget,
    NeighborWant,
    neighbor_lines,
    neighbor_plan,
    neighbor_target,
    neighbor_wants,
    neighbors_as_they_were,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.netlink import Change, Netlink
    from agent.core.network import Forwarding, Neighbor, NeighborsWish

_ROUNDS: Final = 3
_BACK_SECONDS: Final = 20.0
"""For putting back what was: it has its own time, as the request's may be over."""

_BRIDGE: Final = 7
"""AF_BRIDGE, the family of forwarding entries."""

_HINTS: Final = {
    errno.EPERM: "a port of a bridge that is down learns nothing: say static or permanent",
    errno.EINVAL: "an interface's own entries are permanent entries alone: ask for the bridge's",
    errno.EOPNOTSUPP: "this interface has no forwarding entries of its own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    neighbors: tuple[Neighbor, ...]
    forwarding: tuple[Forwarding, ...]
    names: LinkNames

    def state(self, *, changed: tuple[str, ...] = ()) -> NeighborsState:
        """By interface, then by address."""
        return NeighborsState(
            neighbors=tuple(
                sorted(
                    self.neighbors,
                    key=lambda each: (each.index, each.address.version, each.address.packed),
                )
            ),
            forwarding=tuple(
                sorted(self.forwarding, key=lambda each: (each.index, each.mac, each.vlan_id))
            ),
            names=self.names.names,
            changed=changed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wants:
    neighbors: Mapping[NeighborKey, NeighborWant]
    forwarding: tuple[ForwardingWant, ...]
    exact: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    neighbors: NeighborTarget
    forwarding: ForwardingTarget

    def changes(self, now: _Found) -> tuple[Change, ...]:
        return (
            *neighbor_plan(now.neighbors, self.neighbors, now.names),
            *forwarding_plan(now.forwarding, self.forwarding, now.names),
        )

    def lines(self, before: _Found, after: _Found) -> tuple[str, ...]:
        names = after.names
        return (
            *neighbor_lines(before.neighbors, after.neighbors, self.neighbors, names),
            *forwarding_lines(before.forwarding, after.forwarding, self.forwarding, names),
        )

    def back_to(self, before: _Found) -> _Target:
        return _Target(
            neighbors=neighbors_as_they_were(before.neighbors, self.neighbors),
            forwarding=forwarding_as_it_was(before.forwarding, self.forwarding),
        )


class Neighbors:
    """The neighbours of one network namespace. Callers take turns."""

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink

    async def list(self, deadline: Deadline) -> NeighborsState:
        """All neighbours, proxies and forwarding entries."""
        return (await self._look(deadline)).state()

    async def apply(self, wish: NeighborsWish, deadline: Deadline) -> NeighborsState:
        """Make the entries of the wish what they shall be; others stay, but lasting ones
        on exact devices.

        Raises BAD_FIELD, UNKNOWN_INTERFACE, WRONG_STATE, KERNEL_REFUSED,
        OPERATION_TIMED_OUT; after an error, and after a cancellation, everything is as it
        was.
        """
        before = await self._look(deadline)
        wants = _wants(wish, before.names)
        target = _target(before, wants)
        changes = target.changes(before)
        if not changes:
            return before.state()
        async with UndoStack("apply neighbours") as undo:
            back = target.back_to(before)
            undo.push("put the neighbours back", lambda: self._put_back(back))
            await self._do(changes, deadline)
            after = await self._settled(target, deadline)
            undo.commit()
        return after.state(changed=target.lines(before, after))

    async def _look(self, deadline: Deadline) -> _Found:
        return _Found(
            neighbors=await rtnl.all_neighbors(self._netlink, deadline),
            forwarding=await rtnl.all_forwarding(self._netlink, deadline),
            names=LinkNames(await rtnl_links.all_links(self._netlink, deadline)),
        )

    async def _do(self, changes: tuple[Change, ...], deadline: Deadline) -> None:
        try:
            await self._netlink.change(*changes, deadline=deadline)
        except NetlinkRefusal as error:
            raise refused(error, _hint(error)) from error

    async def _settled(self, target: _Target, deadline: Deadline) -> _Found:
        """What is there now: removing one entry may take others, and others change them."""
        changes: tuple[Change, ...] = ()
        for _ in range(_ROUNDS):
            now = await self._look(deadline)
            changes = target.changes(now)
            if not changes:
                return now
            await self._do(changes, deadline)
        raise wrong_state(
            f"the neighbours don't become what they shall be: {changes[0].what} is needed "
            "again and again",
            reason=Reason.KERNEL_REFUSED,
            hint="somebody else in the guest changes them at the same time",
        )

    async def _put_back(self, back: _Target) -> None:
        """Raises AgentError for what could not be put back."""
        deadline = Deadline.after(_BACK_SECONDS)
        refusals: list[NetlinkRefusal] = []
        for _ in range(_ROUNDS):
            changes = back.changes(await self._look(deadline))
            if not changes:
                return
            refusals.clear()
            for change in changes:
                try:
                    await self._netlink.change(change, deadline=deadline)
                except NetlinkRefusal as error:
                    refusals.append(error)
        if left := back.changes(await self._look(deadline)):
            why = f"; {refusals[0]}" if refusals else ""
            raise wrong_state(f"still to do: {left[0].what}{why}", reason=Reason.KERNEL_REFUSED)


def _hint(error: NetlinkRefusal) -> str | None:
    of_forwarding = error.change.payload[:1] == bytes([_BRIDGE])
    return _HINTS.get(error.errno or 0) if of_forwarding else None


def _wants(wish: NeighborsWish, names: LinkNames) -> _Wants:
    exact = {names.index(name, of="exact_devices") for name in wish.exact_devices}
    return _Wants(
        neighbors=neighbor_wants(wish.neighbors, names),
        forwarding=forwarding_wants(wish.forwarding, names),
        exact=frozenset(exact),
    )


def _target(now: _Found, wants: _Wants) -> _Target:
    return _Target(
        neighbors=neighbor_target(now.neighbors, wants.neighbors, wants.exact),
        forwarding=forwarding_target(now.forwarding, wants.forwarding, wants.exact, now.names),
    )

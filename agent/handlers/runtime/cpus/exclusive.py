"""CPUs that a container has for itself, kept while CPUs come and go.

A container is promised a number. Which CPUs these are may change: when one goes
offline another takes its place if there is one, and when CPUs come, what is short
is filled up. Every such change is told by an event of the container.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from agent.core.cpus import spell_cpus
from agent.core.errors import AgentError, Reason, exhausted, kernel_refused
from agent.core.hardware import online_cpus, siblings
from agent.handlers.runtime.cpus.cpu_choice import Grant, Supply, share_out
from agent.handlers.runtime.cpus.partitions import Partitions
from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.hotplug import HotplugBoard
    from agent.core.roots import Roots
    from agent.handlers.runtime.cpus.partitions import Write
    from agent.linux.uevents import Uevent

log = logging.getLogger(__name__)


class Publisher(Protocol):
    """What is needed of `core.events.EventLog`."""

    def publish(
        self, kind: str, subject: str, details: Mapping[str, str] | None = None
    ) -> object: ...


class ExclusiveCpus:
    """The table of grants, and the partitions that make them true."""

    def __init__(
        self,
        *,
        roots: Roots,
        events: Publisher,
        board: HotplugBoard,
        write: Write = pseudo.write,
    ) -> None:
        self._tree = board.tree
        self._partitions = Partitions(roots, write=write)
        self._events = events
        self._grants: dict[str, Grant] = {}
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        board.listen(self._on_event)

    def of(self, container_id: str) -> tuple[int, ...]:
        """The CPUs that a container has now, by number."""
        grant = self._grants.get(container_id)
        return tuple(sorted(grant.cpus)) if grant else ()

    def reserved(self) -> frozenset[int]:
        """The CPUs of all containers that have some for themselves."""
        return frozenset[int]().union(*(grant.cpus for grant in self._grants.values()))

    async def grant(self, container_id: str, cgroup: str, count: int) -> tuple[int, ...]:
        """Give a container whose group is there `count` CPUs in all, 0 for none.

        The same again makes sure of it; one that is short meanwhile is no refusal then.
        Raises CPUS_EXHAUSTED when there are not so many (one stays for everybody),
        KERNEL_REFUSED; nothing has changed then.
        """
        if count == 0:
            await self.release(container_id)
            return ()
        async with self._turn:
            former = self._grants.get(container_id, Grant(cgroup=cgroup, count=0))
            wanted = {**self._grants, container_id: replace(former, cgroup=cgroup, count=count)}
            shares = share_out(wanted, self._supply())
            if len(shares[container_id]) < count and count > former.count:
                raise self._exhausted(container_id, count, shares)
            failures = self._apply(wanted, shares, asked=container_id)
            if not self._partitions.exists(cgroup):
                gone = os.strerror(errno.ENOENT)
                failures[container_id] = OSError(errno.ENOENT, f"cgroup: {gone}", cgroup)
            if error := failures.get(container_id):
                self._take_back(container_id, former)
                raise self._refused(container_id, shares[container_id], error) from error
            return self.of(container_id)

    async def release(self, container_id: str) -> None:
        """Everybody may use them again; also when the container's group is gone. Never fails."""
        async with self._turn:
            self._drop(container_id)
            self._rebalance()

    async def restore(self, granted: Mapping[str, tuple[str, int]]) -> None:
        """Take over what an earlier agent granted: id to group and count; others lose theirs.

        Never fails: what can't be had is told by an event, and taken when it comes.
        """
        async with self._turn:
            self._grants = {
                name: Grant(cgroup=cgroup, count=count, cpus=self._partitions.cpus(cgroup))
                for name, (cgroup, count) in granted.items()
                if count
            }
            groups = {grant.cgroup for grant in self._grants.values()}
            strays = [group for group in self._partitions.groups() if group not in groups]
            self._partitions.apply(
                dict.fromkeys(strays, frozenset[int]())
                | {grant.cgroup: grant.cpus for grant in self._grants.values()}
            )
            self._rebalance()

    async def close(self) -> None:
        """Follow no more events; the partitions stay for the next agent."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    def _on_event(self, event: Uevent | None) -> None:
        """A listener of the board: CPUs came or went, or events were lost."""
        if not self._grants or (event is not None and event.subsystem != "cpu"):
            return
        self._news.set()
        if self._following is None or self._following.done():
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        while self._news.is_set():
            self._news.clear()
            async with self._turn:
                self._rebalance()

    def _rebalance(self) -> None:
        """Make every grant true again, as far as the CPUs go; tell what changed by it."""
        if self._grants:
            grants = dict(self._grants)
            self._apply(grants, share_out(grants, self._supply()))

    def _apply(
        self,
        grants: Mapping[str, Grant],
        shares: Mapping[str, frozenset[int]],
        *,
        asked: str | None = None,
    ) -> dict[str, OSError]:
        """Write the shares and note what became true; failures by container.

        What changed is told by an event, but for the one that was `asked` for.
        """
        wanted = {grants[name].cgroup: cpus for name, cpus in shares.items()}
        refused = self._partitions.apply(wanted)
        above = next((error for group, error in refused.items() if group not in wanted), None)
        failures: dict[str, OSError] = {}
        for name, grant in grants.items():
            valid = self._partitions.state(grant.cgroup) == "root"
            cpus = self._partitions.cpus(grant.cgroup) if valid else frozenset[int]()
            self._grants[name] = replace(grant, cpus=cpus)
            error = refused.get(grant.cgroup) or (above if shares[name] and not valid else None)
            if error is not None:
                failures[name] = error
            if name != asked and (error or cpus != grant.cpus):
                self._tell(name, self._grants[name], error)
        return failures

    def _drop(self, container_id: str) -> None:
        grant = self._grants.pop(container_id, None)
        if grant is not None:
            shares = {other.cgroup: other.cpus for other in self._grants.values()}
            for group, error in self._partitions.apply(
                {**shares, grant.cgroup: frozenset()}
            ).items():
                log.warning("the exclusive CPUs of %s: %s", group, error)

    def _take_back(self, container_id: str, former: Grant) -> None:
        """After a refusal: as it was."""
        if former.count:
            self._grants[container_id] = former
        else:
            self._drop(container_id)
        self._rebalance()

    def _supply(self) -> Supply:
        online = online_cpus(self._tree)
        return Supply(
            online=online,
            cores=frozenset(siblings(self._tree, cpu) & online for cpu in online),
            bound=self._partitions.bound(),
        )

    def _tell(self, name: str, grant: Grant, error: OSError | None) -> None:
        cpus = spell_cpus(grant.cpus)
        details = {"exclusive_cpus": cpus, "promised": str(grant.count)}
        if error is not None:
            details["refused"] = str(error)
        short = log.warning if len(grant.cpus) < grant.count else log.info
        short("container %s has the CPUs [%s] of %d for itself", name, cpus, grant.count)
        self._events.publish("resources-changed", name, details)

    def _exhausted(
        self, container_id: str, count: int, shares: Mapping[str, frozenset[int]]
    ) -> AgentError:
        online = online_cpus(self._tree)
        taken = frozenset[int]().union(*(s for n, s in shares.items() if n != container_id))
        return exhausted(
            f"container {container_id}: {count} exclusive CPUs can't be had: of the CPUs "
            f"{spell_cpus(online)} others have [{spell_cpus(taken)}] for themselves, and one "
            "stays for everybody",
            reason=Reason.CPUS_EXHAUSTED,
            hint="plug in more CPUs, or ask for fewer",
            container=container_id,
            wanted=count,
            available=len(shares[container_id]),
            online=spell_cpus(online),
            exclusive=spell_cpus(taken),
        )

    def _refused(self, container_id: str, cpus: frozenset[int], error: OSError) -> AgentError:
        return kernel_refused(
            error,
            doing=f"give container {container_id} the CPUs {spell_cpus(cpus)} for itself "
            f"({error.strerror})",
            hint="does the cpuset.cpus of another container name these?",
        )

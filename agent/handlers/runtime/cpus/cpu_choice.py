"""Which CPUs a container gets for itself: a pure choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one container was promised, and the CPUs that it has; fewer when some are gone."""

    cgroup: str
    count: int
    cpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What can be given away.

    `cores` are the sets of CPUs that share one; `bound` are, by cgroup, the CPUs that its
    own `cpuset.cpus` names: the kernel lets nobody have all of another group's.
    """

    online: frozenset[int]
    cores: frozenset[frozenset[int]] = frozenset()
    bound: Mapping[str, frozenset[int]]


def share_out(grants: Mapping[str, Grant], supply: Supply) -> dict[str, frozenset[int]]:
    """CPUs by container: each keeps what it has and is online, and what is short is filled
    up in the order of the grants, as far as it goes. The lowest free CPU stays for all."""
    shares = {
        name: frozenset(_pick(grant.cpus & supply.online, grant.count, supply.cores))
        for name, grant in grants.items()
    }
    for name, grant in grants.items():
        free = supply.online.difference(*shares.values())
        short = grant.count - len(shares[name])
        if short > 0 and free:
            shares[name] |= _fill(grant, shares[name], free - {min(free)}, supply)
    return shares


def _fill(
    grant: Grant, kept: frozenset[int], free: frozenset[int], supply: Supply
) -> frozenset[int]:
    """What to add to `kept`, so that every neighbour keeps one of the CPUs it is bound to."""
    neighbours = [cpus for group, cpus in supply.bound.items() if group != grant.cgroup and cpus]
    while True:
        picked = frozenset(_pick(free, grant.count - len(kept), supply.cores, kept))
        robbed = next((cpus for cpus in neighbours if cpus <= kept | picked), None)
        if robbed is None or not robbed & picked:
            return picked
        free -= {min(robbed & picked)}


def _pick(
    free: frozenset[int],
    count: int,
    cores: Iterable[frozenset[int]],
    own: frozenset[int] = frozenset(),
) -> list[int]:
    """The highest numbers: first what completes cores that are its own in part, then whole
    cores, then threads of cores that are split already, so that few are split."""
    whole = sorted((core for core in cores if core <= free), key=max, reverse=True)
    unbroken = frozenset[int]().union(*whole)
    picked = _highest(cpu for core in cores if core & own for cpu in core & free)[:count]
    for core in whole:
        if len(core) <= count - len(picked):
            picked += core
    rest = free.difference(picked)
    split = [*_highest(rest - unbroken), *_highest(rest & unbroken)]
    return picked + split[: count - len(picked)]


def _highest(cpus: Iterable[int]) -> list[int]:
    return sorted(cpus, reverse=True)

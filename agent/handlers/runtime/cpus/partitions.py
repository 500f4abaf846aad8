"""Remote cpuset partitions: the kernel's files, written in an order that it accepts.

Facts (Documentation/admin-guide/cgroup-v2.rst, Cpuset; tried with Linux 6.12): a group
becomes a partition root anywhere in the tree when its `cpuset.cpus.exclusive` is also in
that of every group above it; then `cpuset.cpus.partition` takes `root`, and the kernel
takes these CPUs from everybody else. Sets of groups side by side may not overlap, and may
not hold all of a neighbour's own `cpuset.cpus` (EINVAL). A CPU that goes offline leaves
a smaller partition, the last one an invalid one ("root invalid (No cpu available due to
hotplug)") whose processes run everywhere; it stays so when the CPU is back, until `member`
and `root` are written again. What crun writes to `cpuset.cpus` doesn't matter to it.
"""

from __future__ import annotations

import errno
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.core.cpus import parse_cpus, spell_cpus
from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from agent.core.roots import Roots

    Step: TypeAlias = Callable[[str, frozenset[int]], None]
    Write: TypeAlias = Callable[[Path, str], None]

EXCLUSIVE: Final = "cpuset.cpus.exclusive"
PARTITION: Final = "cpuset.cpus.partition"
OWN: Final = "cpuset.cpus"
_PODS: Final = "/pods"

_NOBODY: Final[frozenset[int]] = frozenset()


class Partitions:
    """The groups below /pods; a group's path is `/pods/SANDBOX/CONTAINER`."""

    def __init__(self, roots: Roots, *, write: Write = pseudo.write) -> None:
        self._roots = roots
        self._put = write

    def cpus(self, group: str) -> frozenset[int]:
        """What the group is set to have for itself; nothing when it is gone."""
        return parse_cpus(self._read(group, EXCLUSIVE))

    def state(self, group: str) -> str:
        """`root`, `member`, or the kernel's words on why the partition is invalid."""
        return self._read(group, PARTITION)

    def exists(self, group: str) -> bool:
        return self._directory(group).is_dir()

    def bound(self) -> dict[str, frozenset[int]]:
        """The own `cpuset.cpus` of every container's group that has one."""
        own = {group: parse_cpus(self._read(group, OWN)) for group in self.groups()}
        return {group: cpus for group, cpus in own.items() if cpus}

    def groups(self) -> tuple[str, ...]:
        """The containers' groups that are there."""
        found = self._directory(_PODS).glob("*/*/cgroup.procs")
        return tuple(
            sorted("/" + str(path.parent.relative_to(self._roots.cgroup)) for path in found)
        )

    def apply(self, wanted: Mapping[str, frozenset[int]]) -> dict[str, OSError]:
        """Make the partitions of these groups so; what was refused, by group.

        First everybody gives up what he shall not keep, the deepest groups first; then
        everybody takes, the highest first: so no two sets ever overlap.
        """
        failures: dict[str, OSError] = {}
        above = sorted({up for group in wanted for up in _above(group)}, key=len)
        wanted = {group: cpus for group, cpus in wanted.items() if self.exists(group)}
        kept = {group: self.cpus(group) & cpus for group, cpus in wanted.items()}
        for group, cpus in kept.items():
            self._noting(failures, group, self._shrink, cpus)
        for up in reversed(above):
            self._noting(failures, up, self._set, _below(up, kept))
        for up in above:
            self._noting(failures, up, self._open, _below(up, wanted))
        for group, cpus in wanted.items():
            if cpus:
                self._noting(failures, group, self._grow, cpus)
        return failures

    def _noting(
        self,
        failures: dict[str, OSError],
        group: str,
        step: Step,
        cpus: frozenset[int],
    ) -> None:
        """A group that is gone needs nothing; what another refuses must not stop the rest."""
        if not self.exists(group):
            return
        try:
            step(group, cpus)
        except OSError as error:
            failures.setdefault(group, error)

    def _shrink(self, group: str, cpus: frozenset[int]) -> None:
        if not cpus and self.state(group) not in ("member", ""):
            self._write(group, PARTITION, "member")
        self._set(group, cpus)

    def _open(self, group: str, cpus: frozenset[int]) -> None:
        """Let groups below have these; the runtime may not have passed cpuset on."""
        control = self._directory(group) / "cgroup.subtree_control"
        if cpus and "cpuset" not in (pseudo.read_optional(control) or "").split():
            self._put(control, "+cpuset")
        self._set(group, cpus)

    def _grow(self, group: str, cpus: frozenset[int]) -> None:
        self._set(group, cpus)
        if self.state(group) == "root":
            return
        # One that became invalid is not looked at again before it was a member.
        for word in ("member", "root"):
            self._write(group, PARTITION, word)
        if (state := self.state(group)) != "root":
            raise OSError(errno.EINVAL, f"the partition is {state!r}", group)

    def _set(self, group: str, cpus: frozenset[int]) -> None:
        if self.cpus(group) != cpus:
            self._write(group, EXCLUSIVE, spell_cpus(cpus))

    def _read(self, group: str, name: str) -> str:
        return (pseudo.read_optional(self._directory(group) / name) or "").strip()

    def _write(self, group: str, name: str, text: str) -> None:
        # A write of no bytes is none at all (kernfs): an empty list is a line's end.
        self._put(self._directory(group) / name, f"{text}\n")

    def _directory(self, group: str) -> Path:
        return self._roots.cgroup / group.lstrip("/")


def _above(group: str) -> Iterator[str]:
    """`/pods/SANDBOX` and `/pods` of a container's group."""
    for parent in PurePosixPath(group).parents:
        if len(parent.parts) > 1:
            yield str(parent)


def _below(group: str, shares: Mapping[str, frozenset[int]]) -> frozenset[int]:
    inside = [cpus for path, cpus in shares.items() if PurePosixPath(path).is_relative_to(group)]
    return _NOBODY.union(*inside)

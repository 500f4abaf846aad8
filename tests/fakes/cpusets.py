"""The cpuset files of a tree of cgroups, with the rules that Linux 6.12 was seen to have.

- `cpuset.cpus.exclusive` may not meet that of a group beside it, nor hold all of its
  own `cpuset.cpus` (EINVAL).
- A group is a valid partition root when it has exclusive CPUs, all groups above have
  them too, and one is online; else it is `root invalid (REASON)`.
- An invalid one stays so until it was a member again.
- What valid partitions have, nobody else has.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from agent.core.cpus import parse_cpus, spell_cpus

NOBODY: frozenset[int] = frozenset()
HOTPLUG = "root invalid (No cpu available due to hotplug)"
PARENT = "root invalid (Parent is not a partition root)"
LIST = "root invalid (Invalid cpu list in cpuset.cpus.exclusive)"


class FakeCpusets:
    """`write` is what the kernel does with a write; `online` tells the CPUs that are."""

    def __init__(self, top: Path, online: Callable[[], frozenset[int]]) -> None:
        self._top = top
        self._online = online
        self.writes: list[tuple[str, str]] = []
        self.refusals: dict[str, int] = {}
        self.make("/pods")

    def make(self, group: str, *, own: str = "") -> None:
        """A new group; the runtime has enabled cpuset above it."""
        directory = self._dir(group)
        directory.mkdir(parents=True, exist_ok=True)
        files = {"cgroup.procs": "", "cgroup.subtree_control": "cpuset memory"}
        files |= {"cpuset.cpus": own, "cpuset.cpus.exclusive": ""}
        files |= {"cpuset.cpus.partition": "member"}
        for name, text in files.items():
            (directory / name).write_text(f"{text}\n")

    def container(self, name: str, *, sandbox: str = "s", own: str = "") -> str:
        """The path of a new container's group."""
        if not self._dir(f"/pods/{sandbox}").exists():
            self.make(f"/pods/{sandbox}")
        path = f"/pods/{sandbox}/{name}"
        self.make(path, own=own)
        return path

    def remove(self, group: str) -> None:
        for path in self._dir(group).iterdir():
            path.unlink()
        self._dir(group).rmdir()

    def partition(self, group: str) -> str:
        return self._text(group, "cpuset.cpus.partition")

    def exclusive(self, group: str) -> str:
        return self._text(group, "cpuset.cpus.exclusive")

    def effective(self, group: str) -> str:
        """Where a process of the group runs."""
        if self.partition(group) == "root":
            return spell_cpus(self._cpus(group) & self._online())
        taken = NOBODY.union(*(self._cpus(one) for one in self._roots()))
        return spell_cpus(self._online() - taken)

    def write(self, path: Path, text: str) -> None:
        """Raises OSError as the kernel does."""
        group = "/" + str(path.parent.relative_to(self._top))
        self.writes.append((f"{group.removeprefix('/pods')}/{path.name}", text.strip()))
        if not path.exists():
            raise _refusal(errno.ENOENT, path)
        if group in self.refusals:
            raise _refusal(self.refusals[group], path)
        match path.name:
            case "cpuset.cpus.exclusive":
                self._check(group, parse_cpus(text), path)
                path.write_text(text)
            case "cpuset.cpus.partition":
                path.write_text(f"{self._verdict(group) if 'root' in text else 'member'}\n")
            case "cgroup.subtree_control":
                path.write_text(f"{path.read_text().strip()} {text.strip().lstrip('+')}\n")
        self.update()

    def update(self) -> None:
        """CPUs came or went, or a set changed: what was valid may not be any more."""
        for group in self._roots():
            path = self._dir(group) / "cpuset.cpus.partition"
            path.write_text(f"{self._verdict(group)}\n")

    def _check(self, group: str, cpus: frozenset[int], path: Path) -> None:
        for beside in self._dir(group).parent.iterdir():
            if not beside.is_dir() or beside == self._dir(group):
                continue
            other = "/" + str(beside.relative_to(self._top))
            own = parse_cpus(self._text(other, "cpuset.cpus"))
            if cpus & self._cpus(other) or (own and own <= cpus):
                raise _refusal(errno.EINVAL, path)

    def _verdict(self, group: str) -> str:
        cpus = self._cpus(group)
        above = "/".join(group.split("/")[:-1])
        if not cpus:
            return LIST
        while above:
            if not cpus <= self._cpus(above):
                return PARENT
            above = "/".join(above.split("/")[:-1])
        return "root" if cpus & self._online() else HOTPLUG

    def _roots(self) -> list[str]:
        found = self._top.rglob("cpuset.cpus.partition")
        groups = ["/" + str(path.parent.relative_to(self._top)) for path in found]
        return [group for group in groups if self.partition(group) == "root"]

    def _cpus(self, group: str) -> frozenset[int]:
        return parse_cpus(self._text(group, "cpuset.cpus.exclusive"))

    def _text(self, group: str, name: str) -> str:
        return (self._dir(group) / name).read_text().strip()

    def _dir(self, group: str) -> Path:
        return self._top / group.lstrip("/")


def _refusal(number: int, path: Path) -> OSError:
    return OSError(number, f"write: {os.strerror(number)}", str(path))

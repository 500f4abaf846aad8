"""What the runtime and this guest's kernel can do, and what of a specification they can't.

The runtime is asked once (`crun features`, OCI's features.md), the kernel in its own files.
What they lack is refused by name: less than was asked for is never given without a word.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from agent.core import commands
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.handlers.runtime.sources import is_bind
from agent.handlers.runtime.spec.capabilities import NUMBERS, SETS
from agent.handlers.runtime.spec.members import Json, not_supported
from agent.handlers.runtime.spec.seccomp import ACTIONS, actions
from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agent.core.roots import Roots

_PATIENCE = 30.0
"""Seconds for `crun features`, which only prints."""

_NAMESPACES = MappingProxyType(
    {
        "pid": "pid",
        "network": "net",
        "mount": "mnt",
        "ipc": "ipc",
        "uts": "uts",
        "user": "user",
        "cgroup": "cgroup",
        "time": "time",
    }
)
"""Files of /proc/PID/ns. `crun features` (1.21) does not name "time", which crun can do."""

_OF_KERNEL = MappingProxyType(
    {
        "SCMP_ACT_KILL": "kill_thread",
        "SCMP_ACT_KILL_PROCESS": "kill_process",
        "SCMP_ACT_KILL_THREAD": "kill_thread",
        "SCMP_ACT_TRAP": "trap",
        "SCMP_ACT_ERRNO": "errno",
        "SCMP_ACT_TRACE": "trace",
        "SCMP_ACT_ALLOW": "allow",
        "SCMP_ACT_LOG": "log",
        "SCMP_ACT_NOTIFY": "user_notif",
    }
)
"""Words of /proc/sys/kernel/seccomp/actions_avail (userspace-api/seccomp_filter.rst)."""

_CONTROLLERS = MappingProxyType(
    {"memory": "memory", "pids": "pids", "blockIO": "io", "hugepageLimits": "hugetlb"}
)
_CPUSET = ("cpus", "mems")

_MORE_OPTIONS = ("idmap", "ridmap")
"""That crun takes and `crun features` (1.21) does not list; they may have a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What there is; names are the specification's. `profiles` is AppArmor's list of those
    that are loaded, which may grow."""

    namespaces: frozenset[str] = frozenset(_NAMESPACES)
    capabilities: frozenset[str] = frozenset(NUMBERS)
    controllers: frozenset[str] = frozenset({"cpu", "cpuset", "io", "memory", "hugetlb", "pids"})
    huge_pages: frozenset[str] = frozenset({"2MB", "1GB"})
    seccomp: frozenset[str] = frozenset(ACTIONS)
    mount_options: frozenset[str] = field(default_factory=frozenset)
    apparmor: bool = False
    selinux: bool = False
    resctrl: bool = False
    profiles: Path | None = None

    @classmethod
    def of(cls, roots: Roots, features: Mapping[str, Any]) -> Self:
        """What both the kernel and the runtime's `features` have. Raises OSError."""
        linux = features.get("linux") or {}
        return cls(
            namespaces=_namespaces(roots),
            capabilities=_capabilities(roots) & frozenset(linux.get("capabilities") or ()),
            controllers=_words(roots.cgroup / "cgroup.controllers"),
            huge_pages=_huge_pages(roots),
            seccomp=_seccomp(roots) & _actions(linux.get("seccomp") or {}),
            mount_options=frozenset(features.get("mountOptions") or ()),
            apparmor=_enabled(linux, "apparmor")
            and _words(roots.sys / "module/apparmor/parameters/enabled") == {"Y"},
            selinux=_enabled(linux, "selinux") and (roots.sys / "fs/selinux/enforce").exists(),
            resctrl=_enabled(linux, "intelRdt") and (roots.sys / "fs/resctrl/info").exists(),
            profiles=roots.sys / "kernel/security/apparmor/profiles",
        )


class SupportAsked:
    """Asks at the first call, and once."""

    def __init__(self, roots: Roots, *, program: str = "crun") -> None:
        self._roots = roots
        self._program = program
        self._asking: asyncio.Task[Support] | None = None

    async def __call__(self) -> Support:
        """Raises RUNTIME_REFUSED where the runtime does not say; the next call asks again."""
        failed = self._asking is not None and self._asking.done() and _failed(self._asking)
        if self._asking is None or failed:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Support:
        argv = [self._program, "features"]
        result = await commands.run(argv, deadline=Deadline.after(_PATIENCE))
        try:
            features = json.loads(result.stdout)
            return Support.of(self._roots, features)
        except (ValueError, TypeError, AttributeError) as error:
            raise AgentError(
                f"{self._program} features: an answer of another shape: {result.stdout[:200]!r}",
                code=Code.FAILED_PRECONDITION,
                reason=Reason.RUNTIME_REFUSED,
            ) from error


def check(spec: Mapping[str, Any], kernel: Support) -> None:
    """A whole specification that was checked (spec.py). Raises NOT_SUPPORTED with the place."""
    whole = Json(spec, "")
    whole.check("process", lambda process: _check_process(process, kernel))
    whole.check("mounts", lambda mounts: _check_mounts(mounts, kernel))
    whole.check("linux", lambda linux: _check_linux(linux, kernel))


def check_exec(process: Mapping[str, Any], kernel: Support) -> None:
    """A process of an exec that was checked. Raises NOT_SUPPORTED with the place."""
    _check_process(Json(process, ""), kernel)


def check_resources(resources: Mapping[str, Any], kernel: Support) -> None:
    """Resources of an update that were checked. Raises NOT_SUPPORTED with the place."""
    _check_resources(Json(resources, ""), kernel)


def _check_process(process: Json, kernel: Support) -> None:
    process.check("capabilities", lambda sets: _check_capabilities(sets, kernel))
    process.check("apparmorProfile", lambda profile: _check_profile(profile, kernel))
    process.check("selinuxLabel", lambda label: _check_label(label, kernel))


def _check_capabilities(capabilities: Json, kernel: Support) -> None:
    for name in SETS:
        found = capabilities.get(name)
        for each in found.items() if found is not None else ():
            if each.text() not in kernel.capabilities:
                raise not_supported(each.place, f"this guest's kernel has no {each.text()}")


def _check_profile(profile: Json, kernel: Support) -> None:
    name = profile.text()
    if name in ("", "unconfined"):
        return
    if not kernel.apparmor:
        raise not_supported(profile.place, f"{name[:80]!a}: this guest has no AppArmor")
    if kernel.profiles is not None and name not in _loaded(kernel.profiles):
        raise not_supported(
            profile.place,
            f"{name[:80]!a} is not loaded in this guest",
            hint="an image can bring profiles, and what loads them (image build --overlay)",
        )


def _check_label(label: Json, kernel: Support) -> None:
    if label.text() and not kernel.selinux:
        raise not_supported(label.place, "this guest has no SELinux", hint="leave the label out")


def _check_mounts(mounts: Json, kernel: Support) -> None:
    """Others than bind mounts pass options that the runtime does not know to the kernel."""
    for mount in mounts.items():
        options = mount.get("options")
        if options is None or not is_bind(mount.members()):
            continue
        for option in options.items():
            word = option.text().partition("=")[0]
            if word and word not in kernel.mount_options and word not in _MORE_OPTIONS:
                problem = f"{option.text()[:60]!a} would be left out: the runtime does not know it"
                raise not_supported(option.place, problem)


def _check_linux(linux: Json, kernel: Support) -> None:
    linux.check("namespaces", lambda namespaces: _check_namespaces(namespaces, kernel))
    linux.check("seccomp", lambda seccomp: _check_seccomp(seccomp, kernel))
    linux.check("resources", lambda resources: _check_resources(resources, kernel))
    linux.check("mountLabel", lambda label: _check_label(label, kernel))
    rdt = linux.get("intelRdt")
    if rdt is not None and not kernel.resctrl:
        raise not_supported(rdt.place, "this guest has no resctrl file system")


def _check_namespaces(namespaces: Json, kernel: Support) -> None:
    for each in namespaces.items():
        kind = each.need("type")
        if kind.text() not in kernel.namespaces:
            raise not_supported(kind.place, f"this guest's kernel has no {kind.text()} namespaces")


def _check_seccomp(seccomp: Json, kernel: Support) -> None:
    for action in actions(seccomp):
        if action.text() not in kernel.seccomp:
            raise not_supported(action.place, f"this guest has no {action.text()}")


def _check_resources(resources: Json, kernel: Support) -> None:
    for place, controller in _wanted_controllers(resources):
        if controller not in kernel.controllers:
            raise not_supported(place, f"this guest has no cgroup controller {controller}")
    limits = resources.get("hugepageLimits")
    for limit in limits.items() if limits is not None else ():
        size = limit.need("pageSize")
        if size.text() not in kernel.huge_pages:
            known = ", ".join(sorted(kernel.huge_pages)) or "none"
            problem = f"this guest has no pages of {size.text()}"
            raise not_supported(size.place, problem, hint=f"sizes: {known}")


def _wanted_controllers(resources: Json) -> Iterator[tuple[str, str]]:
    """The places that ask for one, and which."""
    for name, controller in _CONTROLLERS.items():
        found = resources.get(name)
        if found is not None and found.value:
            yield found.place, controller
    cpu = resources.get("cpu")
    for name in cpu.members() if cpu is not None else ():
        if cpu is not None and cpu.get(name) is not None:
            yield cpu.below(name), "cpuset" if name in _CPUSET else "cpu"
    unified = resources.get("unified")
    for name in unified.members() if unified is not None else ():
        yield resources.below(f"unified.{name}")[:200], name.partition(".")[0]


def _failed(asking: asyncio.Task[Support]) -> bool:
    return asking.cancelled() or asking.exception() is not None


def _enabled(linux: Mapping[str, Any], what: str) -> bool:
    return bool((linux.get(what) or {}).get("enabled"))


def _words(path: Path) -> frozenset[str]:
    return frozenset((pseudo.read_optional(path) or "").split())


def _namespaces(roots: Roots) -> frozenset[str]:
    here = roots.proc / "self/ns"
    return frozenset(kind for kind, file in _NAMESPACES.items() if (here / file).is_symlink())


def _capabilities(roots: Roots) -> frozenset[str]:
    text = pseudo.read_text(roots.proc / "sys/kernel/cap_last_cap")
    return frozenset(name for name, number in NUMBERS.items() if number <= int(text))


def _huge_pages(roots: Roots) -> frozenset[str]:
    """As the files of the controller have them in their names (mm/hugetlb_cgroup.c)."""
    try:
        names = [each.name for each in (roots.sys / "kernel/mm/hugepages").iterdir()]
    except FileNotFoundError:
        return frozenset()
    return frozenset(map(_size, names))


def _size(directory: str) -> str:
    kilobytes = int(directory.removeprefix("hugepages-").removesuffix("kB"))
    for unit, factor in (("GB", 1 << 20), ("MB", 1 << 10)):
        if kilobytes >= factor:
            return f"{kilobytes // factor}{unit}"
    return f"{kilobytes}KB"


def _seccomp(roots: Roots) -> frozenset[str]:
    there = _words(roots.proc / "sys/kernel/seccomp/actions_avail")
    return frozenset(action for action, word in _OF_KERNEL.items() if word in there)


def _actions(seccomp: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(seccomp.get("actions") or ()) if seccomp.get("enabled") else frozenset()


def _loaded(profiles: Path) -> set[str]:
    """Lines are a name and a mode, "docker-default (enforce)"."""
    text = pseudo.read_optional(profiles) or ""
    return {line.rpartition(" (")[0] for line in text.splitlines()}

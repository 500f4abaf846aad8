"""What a sandbox is set up with, faked: the real steps over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.core.life import PressureThreshold
from agent.core.network import DnsState, DnsWish
from agent.core.roots import Roots
from agent.core.sandbox import Sandbox
from agent.core.state import StateStore
from agent.handlers.guest.setup import Dns, HostName, SandboxSetup, SetupTools
from tests.fakes.kmod import FakeKmod, Module


class FakeHolder:
    """Namespaces that are only noted; `problem` is what the next change ends with."""

    def __init__(self) -> None:
        self.made: tuple[tuple[str, ...], str, str] | None = None
        self.problem: AgentError | None = None
        self.restored = 0

    async def make(
        self, kinds: Sequence[str], *, cgroup: str, hostname: str, deadline: Deadline
    ) -> None:
        # Half made, as a real one may be: `remove` is what takes it back.
        self.made = (tuple(kinds), cgroup, hostname)
        self._raise()

    async def remove(self, deadline: Deadline) -> None:
        if self.made is not None:
            self._raise()
        self.made = None

    async def restore(self) -> None:
        self.restored += 1

    async def close(self) -> None: ...

    def _raise(self) -> None:
        problem, self.problem = self.problem, None
        if problem is not None:
            raise problem


class FakePressure:
    """Thresholds by subject."""

    def __init__(self) -> None:
        self.watched: dict[str, tuple[PressureThreshold, ...]] = {}
        self.problem: AgentError | None = None

    def set(self, subject: str, cgroup: str, thresholds: Sequence[PressureThreshold]) -> None:
        if self.problem is not None:
            raise self.problem
        self.watched[subject] = tuple(thresholds)

    def drop(self, subject: str) -> None:
        self.watched.pop(subject, None)


class FakeDns:
    """A resolver that keeps the wish."""

    def __init__(self) -> None:
        self.wanted: DnsWish | None = None
        self.problem: AgentError | None = None
        self.cleared = 0

    async def apply(self, wish: DnsWish, deadline: Deadline) -> DnsState:
        if self.problem is not None:
            raise self.problem
        self.wanted = wish
        return DnsState(resolv_conf="", hosts="", hostname=wish.hostname, wanted=wish)

    async def clear(self, deadline: Deadline) -> None:
        self.wanted = None
        self.cleared += 1


class FakePrograms:
    """A directory of hooks."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}
        self.problem: OSError | None = None

    async def programs(self, directory: str, deadline: Deadline) -> dict[str, list[str]]:
        if self.problem is not None:
            raise self.problem
        return self.found


class SetupBench:
    """A guest for sandboxes: some modules, some sysctls, a host name."""

    def __init__(
        self, roots: Roots, state: StateStore, dns: Dns, hostnames: list[str] | None = None
    ) -> None:
        self.roots = roots
        self.state = state
        self.hostnames = [] if hostnames is None else hostnames
        self.dns = dns
        self.holder = FakeHolder()
        self.pressure = FakePressure()
        self.programs = FakePrograms()
        self.kmod = FakeKmod(roots.sys)
        self.kmod.knows = {
            "loop": Module(parameters=(("max_loop", "8"),)),
            "crc": Module(),
            "xfs": Module(needs=("crc",)),
            "ext4": Module(builtin=True),
        }
        self.kmod.aliases = {"fs-xfs": "xfs"}
        put_sysctls(roots.proc, {"vm/max_map_count": "65530", "net/ipv4/ip_forward": "0"})
        self.start()

    def start(self) -> None:
        """An agent; a second one has what the first one saved."""
        self.sandbox = Sandbox(self.state)
        self.setup = SandboxSetup(
            SetupTools(
                roots=self.roots,
                sandbox=self.sandbox,
                state=self.state,
                dns=self.dns,
                holder=self.holder,
                pressure=self.pressure,
                files=self.programs,
                host_name=HostName(get=lambda: self.hostname, set=self.hostnames.append),
                run=self.kmod,
            )
        )

    @property
    def hostname(self) -> str:
        return self.hostnames[-1] if self.hostnames else "booted"

    def sysctl(self, path: str) -> str:
        return (self.roots.proc / "sys" / path).read_text().strip()

    def shown(self) -> dict[str, object]:
        """All that a sandbox may change."""
        return {
            "modules": self.kmod.loaded(),
            "sysctls": {
                str(path.relative_to(self.roots.proc)): path.read_text().strip()
                for path in sorted((self.roots.proc / "sys").rglob("*"))
                if path.is_file()
            },
            "hostname": self.hostname,
            "namespaces": self.holder.made,
            "dns": getattr(self.dns, "wanted", None),
            "pressure": dict(self.pressure.watched),
        }


def put_sysctls(proc: Path, values: dict[str, str]) -> None:
    for name, value in values.items():
        path = proc / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")

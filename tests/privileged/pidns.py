"""Test bed for PID 1 without a VM: it is the init of a fresh PID namespace.

`PidNamespace` starts this very file inside new PID, mount and cgroup
namespaces, where it becomes `agent.pid1` with a layout of the test's own:
stand-ins for the services, short bounds, and an exit status in place of
reboot(2) (`ENDED_OFF`, `ENDED_REBOOT`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.linux import fdpass, mounting, pidfd, pseudo
from agent.linux.libc import check, libc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.pid1.console import Console, Voice
    from agent.pid1.layout import PowerAction, ServiceSpec, Step
    from agent.pid1.leaving import Leaving

ENDED_OFF = 40
ENDED_REBOOT = 41
WITHIN = 30.0
# <linux/sched.h>
_CLONE_NEWNS = 0x00020000
_CLONE_NEWCGROUP = 0x02000000
_CLONE_NEWPID = 0x20000000


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A service of the bed; see `ServiceSpec`."""

    name: str
    argv: tuple[str, ...]
    role: str = "extra"
    restart: bool = True
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What PID 1 of the bed is given.

    `tree` is a directory to mount the guest's tree in, `dev` one with a console;
    `sabotage` names what is to fail: step, services, assembly or reaper.
    """

    run: str
    services: tuple[StandIn, ...] = ()
    cgroup: str | None = None
    bounds: dict[str, float] = field(default_factory=dict)
    journal_limit: int = 4096
    store_limit: int = 16384
    tree: str | None = None
    sync: tuple[str, ...] = ("/bin/true",)
    unmount: tuple[str, ...] = ("/bin/umount",)
    dev: str | None = None
    sabotage: str | None = None


class PidNamespace:
    """A running bed; leaving the `with` kills whatever is left of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.said: list[str] = []
        self._partial = b""

    def __enter__(self) -> Self:
        self._reader, writer = os.pipe()
        argv = [sys.executable, "-IS", __file__, _to_json(self.plan)]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=writer)
        os.close(writer)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        # The end of the output is the end of all who could hold it.
        self.finish_console()
        os.close(self._reader)

    def wait_said(self, text: str) -> str:
        """The first line on the console with that text, now or later."""
        deadline = time.monotonic() + WITHIN
        while True:
            for line in self.said:
                if text in line:
                    return line
            self._read_console(deadline, text)

    def wait_end(self) -> int:
        """The bed's exit status."""
        return self.process.wait(WITHIN)

    def finish_console(self) -> list[str]:
        """All that was said, once nobody is left who could say more."""
        with contextlib.suppress(EOFError):
            while True:
                self._read_console(time.monotonic() + WITHIN, "the end of the output")
        return self.said

    @contextlib.contextmanager
    def connect(self) -> Iterator[Client]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with sock:
            sock.settimeout(WITHIN)
            sock.connect(f"{self.plan.run}/init.sock")
            yield Client(sock)

    @property
    def init_pid(self) -> int:
        """PID 1's number in our own namespace."""
        with self.connect() as client:
            data = client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(data[:4], sys.byteorder)

    def states(self) -> dict[int, str]:
        """State letters of the namespace's processes, by their pid there."""
        proc = Path(f"/proc/{self.init_pid}/root/proc")
        states: dict[int, str] = {}
        for entry in proc.iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    states[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2][1]
        return states

    def descriptors(self) -> int:
        """How many PID 1 has open, without those of clients that have left."""
        init = self.init_pid
        with self.connect() as client:
            # Answered after the ends of earlier connections: epoll keeps their order.
            client.ask("ping")
            return len(os.listdir(f"/proc/{init}/fd")) - 1

    def _read_console(self, deadline: float, awaited: str) -> None:
        ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"not said within {WITHIN} s: {awaited!r}; said: {self.said}")
        data = os.read(self._reader, 65536)
        if not data:
            raise EOFError(f"the bed ended before it said {awaited!r}; said: {self.said}")
        *lines, self._partial = (self._partial + data).split(b"\n")
        self.said += [line.decode(errors="replace") for line in lines]


class Client:
    """A client of PID 1's socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def ask(self, op: str, fds: tuple[int, ...] = (), **fields: object) -> dict[str, Any]:
        fdpass.send(self.sock, {"op": op, **fields}, fds)
        answer, received = fdpass.receive(self.sock)
        assert received == []
        return answer

    def fetch(self, *names: str) -> tuple[dict[str, Any], list[int]]:
        fdpass.send(self.sock, {"op": "fetch", "names": list(names)})
        return fdpass.receive(self.sock)

    def entries_until(
        self, enough: Callable[[list[dict[str, Any]]], bool], *, after: int = 0
    ) -> list[dict[str, Any]]:
        """Subscribe, and collect what is pushed until it is enough."""
        assert self.ask("subscribe", after=after)["ok"]
        entries: list[dict[str, Any]] = []
        while not enough(entries):
            message, _ = fdpass.receive(self.sock)
            entries.append(message["entry"])
        return entries


def cgroup2_mount() -> str | None:
    """Where cgroup v2 is mounted on this machine, also beside version 1; None if nowhere."""
    text = Path("/proc/self/mountinfo").read_text()
    for entry in mounting.parse_mountinfo(text):
        if entry.fs_type == "cgroup2" and entry.root == "/":
            return entry.mount_point
    return None


@contextlib.contextmanager
def own_cgroup(parent: str) -> Iterator[str]:
    """A group for one bed, removed with all below it when the bed is gone."""
    group = Path(parent) / f"innkeeper-bed-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        yield str(group)
    finally:
        _wait_empty(group / "cgroup.events")
        # kernfs directories go by rmdir alone, deepest first.
        for directory, _, _ in os.walk(group, topdown=False):
            os.rmdir(directory)


def _wait_empty(events: Path) -> None:
    """A group can be removed when the last process has left it; the kernel tells by POLLPRI."""
    deadline = time.monotonic() + WITHIN
    with events.open() as file:
        poll = select.poll()
        poll.register(file, select.POLLPRI)
        while "populated 1" in file.read():
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError(f"{events} is still populated after {WITHIN} s")
            file.seek(0)


def _to_json(plan: Plan) -> str:
    fields = {**vars(plan), "services": [vars(each) for each in plan.services]}
    return json.dumps(fields)


def _enter_namespaces(cgroup: str | None) -> None:
    """Returns in the new init; the process before it waits for that and ends as it did."""
    if cgroup is not None:
        # Before its namespace is made: the group is then the root in there.
        pseudo.write(f"{cgroup}/cgroup.procs", "0")
    check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWCGROUP | _CLONE_NEWPID), "unshare")
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    pidfd.set_parent_death_signal(signal.SIGKILL)
    private = mounting.MountFlag.REC | mounting.MountFlag.PRIVATE
    mounting.mount(None, "/", None, private)
    mounting.mount("proc", "/proc", "proc")


def _be_init(plan: dict[str, Any]) -> None:
    """Inside the namespaces: never returns."""
    from agent.pid1 import reaper, supervisor
    from agent.pid1.console import Console, boottime
    from agent.pid1.layout import Bounds, Layout

    # Until PID 1 blocks its signals they would be lost, not wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGPWR})
    if plan["sabotage"] == "assembly":
        setattr(supervisor.Supervisor, "_assemble", _fail)  # noqa: B010 - replaces a method
    if plan["sabotage"] == "reaper":
        setattr(reaper.Reaper, "collect", _fail)  # noqa: B010 - replaces a method
    console = Console()
    layout = Layout(
        run=plan["run"],
        proc="/proc",
        cgroup=plan["cgroup"],
        steps=_steps(plan, console),
        services=lambda _say: _services(plan),
        sync=tuple(plan["sync"]),
        unmount=tuple(plan["unmount"]),
        detach=("/bin/umount", "-l"),
        leaving=lambda: _leaving(_mounted_below(plan["tree"])),
        end=_end,
        bounds=Bounds(**plan["bounds"]),
        journal_limit=plan["journal_limit"],
        store_limit=plan["store_limit"],
    )
    supervisor.run(layout, console, started=boottime())


def _fail(*_: object) -> NoReturn:
    raise OSError(errno.EUCLEAN, "sabotaged", "/nowhere/at/all")


def _steps(plan: dict[str, Any], console: Console) -> tuple[Step, ...]:
    from agent.pid1 import cgroups, mounts
    from agent.pid1.layout import Step

    def tell(say: Voice, warnings: list[str]) -> None:
        for warning in warnings:
            say(f"warning: {warning}")

    steps: list[Step] = []
    if plan["dev"]:
        steps.append(Step("console", lambda _say: console.open(plan["dev"])))
    if plan["tree"]:
        # Not devtmpfs: it is one for the whole machine, and must not get our links.
        devices = mounts.Mount("tmpfs", "/dev", mounting.MountFlag.NOSUID)
        table = (*mounts.KERNEL, devices, *mounts.others(run="/run/own", spool_size=1 << 20))
        steps += [
            Step("mounts_done", lambda say: tell(say, mounts.mount_all(table, root=plan["tree"]))),
            Step(
                "links",
                lambda say: tell(say, mounts.make_links(mounts.DEV_LINKS, root=plan["tree"])),
            ),
        ]
    if plan["cgroup"]:
        steps.append(Step("cgroups_done", lambda say: tell(say, cgroups.prepare(plan["cgroup"]))))
    if plan["sabotage"] == "step":
        steps.append(Step("impossible", lambda _say: _fail()))
    return tuple(steps)


def _mounted_below(tree: str | None) -> list[str]:
    """Last mounted first; only our own: the rest is the machine's."""
    entries = mounting.parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    points = [entry.mount_point for entry in reversed(entries)]
    return [point for point in points if tree and point.startswith(tree)]


def _leaving(points: list[str]) -> Leaving:
    """One mount after the other, each with a file system of its own."""
    from agent.pid1.leaving import Leaving

    return Leaving(
        disks=tuple(points), waves=tuple(((point, point),) for point in points), served=()
    )


def _services(plan: dict[str, Any]) -> tuple[ServiceSpec, ...]:
    if plan["sabotage"] == "services":
        _fail()
    return tuple(_service(each, plan["run"]) for each in plan["services"])


def _service(fields: dict[str, Any], run: str) -> ServiceSpec:
    from agent.pid1.layout import Role, ServiceSpec

    return ServiceSpec(
        fields["name"],
        tuple(fields["argv"]),
        tuple(fields["environment"].items()),
        fields["restart"],
        Role(fields["role"]),
        "/agent" if fields["role"] == "agent" else None,
        f"{run}/agent.status" if fields["role"] == "agent" else None,
    )


def _end(action: PowerAction) -> None:
    os._exit(ENDED_REBOOT if action == "reboot" else ENDED_OFF)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    _enter_namespaces(given["cgroup"])
    _be_init(given)

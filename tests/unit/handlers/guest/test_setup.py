"""Sandbox.Create: all of it or nothing, whatever fails, and whoever dies."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason, wrong_state
from agent.core.life import PressureResource, PressureThreshold
from agent.core.network import DnsWish
from agent.core.roots import Roots
from agent.core.sandbox import Identity, KernelModule, SandboxPhase, SandboxWish
from agent.core.state import StateStore
from tests.fakes.sandbox_setup import FakeDns, SetupBench

pytestmark = [pytest.mark.unit, pytest.mark.operations]

PRESSURE = (PressureThreshold(resource=PressureResource.CPU, stall=1000, window=1_000_000),)
WISH = SandboxWish(
    id="s1",
    hostname="guest",
    dns=DnsWish(searches=("example.com",)),
    modules=(KernelModule(name="loop", parameters=("max_loop=3",)), KernelModule(name="fs-xfs")),
    sysctls=(("net.ipv4.ip_forward", "1"), ("vm.max_map_count", "262144")),
    shared_namespaces=("ipc", "pid"),
    guest_hooks="/hooks",
    pressure=PRESSURE,
    timeout=10,
)


class Bench(SetupBench):
    def __init__(self, top: Path) -> None:
        self.resolver = FakeDns()
        roots = Roots(run=top, sys=top / "sys", proc=top / "proc", cgroup=top / "cgroup")
        super().__init__(roots, StateStore(top / "state"), self.resolver)
        self.before = self.shown()

    def unchanged(self) -> None:
        assert self.shown() == self.before
        assert self.sandbox.record is None
        assert not list((self.roots.run / "state").rglob("*.json"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_all_of_it(bench: Bench) -> None:
    bench.programs.found = {"poststop": ["/hooks/poststop/a"]}
    await bench.setup.create(WISH)
    assert bench.sandbox.current == Identity(id="s1", hostname="guest")
    assert bench.kmod.loaded() == {"loop", "crc", "xfs"}
    assert bench.sysctl("vm/max_map_count") == "262144"
    assert bench.hostname == "guest"
    assert bench.holder.made == (("ipc", "pid"), "/pods/s1/_sandbox", "guest")
    assert bench.resolver.wanted == DnsWish(searches=("example.com",), hostname="guest")
    assert bench.pressure.watched == {"": PRESSURE}
    assert bench.setup.guest_hooks is not None


async def test_without_a_host_name_the_guests_stays(bench: Bench) -> None:
    await bench.setup.create(SandboxWish(id="s1", shared_namespaces=("uts",)))
    assert bench.hostnames == []
    assert bench.holder.made == (("uts",), "/pods/s1/_sandbox", "booted")


async def test_the_same_wish_is_answered_again_and_another_one_refused(bench: Bench) -> None:
    await bench.setup.create(WISH)
    shown = bench.shown()
    calls = len(bench.kmod.calls)
    await bench.setup.create(replace(WISH, timeout=3))
    for other in (replace(WISH, id="s2"), replace(WISH, sysctls=())):
        with pytest.raises(AgentError) as caught:
            await bench.setup.create(other)
        assert (caught.value.code, caught.value.reason) == (Code.ALREADY_EXISTS, Reason.ID_IN_USE)
        assert caught.value.fields["id"] == "s1"
    assert bench.shown() == shown
    assert len(bench.kmod.calls) == calls


async def test_another_one_while_the_first_is_being_made_is_refused_too(bench: Bench) -> None:
    one, same, other = await asyncio.gather(
        bench.setup.create(WISH),
        bench.setup.create(WISH),
        bench.setup.create(replace(WISH, id="s2")),
        return_exceptions=True,
    )
    assert (one, same) == (None, None)
    assert isinstance(other, AgentError)
    assert bench.sandbox.current == WISH.identity


def _module_refuses(bench: Bench) -> None:
    bench.kmod.refuses.add("xfs")


def _sysctl_missing(bench: Bench) -> None:
    (bench.roots.proc / "sys/vm/max_map_count").unlink()
    bench.before = bench.shown()


def _holder_refuses(bench: Bench) -> None:
    bench.holder.problem = wrong_state("crun said no", reason=Reason.RUNTIME_REFUSED)


def _dns_refuses(bench: Bench) -> None:
    bench.resolver.problem = wrong_state("no space")


def _no_hooks(bench: Bench) -> None:
    bench.programs.problem = FileNotFoundError(errno.ENOENT, "No such file or directory", "/hooks")


def _no_pressure(bench: Bench) -> None:
    bench.pressure.problem = wrong_state("no PSI", reason=Reason.NOT_SUPPORTED)


@pytest.mark.parametrize(
    "breaking",
    [_module_refuses, _sysctl_missing, _holder_refuses, _dns_refuses, _no_hooks, _no_pressure],
)
async def test_whichever_part_fails_nothing_is_left(
    bench: Bench, breaking: Callable[[Bench], None]
) -> None:
    breaking(bench)
    with pytest.raises(AgentError):
        await bench.setup.create(WISH)
    bench.unchanged()


async def test_a_host_name_that_the_kernel_refuses_leaves_nothing(bench: Bench) -> None:
    def refuse(_: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    bench.setup._tools = replace(
        bench.setup._tools, host_name=replace(bench.setup._tools.host_name, set=refuse)
    )
    with pytest.raises(AgentError) as caught:
        await bench.setup.create(WISH)
    assert caught.value.fields["errno"] == "EPERM"
    assert bench.kmod.loaded() == set()
    assert bench.sandbox.current is None


async def test_what_may_not_be_set_is_refused_before_anything_is_done(bench: Bench) -> None:
    with pytest.raises(AgentError) as caught:
        await bench.setup.create(replace(WISH, sysctls=(("kernel.modprobe", "/x"),)))
    assert caught.value.reason is Reason.SYSCTL_NOT_ALLOWED
    assert bench.kmod.calls == []
    bench.unchanged()


async def test_the_deadline_holds_for_the_whole(bench: Bench) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    bench.holder.make = hang  # type: ignore[method-assign]
    with pytest.raises(AgentError) as caught:
        await bench.setup.create(replace(WISH, timeout=0.05))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    bench.unchanged()


async def test_a_caller_that_goes_away_stops_nothing(bench: Bench) -> None:
    task = asyncio.ensure_future(bench.setup.create(WISH))
    await asyncio.sleep(0)
    task.cancel()
    await bench.setup.close()
    assert bench.sandbox.current == WISH.identity


async def test_undo_takes_all_of_it_back(bench: Bench) -> None:
    await bench.setup.create(WISH)
    (bench.roots.cgroup / "pods/s1").mkdir(parents=True)
    assert await bench.setup.undo(Deadline.after(10)) == ()
    bench.unchanged()
    assert not (bench.roots.cgroup / "pods/s1").exists()
    assert await bench.setup.undo(Deadline.after(10)) == ()
    await bench.setup.create(replace(WISH, id="s2"))


async def test_what_is_left_is_told_and_tried_again(bench: Bench) -> None:
    await bench.setup.create(WISH)
    bench.kmod.busy = {"loop"}
    bench.holder.problem = wrong_state("a process in state D")
    lines = await bench.setup.undo(Deadline.after(10))
    assert lines == (
        "shared namespaces: a process in state D",
        "module loop: Module loop is in use",
    )
    assert bench.sandbox.current is None
    assert bench.hostname == "booted"
    bench.kmod.busy = set()
    assert await bench.setup.undo(Deadline.after(10)) == ()
    bench.unchanged()


async def test_the_next_sandbox_takes_over_what_the_former_one_left(bench: Bench) -> None:
    """A module that was busy is unloaded with the next one; what a sysctl held is not lost."""
    await bench.setup.create(WISH)
    bench.kmod.busy = {"loop"}
    await bench.setup.undo(Deadline.after(10))
    bench.kmod.busy = set()
    await bench.setup.create(SandboxWish(id="s2"))
    assert await bench.setup.undo(Deadline.after(10)) == ()
    bench.unchanged()


async def test_dns_of_before_comes_back_when_create_fails(bench: Bench) -> None:
    earlier = DnsWish(searches=("before.example",))
    record = {
        "resolv_conf": "search before.example\n",
        "hosts": "",
        "hostname": "booted\n",
        "wanted": {
            "servers": [],
            "searches": ["before.example"],
            "options": [],
            "hosts": [],
            "hostname": "",
        },
    }
    bench.state.save("network", "dns", record)
    bench.resolver.wanted = earlier
    _no_hooks(bench)
    with pytest.raises(AgentError):
        await bench.setup.create(WISH)
    assert bench.resolver.wanted == earlier
    assert bench.resolver.cleared == 0


async def test_a_new_agent_takes_over_what_was_finished(bench: Bench) -> None:
    bench.programs.found = {"prestart": ["/hooks/prestart/a"]}
    await bench.setup.create(WISH)
    shown = bench.shown()
    bench.pressure.watched = {}
    bench.start()
    await bench.setup.restore()
    assert bench.shown() == shown
    assert bench.holder.restored == 1
    assert bench.setup.guest_hooks is not None
    await bench.setup.create(WISH)
    assert await bench.setup.undo(Deadline.after(10)) == ()
    bench.unchanged()


@pytest.mark.parametrize("part", ["load_modules", "set_sysctls", "make_namespaces", "find_hooks"])
async def test_a_new_agent_takes_back_what_was_half_done(bench: Bench, part: str) -> None:
    """As kill -9 in that part leaves it: what is done so far is noted, nobody takes it back."""

    class Killed(BaseException):
        pass

    async def die(*_: object) -> None:
        await asyncio.sleep(0)
        raise Killed

    async def nothing() -> None: ...

    setattr(bench.setup, f"_{part}", die)
    bench.setup._roll_back = nothing  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await bench.setup._create(WISH, Deadline.after(10))
    bench.start()
    assert bench.sandbox.record is not None
    assert bench.sandbox.record.phase is SandboxPhase.CREATING
    await bench.setup.restore()
    bench.unchanged()

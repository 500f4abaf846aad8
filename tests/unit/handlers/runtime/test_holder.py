"""The sandbox's namespaces: made, found by path, taken over, told when they die, taken down."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.exits import ExitWatcher
from agent.core.pid1 import Pid1Client
from agent.core.state import StateStore
from agent.handlers.runtime.crun import Crun
from agent.handlers.runtime.holder import HOLDER_ID, NamespaceHolder
from tests.fakes.bed import FakeBed
from tests.fakes.crun import FakeGroup
from tests.fakes.managers import FakeEvents
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]

GROUP = "/pods/s/_sandbox"
ALL = ("ipc", "pid", "uts")


class Life:
    """A holder in one life of the agent."""

    def __init__(self, bed: FakeBed) -> None:
        self.bed = bed
        self.client = Pid1Client(bed.pid1.path)
        self.exits = ExitWatcher(self.client, retry=0.01)
        self.events = FakeEvents()
        self.holder = NamespaceHolder(
            roots=bed.roots,
            runtime=Crun(bed.roots),
            exits=self.exits,
            state=StateStore(bed.roots.state),
            events=self.events,
            files=bed.noted,
            cgroup=FakeGroup,
        )

    async def begin(self) -> None:
        await self.exits.start()
        await self.holder.restore()

    async def make(self, *kinds: str, timeout: float = 10) -> int:
        deadline = Deadline.after(timeout)
        await self.holder.make(kinds or ALL, cgroup=GROUP, hostname="pod-1", deadline=deadline)
        self.give_namespaces(self.pid)
        return self.pid

    @property
    def pid(self) -> int:
        return int((self.bed.top / "sandbox/pid").read_text())

    def give_namespaces(self, pid: int) -> None:
        for kind in ALL:
            (self.bed.roots.proc / str(pid) / "ns" / kind).write_text(kind)

    async def remove(self) -> None:
        await self.holder.remove(Deadline.after(10))

    async def end(self) -> None:
        """As kill -9 leaves it."""
        await self.holder.close()
        await self.exits.stop()
        self.client.close()


@pytest.fixture
async def lives(bed: FakeBed) -> AsyncIterator[list[Life]]:
    found: list[Life] = []
    yield found
    for life in found:
        await life.end()


@pytest.fixture
async def life(bed: FakeBed, lives: list[Life]) -> Life:
    made = Life(bed)
    lives.append(made)
    await made.begin()
    # The fake runtime starts programs of this machine: any that stays will do.
    return made


@pytest.fixture(autouse=True)
def _init_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.handlers.runtime.holder._INIT", ("/bin/sleep", "100"))


def left(bed: FakeBed) -> dict[str, object]:
    found = bed.left()
    found |= {"sandbox": sorted(os.listdir(bed.top / "sandbox"))} if _there(bed) else {}
    state = bed.top / "state/sandbox/holder.json"
    return found | ({"record": True} if state.exists() else {})


def _there(bed: FakeBed) -> bool:
    return (bed.top / "sandbox").exists()


async def test_its_init_has_nothing_and_its_id_is_nobodys(bed: FakeBed, life: Life) -> None:
    pid = await life.make()
    config = json.loads((bed.top / "sandbox/config.json").read_text())
    assert config["process"]["capabilities"] == {}
    assert config["process"]["noNewPrivileges"] is True
    assert config["process"]["user"] == {"uid": 65534, "gid": 65534}
    assert config["root"]["readonly"] is True
    assert config["hostname"] == "pod-1"
    kinds = [each["type"] for each in config["linux"]["namespaces"]]
    assert kinds == ["pid", "ipc", "uts", "mount", "cgroup"]
    assert config["linux"]["cgroupsPath"] == GROUP
    assert set(config["linux"]["resources"]) == {"memory", "pids", "devices"}
    assert bed.crun.operations() == ["create", "start"]
    assert HOLDER_ID[0] == "_"
    # Nothing of the agent's is held open by it.
    targets = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)}
    assert targets == {"/dev/null"}
    await life.remove()


async def test_paths_lead_through_descriptors_of_this_process(bed: FakeBed, life: Life) -> None:
    await life.make()
    with life.holder.paths(("network", "pid", "ipc")) as paths:
        names = {kind: Path(path).name for kind, path in paths.items()}
        for kind in ("pid", "ipc"):
            assert paths[kind].startswith(f"{bed.roots.proc}/{os.getpid()}/fd/")
            assert os.pread(int(names[kind]), 9, 0).decode() == kind
        assert paths["/dev/shm"] == str(bed.top / "sandbox/shm")
        assert "hostname" not in paths
        assert set(paths) == {"pid", "ipc", "/dev/shm"}
    for kind in ("pid", "ipc"):
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(int(names[kind]))
    with life.holder.paths(("uts",)) as paths:
        assert paths["hostname"] == "pod-1"
    await life.remove()


async def test_what_needs_none_of_it_needs_no_init(life: Life) -> None:
    with life.holder.paths(()) as paths:
        assert paths == {}
    with life.holder.paths(("network",)) as paths:
        assert paths == {}


async def test_what_was_not_made_cannot_be_shared(life: Life) -> None:
    for kinds in (("pid",), ("ipc", "pid")):
        with pytest.raises(AgentError) as caught, life.holder.paths(kinds):
            pass
        assert (caught.value.code, caught.value.reason) == (
            Code.FAILED_PRECONDITION,
            Reason.WRONG_STATE,
        )
        assert "Sandbox.Create" in (caught.value.hint or "")
    await life.make("ipc")
    with pytest.raises(AgentError) as caught, life.holder.paths(("ipc", "pid")):
        pass
    assert caught.value.fields["missing"] == "pid"
    await life.remove()


async def test_shared_memory_is_there_for_ipc_alone(bed: FakeBed, life: Life) -> None:
    await life.make("pid")
    assert bed.mounts() == []
    await life.remove()
    await life.make("ipc")
    assert bed.mounts() == [str(bed.top / "sandbox/shm")]
    await life.remove()
    assert left(bed) == {}


async def test_removing_leaves_nothing_and_twice_is_fine(bed: FakeBed, life: Life) -> None:
    pid = await life.make()
    await life.remove()
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240 - at once
    assert left(bed) == {}
    await life.remove()
    await life.make()
    await life.remove()
    assert left(bed) == {}
    assert life.events.published == []


async def test_a_create_that_fails_is_taken_back_by_remove(bed: FakeBed, life: Life) -> None:
    for operation in ("create", "start"):
        bed.crun.plan(fail={operation: "no such thing"})
        with pytest.raises(AgentError) as caught:
            await life.make()
        assert caught.value.reason is Reason.RUNTIME_REFUSED
        bed.crun.plan(fail={})
        await life.remove()
        assert left(bed) == {}


async def test_a_mount_that_fails_is_taken_back_too(bed: FakeBed, life: Life) -> None:
    bed.noted.fail = {"shm"}
    with pytest.raises(AgentError):
        await life.make()
    bed.noted.fail = set()
    await life.remove()
    assert left(bed) == {}


async def test_what_stays_is_told_and_removed_the_next_time(bed: FakeBed, life: Life) -> None:
    await life.make()
    bed.noted.fail = {"shm"}
    with pytest.raises(AgentError) as caught:
        await life.remove()
    assert caught.value.reason is Reason.STILL_IN_USE
    assert "unmount" in caught.value.message
    bed.noted.fail = set()
    await life.remove()
    assert left(bed) == {}


async def test_its_death_is_told(life: Life) -> None:
    pid = await life.make()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: bool(life.events.published))
    ((kind, subject, details),) = life.events.published
    assert (kind, subject) == ("process_exited", HOLDER_ID)
    assert (details["code"], details["signal"], details["cause"]) == ("137", "9", "signalled")
    with pytest.raises(AgentError) as caught, life.holder.paths(("pid",)):
        pass
    assert "SIGKILL ended it" in caught.value.message
    assert "Sandbox.Destroy" in (caught.value.hint or "")
    await life.remove()


async def test_another_process_with_its_number_is_not_it(bed: FakeBed, life: Life) -> None:
    pid = await life.make()
    (bed.roots.proc / str(pid) / "cgroup").write_text("0::/pods/s/other\n")
    with pytest.raises(AgentError) as caught, life.holder.paths(("pid",)):
        pass
    assert caught.value.reason is Reason.WRONG_STATE
    (bed.roots.proc / str(pid) / "cgroup").write_text(f"0::{GROUP}\n")
    await life.remove()


async def test_a_new_agent_takes_it_over(bed: FakeBed, life: Life, lives: list[Life]) -> None:
    pid = await life.make()
    await life.end()
    lives.remove(life)
    again = Life(bed)
    lives.append(again)
    await again.begin()
    with again.holder.paths(ALL) as paths:
        assert set(paths) == {*ALL, "hostname", "/dev/shm"}
    os.kill(pid, signal.SIGKILL)
    await until(lambda: bool(again.events.published))
    await again.remove()
    assert left(bed) == {}


async def test_one_that_died_meanwhile_is_known_to_be_dead(
    bed: FakeBed, life: Life, lives: list[Life]
) -> None:
    pid = await life.make()
    await life.end()
    lives.remove(life)
    os.kill(pid, signal.SIGKILL)
    again = Life(bed)
    lives.append(again)
    await again.begin()
    await until(lambda: bool(again.events.published))
    with pytest.raises(AgentError) as caught, again.holder.paths(("pid",)):
        pass
    assert "are gone with the init" in caught.value.message
    await again.remove()


async def test_what_a_dead_agent_had_begun_is_removed_by_the_next_one(
    bed: FakeBed, life: Life, lives: list[Life]
) -> None:
    """It died while the runtime was at work: its pid is in no record."""
    bed.crun.plan(hang=["create"])
    with pytest.raises(AgentError):
        await life.make(timeout=1)
    bed.crun.plan(hang=[])
    await life.end()
    lives.remove(life)
    again = Life(bed)
    lives.append(again)
    await again.begin()
    await again.remove()
    assert left(bed) == {}

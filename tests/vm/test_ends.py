"""Why processes ended, and the kernel's kills for lack of memory, each with its victim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import PROBE, Guest
from tests.vm.test_containers import added, signal
from tests.vm.test_statistics import group_of, ready, stats, there

pytestmark = [pytest.mark.vm, pytest.mark.containers]

MIB = 1 << 20
LIMIT = 48 * MIB
LIMITED = {"resources": {"memory": {"limit": LIMIT}}}
HOG = "s=xxxxxxxxxxxxxxxx; while :; do s=$s$s; done"
HOG_OF = f'(printf "hog$i" > /proc/self/comm; {HOG})'
WAIT = "echo ready; read line"


def hog(name: str = "") -> str:
    """A subshell that takes memory until it is killed, under that name."""
    named = f"printf '{name}' > /proc/self/comm; " if name else ""
    return f"({named}{HOG})"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def box(guest: Guest) -> AsyncIterator[str]:
    async with there(guest, "while :; do sleep 1; done", linux=LIMITED) as name:
        yield name


async def end_of(guest: Guest, process: types.ProcessRef) -> types.ExitStatus:
    return await guest.wait(process.container_id, process.exec_id)


async def kills(guest: Guest, name: str, count: int) -> list[dict[str, str]]:
    """The details of so many events of this container's."""
    found: list[dict[str, str]] = []
    async for each in guest.sandbox.Watch(sandbox.WatchRequest(after_sequence=0), timeout=60):
        if (each.kind, each.subject) == (sandbox.EVENT_KIND_OUT_OF_MEMORY, name):
            found.append(dict(each.details))
        if len(found) == count:
            return found
    raise AssertionError("the stream of events ended")


# Causes.


async def test_what_ends_by_itself(guest: Guest, box: str) -> None:
    for script, cause, number in (
        ("exit 7", types.END_CAUSE_EXITED, 0),
        # 128 and more is a status like any other.
        ("exit 137", types.END_CAUSE_EXITED, 0),
        ("kill -KILL $$", types.END_CAUSE_SIGNALLED, 9),
        ("kill -TERM $$", types.END_CAUSE_SIGNALLED, 15),
    ):
        end = await end_of(guest, await added(guest, box, script))
        assert (end.cause, end.signal, end.why) == (cause, number, ""), script
        assert not end.HasField("out_of_memory")


async def test_what_a_signal_that_was_asked_for_ends(guest: Guest, box: str) -> None:
    for number, name in ((15, "SIGTERM"), (9, "SIGKILL"), (1, "SIGHUP")):
        process = await added(guest, box, "exec sleep 1000")
        await signal(guest, process, number)
        end = await end_of(guest, process)
        assert (end.cause, end.signal) == (types.END_CAUSE_KILLED_BY_AGENT, number)
        assert end.why == f"{name} was asked for"


async def test_what_handles_the_signal_and_exits(guest: Guest, box: str) -> None:
    script = "trap 'exit 3' TERM; touch /ready; while :; do sleep 0.1; done"
    process = await added(guest, box, script)
    await end_of(guest, await added(guest, box, "while ! [ -e /ready ]; do sleep 0.1; done"))
    await signal(guest, process, 15)
    end = await end_of(guest, process)
    assert (end.cause, end.code, end.why) == (types.END_CAUSE_EXITED, 3, "")


async def test_what_a_removal_ends(guest: Guest) -> None:
    name = await guest.start(WAIT)
    waiting = asyncio.ensure_future(guest.wait(name))
    await ready(guest, name)
    await guest.remove(name)
    end = await waiting
    assert (end.cause, end.signal) == (types.END_CAUSE_KILLED_BY_AGENT, 9)
    assert end.why == "its container was removed"


async def test_a_core_dump(guest: Guest, box: str) -> None:
    """The kernel writes one where the process's limit and the guest's core_pattern let it."""
    for limit, dumped in (("0", False), ("unlimited", True)):
        script = f"cd /tmp; ulimit -c {limit}; kill -SEGV $$"
        end = await end_of(guest, await added(guest, box, script))
        assert (end.code, end.signal, end.cause) == (139, 11, types.END_CAUSE_SIGNALLED)
        assert end.core_dumped is dumped, limit


# Out of memory.


async def test_a_first_process_that_takes_too_much(guest: Guest) -> None:
    async with there(guest, HOG, linux=LIMITED) as name:
        end = await guest.wait(name)
        assert (end.code, end.signal) == (137, 9)
        assert end.cause == types.END_CAUSE_OUT_OF_MEMORY
        kill = end.out_of_memory
        assert (kill.victim, kill.limit_bytes, kill.cgroup) == ("sh", LIMIT, "/")
        assert kill.pid > 1
        (told,) = await kills(guest, name, 1)
        assert told == {
            "victim": "sh",
            "pid": str(kill.pid),
            "limit": str(LIMIT),
            "cgroup": "/",
        }
        found = (await stats(guest, name)).memory
        assert (found.kills, found.limit) == (1, LIMIT)
        assert found.out_of_memory >= 1


async def test_each_kill_is_told(guest: Guest) -> None:
    """Not only the first one; whoever dies, its container goes on."""
    script = f"{hog('one')}; {hog('two')}; {hog('three')}; {WAIT}"
    async with there(guest, script, linux=LIMITED) as name:
        await ready(guest, name)
        told = await kills(guest, name, 3)
        assert [each["victim"] for each in told] == ["one", "two", "three"]
        assert {each["limit"] for each in told} == {str(LIMIT)}
        assert len({each["pid"] for each in told}) == 3
        assert (await stats(guest, name)).memory.kills == 3


async def test_more_at_once_than_the_kernel_sums_up(guest: Guest) -> None:
    """Its summaries are ten in 5 seconds (DEFAULT_RATELIMIT_BURST); the events are all."""
    many = f"i=0; while [ $i -lt 14 ]; do i=$((i + 1)); {HOG_OF}; done; {WAIT}"
    linux = {"resources": {"memory": {"limit": 16 * MIB}}}
    async with there(guest, many, linux=linux) as name:
        await ready(guest, name)
        count = (await stats(guest, name)).memory.kills
        assert count >= 14
        told = await kills(guest, name, count)
        assert [each["victim"] for each in told] == [f"hog{number}" for number in range(1, 15)]
        assert {(each["limit"], each["cgroup"]) for each in told} == {(str(16 * MIB), "/")}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (",pid=1,uid=0", ",pid=1,uid=0"),
        (",task=x,pid=2", ",task=x,pid=2"),
        ("a) total-vm:1", "a) total-vm:1"),
        (r"\033[2J\n\\x41", "?[2J?\\x41"),
        (r"\303\257\377", "\u00ef\ufffd"),
    ],
)
async def test_a_victims_name_is_its_own_choice(guest: Guest, name: str, shown: str) -> None:
    """What parses the kernel's log takes no word of it for the kernel's."""
    async with there(guest, f"{hog(name)}; {WAIT}", linux=LIMITED) as container:
        await ready(guest, container)
        (told,) = await kills(guest, container, 1)
        assert told["victim"] == shown
        assert int(told["pid"]) > 2
        assert (told["limit"], told["cgroup"]) == (str(LIMIT), "/")


async def test_an_added_process_that_takes_too_much(guest: Guest, box: str) -> None:
    """The first one is none of it."""
    end = await end_of(guest, await added(guest, box, f"printf added > /proc/self/comm; {HOG}"))
    assert (end.cause, end.signal) == (types.END_CAUSE_OUT_OF_MEMORY, 9)
    assert (end.out_of_memory.victim, end.out_of_memory.limit_bytes) == ("added", LIMIT)


async def test_a_group_is_killed_as_a_whole(guest: Guest) -> None:
    """memory.oom.group: the first process did nothing, and dies with the other."""
    linux = {"resources": {"memory": {"limit": LIMIT}, "unified": {"memory.oom.group": "1"}}}
    script = f"printf first > /proc/self/comm; {hog('hog')}; {WAIT}"
    async with there(guest, script, linux=linux) as name:
        end = await guest.wait(name)
        assert (end.cause, end.signal) == (types.END_CAUSE_OUT_OF_MEMORY, 9)
        assert (end.out_of_memory.victim, end.out_of_memory.limit_bytes) == ("first", LIMIT)
        told = await kills(guest, name, 2)
        assert sorted(each["victim"] for each in told) == ["first", "hog"]


async def test_a_limit_below_the_containers_own(guest: Guest) -> None:
    """A container that has its cgroup delegated may set limits in it."""
    script = (
        "cd /sys/fs/cgroup && mkdir main job,task=x && echo 1 > main/cgroup.procs"
        " && echo +memory > cgroup.subtree_control && echo 16777216 > job,task=x/memory.max"
        f" && (echo 0 > job,task=x/cgroup.procs; {HOG}); {WAIT}"
    )
    linux: dict[str, Any] = {
        "namespaces": [{"type": kind} for kind in ("mount", "pid", "cgroup")],
        **LIMITED,
    }
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]},
    ]
    async with there(guest, script, linux=linux, mounts=mounts) as name:
        await ready(guest, name)
        (told,) = await kills(guest, name, 1)
        assert (told["limit"], told["cgroup"]) == (str(16 * MIB), "/job,task=x")


async def test_a_kill_while_no_agent_is_there(guest: Guest) -> None:
    """The next one tells it, once, and knows the cause."""
    async with there(guest, WAIT, linux=LIMITED) as name:
        await ready(guest, name)
        before = await guest.describe()
        group = await group_of(guest, name)
        # A limit below what is there: the kernel kills before write(2) returns.
        script = f"kill -9 {before.agent_pid}; echo 4096 > {group}/memory.max"
        killer = await guest.start(script, **PROBE)
        end = await guest.wait(name)
        assert (await guest.describe()).agent_pid != before.agent_pid
        assert end.cause == types.END_CAUSE_OUT_OF_MEMORY
        assert (end.out_of_memory.victim, end.out_of_memory.limit_bytes) == ("sh", 4096)
        (told,) = await kills(guest, name, 1)
        assert (told["victim"], told["limit"]) == ("sh", "4096")
        await guest.remove(killer)

"""Interfaces of a container's life: given before it starts, back when its first process ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason, wrong_state
from agent.core.model import ContainerRequest, ProcessRef
from agent.core.network import InterfaceGrant
from tests.fakes.bed import FakeBed as Bed
from tests.fakes.bed import Life
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]

ETH0 = InterfaceGrant(name="eth0", container_name="net0")


def request(bed: Bed, script: str = "sleep 100", **linux: Any) -> ContainerRequest:
    spec = {
        "process": {"args": ["/bin/sh", "-c", script]},
        "linux": {"namespaces": [{"type": "mount"}, {"type": "network"}], **linux},
    }
    return replace(bed.request(), spec=json.dumps(spec).encode(), interfaces=(ETH0,))


async def test_given_before_it_starts_and_back_with_its_removal(bed: Bed, life: Life) -> None:
    created = await life.containers.create(request(bed, netDevices={"eth1": {}}))
    order = bed.network.lent["c1"]
    assert (order.lent, order.moved) == ((ETH0,), (InterfaceGrant(name="eth1"),))
    assert bed.crun.operations() == ["create"]
    own = bed.roots.proc / str(created.pid) / "ns" / "net"
    assert bed.network.namespaces["c1"] == own.stat().st_ino
    await life.containers.start("c1")
    await life.containers.remove("c1", 0, 10)
    assert bed.network.done == ["lend c1", "take back c1"]
    assert bed.left() == {}


async def test_back_when_its_first_process_ends(bed: Bed, life: Life) -> None:
    await life.containers.create(request(bed, "exit 3"))
    await life.containers.start("c1")
    assert (await life.wait("c1")).code == 3
    await until(lambda: bed.network.lent == {})
    await life.containers.remove("c1", 0, 10)
    assert bed.network.done == ["lend c1", "take back c1"]


async def test_one_that_asks_for_none_is_never_asked_about(bed: Bed, life: Life) -> None:
    bed.network.keeps = wrong_state("nobody asks")
    await life.containers.create(bed.request("exit 0"))
    await life.containers.start("c1")
    await life.wait("c1")
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_a_refusal_leaves_nothing_behind(bed: Bed, life: Life) -> None:
    bed.network.refusal = wrong_state("eth0 is a bridge's", reason=Reason.WRONG_STATE)
    with pytest.raises(AgentError, match="eth0 is a bridge's"):
        await life.containers.create(request(bed))
    assert (life.containers.list(), bed.left()) == ((), {})


async def test_a_later_failure_brings_all_back(bed: Bed, life: Life) -> None:
    """Also those that would stay in a container which had come to be."""
    with pytest.raises(AgentError) as caught:
        await life.containers.create(replace(request(bed), exclusive_cpus=bed.exclusive.room + 1))
    assert caught.value.reason is Reason.CPUS_EXHAUSTED
    assert bed.network.done == ["lend c1", "take back c1 undone"]
    assert bed.left() == {}


async def test_without_a_namespace_nothing_is_begun(bed: Bed, life: Life) -> None:
    with pytest.raises(AgentError) as caught:
        await life.containers.create(replace(bed.request(), interfaces=(ETH0,)))
    assert caught.value.reason is Reason.BAD_FIELD
    assert bed.crun.operations() == []


async def test_what_stays_out_is_told_and_can_be_asked_for_again(bed: Bed, life: Life) -> None:
    await life.containers.create(request(bed, "exit 0"))
    bed.network.keeps = wrong_state("the kernel says no")
    await life.containers.start("c1")
    await life.wait("c1")
    with pytest.raises(AgentError, match="the kernel says no"):
        await life.containers.remove("c1", 0, 10)
    bed.network.keeps = None
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_an_agent_that_comes_after_brings_them_back(bed: Bed, life: Life) -> None:
    await life.containers.create(request(bed, "read line"))
    await life.containers.start("c1")
    heir = await bed.restart(life)
    assert bed.network.done == ["lend c1"]
    await heir.processes.write_input(ProcessRef(container_id="c1"), 0, b"x\n")
    await heir.wait("c1")
    await until(lambda: bed.network.lent == {})
    assert bed.network.done == ["lend c1", "take back c1"]
    await heir.containers.remove("c1", 0, 10)


async def test_an_exit_that_the_earlier_agent_saw_last(bed: Bed, life: Life) -> None:
    bed.network.keeps = wrong_state("not now")
    await life.containers.create(request(bed, "exit 0"))
    await life.containers.start("c1")
    await life.wait("c1")
    bed.network.keeps = None
    heir = await bed.restart(life)
    await until(lambda: bed.network.lent == {})
    await heir.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_a_create_that_was_half_done_is_taken_back_whole(bed: Bed, life: Life) -> None:
    await life.containers.create(request(bed))
    path = bed.roots.state / "containers" / "c1.json"
    content = json.loads(path.read_text())
    content["data"]["phase"] = "creating"
    await life.end()
    bed.lives.remove(life)
    path.write_text(json.dumps(content))
    heir = await bed.start()
    await until(lambda: heir.containers.list() == ())
    assert bed.network.done == ["lend c1", "take back c1 undone"]
    assert bed.left() == {}

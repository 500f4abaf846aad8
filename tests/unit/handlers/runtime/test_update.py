"""Updates: what the runtime is told, what comes and goes, and what a failure takes back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason, kernel_refused
from agent.core.model import (
    ContainerUpdate,
    DeviceGrant,
    HostTuple,
    NodeType,
    ProcessRef,
)
from agent.handlers.runtime.crun import Crun
from tests.fakes.bed import FakeBed as Bed
from tests.fakes.bed import Life
from tests.fakes.crun import FakeGroup
from tests.fakes.managers import attached, node
from tests.fakes.waiting import until
from tests.unit.handlers.runtime.test_restore import change_state

pytestmark = [pytest.mark.unit, pytest.mark.containers]

C1 = ProcessRef(container_id="c1")
CHAR = NodeType.CHAR


@pytest.fixture
async def life(bed: Bed) -> Life:
    """With three devices, of which `c1` has two: d1 (c 10:5) and d2 (b 254:0)."""
    bed.devices.add(attached("d1", node("/dev/d1", 10, 5, CHAR)))
    bed.devices.add(attached("d2", node("/dev/d2", 254, 0)))
    bed.devices.add(attached("d3", node("/dev/d3", 254, 32), node("/dev/d3p1", 254, 33)))
    life = await bed.start()
    await life.containers.create(bed.request("sleep 100", devices=grants("d1", "d2")))
    await life.containers.start("c1")
    return life


def grants(*devices: str, **members: Any) -> tuple[DeviceGrant, ...]:
    return tuple(DeviceGrant(device_id=device, **members) for device in devices)


def change(**members: Any) -> ContainerUpdate:
    return ContainerUpdate(**{"id": "c1", "timeout": 20.0, **members})


def granted_rules(resources: dict[str, Any]) -> list[str]:
    """Rules with numbers, without the default devices."""
    default = {1, 5, 136}
    return [
        f"{rule['type']} {rule['major']}:{rule['minor']} {rule['access']}"
        for rule in resources["devices"]
        if rule.get("major") is not None and rule["major"] not in default
    ]


def has(life: Life) -> set[str]:
    return {grant.device_id for grant in life.containers.get("c1").devices}


BOTH = ["c 10:5 rwm", "b 254:0 rwm"]
D3 = ["b 254:32 rwm", "b 254:33 rwm"]


async def test_one_more_device_keeps_the_others(bed: Bed, life: Life) -> None:
    """The runtime forgets all rules that it isn't given again: a device that was added
    later took the earlier ones away."""
    status = await life.containers.update(change(devices=grants("d1", "d2", "d3")))
    assert {(g.device_id, g.permissions) for g in status.devices} == {
        ("d1", "rwm"),
        ("d2", "rwm"),
        ("d3", "rwm"),
    }
    assert granted_rules(bed.crun.updates()[-1]) == [*BOTH, *D3]
    assert bed.made.there["c1"] == {"/dev/d3 b 254:32", "/dev/d3p1 b 254:33"}
    assert ("d3", "container c1") in bed.devices.held
    await life.containers.update(change(devices=grants("d1", "d2")))
    assert granted_rules(bed.crun.updates()[-1]) == BOTH
    assert bed.made.there["c1"] == set()
    assert ("d3", "container c1") not in bed.devices.held
    assert has(life) == {"d1", "d2"}


async def test_an_update_of_limits_carries_the_whole_list(bed: Bed, life: Life) -> None:
    await life.containers.update(change(resources=b'{"memory": {"limit": 100}}'))
    (told,) = bed.crun.updates()
    assert told["memory"] == {"limit": 100}
    assert granted_rules(told) == BOTH
    assert told["devices"][0] == {"allow": False, "access": "rwm"}
    assert has(life) == {"d1", "d2"}


async def test_the_hosts_own_rules_stay_with_every_update(bed: Bed, life: Life) -> None:
    rules = [{"allow": False}, {"allow": True, "type": "c", "major": 10, "access": "r"}]
    spec = {
        "process": {"args": ["/bin/sh"]},
        "linux": {"resources": {"devices": rules}, "namespaces": [{"type": "mount"}]},
    }
    await life.containers.create(bed.request(id="c2", spec=json.dumps(spec).encode()))
    await life.containers.update(change(id="c2", devices=grants("d2")))
    told = bed.crun.updates()[-1]["devices"]
    assert told[:2] == rules
    assert told[-1] == {
        "allow": True,
        "type": "b",
        "major": 254,
        "minor": 0,
        "access": "rwm",
    }


async def test_a_grants_place_and_rights_can_change(bed: Bed, life: Life) -> None:
    moved = (*grants("d1"), *grants("d2", container_path="/dev/x", permissions="r"))
    await life.containers.update(change(devices=moved))
    assert granted_rules(bed.crun.updates()[-1]) == ["b 254:0 r", "c 10:5 rwm"]
    assert bed.made.there["c1"] == {"/dev/x b 254:0"}


async def test_nothing_asked_for_is_nothing_done(bed: Bed, life: Life) -> None:
    assert await life.containers.update(change()) == life.containers.get("c1")
    assert bed.crun.updates() == []


async def test_one_that_was_not_started_yet_can_be_updated(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request(id="c2"))
    status = await life.containers.update(change(id="c2", devices=grants("d3")))
    assert [grant.device_id for grant in status.devices] == ["d3"]


async def test_a_device_is_released_when_no_grant_of_it_is_left(bed: Bed, life: Life) -> None:
    two = (*grants("d3", node="/dev/d3"), *grants("d3", node="/dev/d3p1", container_path="/dev/p"))
    await life.containers.update(change(devices=two))
    assert bed.devices.held == {("d3", "container c1")}
    await life.containers.update(change(devices=two[1:]))
    assert bed.devices.held == {("d3", "container c1")}
    assert granted_rules(bed.crun.updates()[-1]) == ["b 254:33 rwm"]
    await life.containers.update(change(devices=()))
    assert bed.devices.held == set()
    assert granted_rules(bed.crun.updates()[-1]) == []


async def test_a_device_that_is_gone_cannot_be_granted_on(bed: Bed, life: Life) -> None:
    del bed.devices.table["d2"]
    before = state(bed, life)
    with pytest.raises(AgentError) as caught:
        await life.containers.update(change(devices=grants("d1", "d2", "d3")))
    assert caught.value.reason is Reason.UNKNOWN_DEVICE
    assert state(bed, life) == before
    await life.containers.update(change(devices=grants("d1")))
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 rwm"]


async def vanish(bed: Bed, life: Life, device: str) -> None:
    del bed.devices.table[device]
    life.containers.device_vanished(device)
    await life.containers.turns.all_done()


REVOKED = ("resources-changed", "c1", {"revoked": "d2"})


async def test_a_device_that_goes_by_itself_is_revoked_at_once(bed: Bed, life: Life) -> None:
    """In all containers that have it, before another one comes that gets its numbers."""
    await life.containers.create(bed.request("sleep 100", id="c2", devices=grants("d2", "d3")))
    await life.containers.create(bed.request("sleep 100", id="c3", devices=grants("d3")))
    bed.made.there = {name: {"/dev/d2 b 254:0"} for name in ("c1", "c2")}
    await vanish(bed, life, "d2")
    told = sorted(granted_rules(each) for each in bed.crun.updates())
    assert told == [D3, ["c 10:5 rwm"]]
    assert bed.made.there == {"c1": set(), "c2": set()}
    assert has(life) == {"d1"}
    assert not [held for held in bed.devices.held if held[0] == "d2"]
    assert ("d3", "container c2") in bed.devices.held
    assert REVOKED in life.events.published
    await life.containers.update(change(resources=b"{}"))
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 rwm"]


async def test_it_is_revoked_after_the_update_that_grants_it(bed: Bed, life: Life) -> None:
    """It went between the hold and the end of the update, in the container's own queue."""
    updating = asyncio.ensure_future(life.containers.update(change(devices=grants("d1", "d3"))))
    await until(lambda: ("d3", "container c1") in bed.devices.held)
    await vanish(bed, life, "d3")
    assert {grant.device_id for grant in (await updating).devices} == {"d1", "d3"}
    assert has(life) == {"d1"}
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 rwm"]
    assert bed.made.there["c1"] == set()


async def test_one_that_goes_while_a_container_is_made_fails_it(
    bed: Bed, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Crun.create

    async def create(*words: Any) -> int:
        pid = await made(*words)
        del bed.devices.table["d3"]
        life.containers.device_vanished("d3")
        return pid

    monkeypatch.setattr(Crun, "create", create)
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request(id="c2", devices=grants("d3")))
    assert caught.value.reason is Reason.UNKNOWN_DEVICE
    assert [each.id for each in life.containers.list()] == ["c1"]


async def test_one_that_cannot_be_revoked_stays_held_and_is_tried_again(
    bed: Bed, life: Life
) -> None:
    """Held, so that its id can't be that of another device; told, so that the host knows."""
    bed.crun.plan(fail={"update": "write to `cgroup`: no"})
    await vanish(bed, life, "d2")
    assert bed.crun.operations().count("update") == 2
    assert ("d2", "container c1") in bed.devices.held
    kind, subject, details = life.events.published[-1]
    assert (kind, subject, details["not_revoked"]) == ("resources-changed", "c1", "d2")
    assert "no" in details["refused"]
    with pytest.raises(AgentError):
        await life.containers.update(change(resources=b"{}"))
    bed.crun.plan(fail={})
    await life.containers.update(change(resources=b'{"memory": {"limit": 1}}'))
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 rwm"]
    assert ("d2", "container c1") not in bed.devices.held
    assert life.events.published[-1] == REVOKED


async def test_a_node_that_cannot_be_removed_does_not_keep_the_rights(bed: Bed, life: Life) -> None:
    bed.made.problem = kernel_refused(OSError(30, "unlink", "/dev/d2"), doing="unlink /dev/d2")
    await vanish(bed, life, "d2")
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 rwm"]
    assert ("d2", "container c1") not in bed.devices.held
    assert REVOKED in life.events.published


@pytest.mark.parametrize("reason", ["ended", "stranger"])
async def test_from_a_container_that_has_ended_nothing_is_revoked(
    bed: Bed, life: Life, reason: str
) -> None:
    if reason == "ended":
        await life.processes.signal(C1, 9)
        await life.wait("c1")
    else:
        bed.made.stranger = True
    await vanish(bed, life, "d2")
    assert bed.crun.updates() == []
    assert "resources-changed" not in life.events.kinds()


async def test_what_went_while_no_agent_was_there_is_revoked_by_the_next(
    bed: Bed, life: Life
) -> None:
    """The devices are restored first, without it; one that comes by the same id is another."""
    bed.made.there["c1"] = {"/dev/d2 b 254:0"}
    await life.end()
    bed.devices.held.clear()
    gone = bed.devices.table.pop("d2")
    heir = await bed.start()
    bed.devices.add(gone)
    await heir.containers.turns.all_done()
    assert has(heir) == {"d1"}
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 rwm"]
    assert bed.made.there["c1"] == set()
    assert bed.devices.held == {("d1", "container c1")}


async def test_an_unfinished_update_of_devices_that_are_gone(bed: Bed, life: Life) -> None:
    """One it brought and one it took away: neither comes back."""
    await life.containers.update(change(devices=grants("d1", "d3")))
    path = bed.roots.state / "containers/c1.json"
    new = json.loads(path.read_text())["data"]["granted"]
    await life.containers.update(change(devices=grants("d1", "d2")))
    change_state(bed, "containers", "c1", incoming=new, devices=["d1", "d2", "d3"])
    bed.made.there["c1"] = {"/dev/d2 b 254:0", "/dev/d3 b 254:32", "/dev/d3p1 b 254:33"}
    for gone in ("d2", "d3"):
        del bed.devices.table[gone]
    heir = await bed.restart(life)
    await heir.containers.turns.all_done()
    assert has(heir) == {"d1"}
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 rwm"]
    assert bed.made.there["c1"] == set()


async def test_two_containers_hold_a_device_each_for_itself(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request("sleep 100", id="c2", devices=grants("d2")))
    assert {("d2", "container c1"), ("d2", "container c2")} <= bed.devices.held
    with pytest.raises(AgentError):
        await life.containers.update(change(id="c2", devices=grants("d2", "no")))
    assert ("d2", "container c2") in bed.devices.held
    await life.containers.update(change(id="c2", devices=()))
    assert ("d2", "container c2") not in bed.devices.held
    assert ("d2", "container c1") in bed.devices.held
    await life.containers.update(change(devices=grants("d1")))
    assert bed.devices.held == {("d1", "container c1")}


async def test_a_device_that_came_back_with_other_numbers(bed: Bed, life: Life) -> None:
    """Attached again under its id after it had vanished: its old numbers may be another's."""
    bed.devices.add(attached("d2", node("/dev/d2", 254, 48)))
    await life.containers.update(change(devices=grants("d1", "d2")))
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 rwm", "b 254:48 rwm"]
    assert bed.made.there["c1"] == {"/dev/d2 b 254:48"}


_MAPPING = [{"containerID": 0, "hostID": 100000, "size": 65536}]
USERS = {
    "linux": {
        "namespaces": [{"type": "mount"}, {"type": "user"}],
        "uidMappings": _MAPPING,
        "gidMappings": _MAPPING,
    }
}


async def test_in_a_user_namespace_nodes_do_not_come_and_go(bed: Bed, life: Life) -> None:
    spec = {"process": {"args": ["/bin/sh", "-c", "sleep 100"]}, **USERS}
    request = bed.request(id="c2", spec=json.dumps(spec).encode(), devices=grants("d1"))
    await life.containers.create(request)
    with pytest.raises(AgentError) as caught:
        await life.containers.update(change(id="c2", devices=grants("d1", "d2")))
    assert caught.value.reason is Reason.WRONG_STATE
    assert bed.crun.updates() == []
    assert ("d2", "container c2") not in bed.devices.held
    await life.containers.update(change(id="c2", devices=grants("d1", permissions="r")))
    assert granted_rules(bed.crun.updates()[-1]) == ["c 10:5 r"]


BAD: dict[str, tuple[dict[str, Any], Reason]] = {
    "no JSON": ({"resources": b"{"}, Reason.BAD_SPEC),
    "rules of the host": ({"resources": b'{"devices": []}'}, Reason.BAD_SPEC),
    "unknown container": ({"id": "no"}, Reason.UNKNOWN_CONTAINER),
    "bad id": ({"id": "../c1"}, Reason.BAD_ID),
    "unknown device": ({"devices": grants("d1", "d3", "no")}, Reason.UNKNOWN_DEVICE),
    "a path twice": ({"devices": grants("d1", "d2", container_path="/dev/x")}, Reason.BAD_FIELD),
    "a device twice": ({"devices": grants("d1", "d1")}, Reason.BAD_FIELD),
    "two nodes at a path": ({"devices": grants("d3", container_path="/dev/x")}, Reason.BAD_FIELD),
    "unknown node": ({"devices": grants("d3", node="/dev/d1")}, Reason.BAD_FIELD),
    "too many CPUs": ({"exclusive_cpus": 4}, Reason.CPUS_EXHAUSTED),
    "bad timeout": ({"timeout": -1.0}, Reason.BAD_FIELD),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_cannot_be_done_changes_nothing(bed: Bed, life: Life, name: str) -> None:
    members, reason = BAD[name]
    before = state(bed, life)
    with pytest.raises(AgentError) as caught:
        await life.containers.update(change(**members))
    assert caught.value.reason is reason
    assert state(bed, life) == before
    assert bed.crun.updates() == []


def state(bed: Bed, life: Life) -> tuple[Any, ...]:
    records = bed.roots.state / "containers/c1.json"
    held, counts = set(bed.devices.held), dict(bed.exclusive.counts)
    there = set(bed.made.there.get("c1", ()))
    return life.containers.get("c1"), held, counts, there, json.loads(records.read_text())


@pytest.mark.parametrize("reason", ["ended", "stranger"])
async def test_a_container_that_has_ended_is_not_updated(bed: Bed, life: Life, reason: str) -> None:
    """Nor one whose first process is in a cgroup that is not the container's: rules once
    went into the root's group when its number had become somebody else's."""
    if reason == "ended":
        await life.processes.signal(C1, 9)
        await life.wait("c1")
    else:
        bed.made.stranger = True
    before = state(bed, life)
    for wanted in (change(devices=()), change(resources=b"{}"), change(exclusive_cpus=1)):
        with pytest.raises(AgentError) as caught:
            await life.containers.update(wanted)
        assert caught.value.reason is Reason.WRONG_STATE
    assert state(bed, life) == before
    assert bed.crun.updates() == []


async def test_a_limit_that_is_refused_takes_the_devices_back(
    bed: Bed, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime sets rules before limits: both are as they were when it has refused one."""
    files = {"memory.max": "1000\n", "pids.max": "max\n"}
    monkeypatch.setattr(FakeGroup, "files", files)
    monkeypatch.setattr(
        FakeGroup, "limits", lambda _: dict(files) if not bed.crun.updates() else files
    )
    bed.crun.plan(fail={"update pids": "write to `pids.max`: Invalid argument"})
    before = state(bed, life)
    wanted = change(resources=b'{"pids": {"limit": 5}}', devices=grants("d3"), exclusive_cpus=1)
    with pytest.raises(AgentError) as caught:
        await life.containers.update(wanted)
    assert caught.value.reason is Reason.RUNTIME_REFUSED
    assert "pids.max" in caught.value.message
    assert state(bed, life) == before
    refused, back = bed.crun.updates()
    assert granted_rules(refused) == D3
    assert granted_rules(back) == BOTH
    assert set(back) == {"devices"}


async def test_a_node_that_cannot_be_made_takes_all_back(bed: Bed, life: Life) -> None:
    bed.made.problem = kernel_refused(OSError(17, "mknod", "/dev/d3"), doing="mknod /dev/d3")
    before = state(bed, life)
    with pytest.raises(AgentError) as caught:
        await life.containers.update(change(devices=grants("d1", "d3")))
    assert caught.value.fields["errno"] == "EEXIST"
    after = state(bed, life)
    # The stand-in doesn't know the runtime's nodes, so it has noted d2 as put back.
    assert after[:3] == before[:3]
    assert after[4] == before[4]
    assert after[3] == {"/dev/d2 b 254:0"}
    assert granted_rules(bed.crun.updates()[-1]) == BOTH


async def test_what_could_not_be_taken_back_is_taken_back_by_the_next_update(
    bed: Bed, life: Life
) -> None:
    """Until then the device stays held: the container may still have a right to it."""
    bed.made.broken = True
    bed.made.problem = kernel_refused(OSError(5, "mknod", "/dev/d3"), doing="mknod /dev/d3")
    with pytest.raises(AgentError) as caught:
        await life.containers.update(change(devices=grants("d3")))
    assert "put the nodes back" in caught.value.fields["not_undone"]
    assert has(life) == {"d1", "d2"}
    assert ("d3", "container c1") in bed.devices.held
    with pytest.raises(AgentError):
        await life.containers.update(change(resources=b"{}"))
    bed.made.problem = None
    await life.containers.update(change(resources=b"{}"))
    assert ("d3", "container c1") not in bed.devices.held
    assert bed.made.there["c1"] == {"/dev/d1 c 10:5", "/dev/d2 b 254:0"}
    assert granted_rules(bed.crun.updates()[-1]) == BOTH


async def test_cpus_that_are_not_there_take_the_rest_back(bed: Bed, life: Life) -> None:
    before = state(bed, life)
    with pytest.raises(AgentError) as caught:
        await life.containers.update(change(devices=grants("d1", "d2", "d3"), exclusive_cpus=9))
    assert caught.value.reason is Reason.CPUS_EXHAUSTED
    assert state(bed, life) == before
    assert granted_rules(bed.crun.updates()[-1]) == BOTH


async def test_exclusive_cpus_come_and_go(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request(id="c2", exclusive_cpus=2))
    assert life.containers.get("c2").exclusive_cpus == (1, 2)
    status = await life.containers.update(change(id="c2", exclusive_cpus=1))
    assert status.exclusive_cpus == (1,)
    # A limit may have been written to the cpuset: it is claimed again.
    bed.exclusive.asserted.clear()
    await life.containers.update(change(id="c2", resources=b'{"cpu": {"cpus": "0"}}'))
    assert bed.exclusive.asserted == [("c2", 1)]
    await life.containers.update(change(id="c2", exclusive_cpus=0))
    assert (life.containers.get("c2").exclusive_cpus, bed.exclusive.counts) == ((), {})


async def test_cpus_go_with_their_container_and_with_a_failed_create(bed: Bed, life: Life) -> None:
    await life.containers.create(bed.request(id="c2", exclusive_cpus=2))
    with pytest.raises(AgentError) as caught:
        await life.containers.create(bed.request(id="c3", exclusive_cpus=2))
    assert caught.value.reason is Reason.CPUS_EXHAUSTED
    assert [status.id for status in life.containers.list()] == ["c1", "c2"]
    await life.containers.remove("c2", 0, 10)
    assert bed.exclusive.counts == {}


async def test_grants_and_cpus_outlive_the_agent(bed: Bed, life: Life) -> None:
    await life.containers.update(change(devices=grants("d1", "d2", "d3"), exclusive_cpus=2))
    before = life.containers.get("c1")
    bed.devices.held.clear()
    bed.exclusive.counts.clear()
    heir = await bed.restart(life)
    assert heir.containers.get("c1") == before
    assert bed.devices.held == {(device, "container c1") for device in ("d1", "d2", "d3")}
    assert bed.exclusive.counts == {"c1": 2}
    await heir.containers.update(change(resources=b'{"memory": {"limit": 1}}'))
    assert granted_rules(bed.crun.updates()[-1]) == [*BOTH, *D3]


async def test_an_update_that_an_agent_did_not_finish_is_taken_back(bed: Bed, life: Life) -> None:
    """It had made nodes and rules when it died; its caller got no answer."""
    await life.containers.update(change(devices=grants("d3")))
    path = bed.roots.state / "containers/c1.json"
    new = json.loads(path.read_text())["data"]["granted"]
    await life.containers.update(change(devices=grants("d1", "d2")))
    change_state(bed, "containers", "c1", incoming=new, devices=["d1", "d2", "d3"])
    bed.made.there["c1"] = {"/dev/d3 b 254:32", "/dev/d3p1 b 254:33"}
    heir = await bed.restart(life)
    await heir.containers.turns.all_done()
    assert has(heir) == {"d1", "d2"}
    assert granted_rules(bed.crun.updates()[-1]) == BOTH
    assert bed.made.there["c1"] == {"/dev/d1 c 10:5", "/dev/d2 b 254:0"}
    assert bed.devices.held == {("d1", "container c1"), ("d2", "container c1")}
    assert json.loads(path.read_text())["data"]["incoming"] is None


async def test_the_file_for_the_runtime_does_not_stay(bed: Bed, life: Life) -> None:
    await life.containers.update(change(resources=b"{}"))
    assert not (bed.roots.bundles / "c1/update.json").exists()
    await life.containers.remove("c1", 0, 10)
    assert bed.left() == {}


async def test_addresses_of_the_host_in_the_environment(bed: Bed, life: Life) -> None:
    """Translated for the first process and for later ones; one that inherits them, once."""
    known = (HostTuple(type="pci", id="0000:3b:02.1"),)
    bed.devices.add(attached("nic", host=known))
    name = "PCIDEVICE_EXAMPLE_COM_NET"
    env = [f"{name}=0000:3b:02.1"]
    spec = {"process": {"args": ["/bin/sh", "-c", "sleep 100"], "env": env}}
    request = bed.request(id="c2", spec=json.dumps(spec).encode(), devices=grants("nic"))
    await life.containers.create(request)
    await life.containers.start("c2")
    for exec_id, words in (("own", {"env": env}), ("inherited", {})):
        script = f"echo ${name}"
        await life.processes.exec(
            replace(bed.exec_request(script, exec_id, **words), container_id="c2")
        )
        await life.wait("c2", exec_id)
        assert await life.output("c2", exec_id) == b"0000:01:00.0\n"


@pytest.mark.parametrize("there", [True, False])
async def test_entries_that_are_left_out_are_told(
    bed: Bed, life: Life, caplog: pytest.LogCaptureFixture, there: bool
) -> None:
    """The container starts without them."""
    device = bed.roots.sys / "dev/char/241:0"
    device.mkdir(parents=True)
    (device / "uevent").write_text(f"DEVNAME=vfio/{'45' if there else '0'}\n")
    vfio = {"path": "/dev/vfio/45", "type": "c", "major": 241, "minor": 0}
    spec = {"process": {"args": ["/bin/true"]}, "linux": {"devices": [vfio]}}
    await life.containers.create(bed.request(id="c2", spec=json.dumps(spec).encode()))
    assert ("/dev/vfio/45 (c 241:0) is left out" in caplog.text) is not there
    config = json.loads((bed.roots.bundles / "c2/config.json").read_text())
    paths = [each["path"] for each in config["linux"]["devices"]]
    assert paths == (["/dev/vfio/45"] if there else [])

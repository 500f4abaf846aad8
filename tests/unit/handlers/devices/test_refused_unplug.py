"""A refused detach changes nothing: the device is not even looked for again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.holding import Holder, HolderKind
from agent.core.model import DeviceState
from tests.fakes import devices as fakes

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[fakes.DeviceBench]:
    async with fakes.device_bench(tmp_path) as made:
        port = made.sysfs.port_with_slot()
        made.sysfs.virtio_disk(port, "0000:01:00.0")
        await made.devices.attach(fakes.request())
        yield made


async def refused(lab: fakes.DeviceBench) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await lab.devices.prepare_detach("d1")
    assert caught.value.reason is Reason.STILL_IN_USE
    return caught.value


async def test_a_device_that_its_user_has_hidden_stays_attached(lab: fakes.DeviceBench) -> None:
    """An interface in another network namespace: a new look at it would find nothing."""
    lab.users.found = (Holder(kind=HolderKind.NETWORK_NAMESPACE, name="net:[1]", pid=7),)
    lab.sysfs.remove((lab.sysfs.sys / "class/block/vdb").resolve())
    for _ in range(2):
        error = await refused(lab)
        assert json.loads(error.fields["holders"]) == [
            {"kind": "network-namespace", "name": "net:[1]", "pid": 7}
        ]
        assert lab.devices.get("d1").state is DeviceState.ATTACHED
    assert lab.guest.files.writes == []


async def test_those_whom_the_agent_gave_it_to_are_in_the_list(lab: fakes.DeviceBench) -> None:
    """The list is the one that `holders` gives: who was told of it, and what the kernel shows."""
    lab.devices.hold("d1", "storage data")
    lab.users.found = (Holder(kind=HolderKind.MOUNT, name="/dev/vdb", path="/mnt"),)
    error = await refused(lab)
    assert [each["kind"] for each in json.loads(error.fields["holders"])] == ["storage", "mount"]
    assert error.fields["users"] == "storage data"
    assert lab.devices.get("d1").state is DeviceState.ATTACHED

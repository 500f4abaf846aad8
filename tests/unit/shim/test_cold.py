"""Hardware that is in its port from the start, as QEMU's options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from innkeeper.shim import cold, topology
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware import Setting
from innkeeper.shim.plugged import DeviceState
from innkeeper.shim.spec import ColdDevice, VmSpec
from innkeeper.shim.table import Table
from innkeeper.shim.topology import Layout, PortPool

pytestmark = [pytest.mark.unit, pytest.mark.devices]

SETTING = Setting(vm="web", max_memory=1 << 32, room=1 << 31)


@pytest.fixture
def table() -> Table:
    return Table(PortPool(ports=topology.build(Layout(ports=3)).ports))


def options(words: tuple[str, ...]) -> list[tuple[str, dict[str, object]]]:
    return [(words[at], json.loads(words[at + 1])) for at in range(0, len(words), 2)]


async def test_its_port_is_taken_and_it_is_listed(table: Table) -> None:
    gpu = ColdDevice(id="gpu", hardware='{"gpu": {"model": "GPU_MODEL_VIRTIO"}}')
    nic = ColdDevice(id="nic", hardware='{"nic": {}}', port="port2")
    made = options(cold.place((gpu, nic), table, SETTING))
    assert [option for option, _ in made] == ["-device", "-netdev", "-device"]
    assert made[0][1]["driver"] == "virtio-gpu-pci"
    assert (made[0][1]["bus"], made[2][1]["bus"]) == ("port0", "port2")
    assert made[1][1]["id"] == made[2][1]["netdev"]
    assert [plug.state for plug in table.plugs] == [DeviceState.PLUGGED] * 2
    assert [port.name for port in table.ports.free] == ["port1"]


async def test_a_namespace_comes_after_its_controller(table: Table, tmp_path: Path) -> None:
    (tmp_path / "disk.img").write_bytes(bytes(4096))
    disk = {
        "model": "DISK_MODEL_NVME",
        "virtual_functions": 2,
        "content": {"file": str(tmp_path / "disk.img")},
    }
    device = ColdDevice(id="n", hardware=json.dumps({"disk": disk}))
    made = options(cold.place((device,), table, SETTING))
    assert [(option, each.get("driver")) for option, each in made] == [
        ("-blockdev", "raw"),
        ("-device", "nvme-subsys"),
        ("-device", "nvme"),
        ("-device", "nvme-ns"),
    ]


@pytest.mark.parametrize(
    "text", ["", "{", '{"nosuch": {}}', "{}", '{"memory": {"size": 134217728}}']
)
async def test_what_is_no_such_hardware_is_a_bad_field(table: Table, text: str) -> None:
    with pytest.raises(ShimError) as caught:
        cold.place((ColdDevice(id="x", hardware=text),), table, SETTING)
    assert caught.value.reason is Reason.BAD_FIELD


def test_a_specification_goes_to_the_daemon_and_back() -> None:
    spec = VmSpec(
        name="web",
        switch=True,
        iommu=True,
        max_memory=4 << 30,
        max_cpus=4,
        nvdimm=True,
        cold=(ColdDevice(id="gpu", hardware="{}", port="port1"),),
    )
    spec.check()
    assert VmSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "wrong",
    [{"max_memory": 512 << 20}, {"max_memory": (1 << 30) + 1}, {"nvdimm": True}, {"max_cpus": 65}],
)
def test_room_to_grow_must_be_more_than_there_is(wrong: dict[str, int]) -> None:
    with pytest.raises(ShimError) as caught:
        VmSpec(name="web", **wrong).check()  # type: ignore[arg-type]
    assert caught.value.reason is Reason.BAD_FIELD

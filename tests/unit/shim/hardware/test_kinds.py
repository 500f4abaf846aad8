"""Each kind of hardware as QEMU is told of it: names and values of QEMU's own documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from innkeeper.shim import hardware
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware import Hardware, Names, Place, Setting
from innkeeper.shim.hardware.host_function import check_given
from innkeeper.shim.hardware.nic import mac_for
from innkeeper.shim.qmp import QemuRefusedError
from innkeeper.v1 import devices_pb2, host_pb2

pytestmark = [pytest.mark.unit, pytest.mark.devices]

MIB = 1 << 20
NAMES = Names(id="x", number=7)
SETTING = Setting(vm="web", max_memory=4096 * MIB, room=3584 * MIB, nvdimm=True, more_cpus=4)


def kind(setting: Setting = SETTING, **message: Any) -> Hardware:
    return hardware.parse(host_pb2.Hardware(**message), "x", setting)


def refusal(setting: Setting = SETTING, **message: Any) -> ShimError:
    with pytest.raises(ShimError) as caught:
        kind(setting, **message)
    return caught.value


def the_part(made: Hardware) -> dict[str, object]:
    (part,) = made.parts(NAMES)
    return part


def backends(made: Hardware) -> list[tuple[str, str, str, str]]:
    """Command and name, of adding and of removing."""
    return [
        (
            each.add,
            str(each.arguments.get("id") or each.arguments["node-name"]),
            each.remove,
            str(each.removal.get("id") or each.removal["node-name"]),
        )
        for each in made.backends(NAMES)
    ]


@pytest.fixture
def content(tmp_path: Path) -> host_pb2.DiskFile:
    (tmp_path / "disk.img").write_bytes(bytes(4096))
    return host_pb2.DiskFile(file=str(tmp_path / "disk.img"))


def test_every_kind_of_the_protocol_is_in_the_list() -> None:
    fields = host_pb2.Hardware.DESCRIPTOR.oneofs_by_name["kind"].fields
    assert set(hardware.KINDS) == {field.name for field in fields}
    assert refusal().reason is Reason.BAD_FIELD


def test_a_virtio_disk(content: host_pb2.DiskFile) -> None:
    made = kind(disk=host_pb2.Disk(content=content))
    assert backends(made) == [("blockdev-add", "back7", "blockdev-del", "back7")]
    assert the_part(made) == {
        "driver": "virtio-blk-pci",
        "id": "dev-x",
        "drive": "back7",
        "serial": "x",
    }
    assert (made.model, made.source, made.place) == ("virtio-blk", content.file, Place.PORT)
    guest = made.guest()
    assert guest is not None
    assert guest.block.expect_serial == "x"


def test_an_nvme_disk_is_for_express_ports_alone(content: host_pb2.DiskFile) -> None:
    made = kind(disk=host_pb2.Disk(content=content, model=host_pb2.DISK_MODEL_NVME))
    assert the_part(made) == {"driver": "nvme", "id": "dev-x", "drive": "back7", "serial": "x"}
    assert made.express


def test_virtual_functions_of_nvme_need_a_subsystem_and_queues_of_their_own(
    content: host_pb2.DiskFile,
) -> None:
    """QEMU's nvme.rst: two flexible queues and one interrupt for each, the rest is the
    physical function's; the namespace is a device on the controller. Cold only."""
    disk = host_pb2.Disk(content=content, model=host_pb2.DISK_MODEL_NVME, virtual_functions=3)
    made = kind(disk=disk)
    part = the_part(made)
    assert part["subsys"] == "back7-subsystem"
    assert (part["sriov_max_vfs"], part["sriov_vq_flexible"], part["sriov_vi_flexible"]) == (
        3,
        6,
        3,
    )
    assert (part["max_ioqpairs"], part["msix_qsize"]) == (8, 5)
    assert "drive" not in part
    assert made.children(NAMES) == ({"driver": "nvme-ns", "bus": "dev-x", "drive": "back7"},)
    assert made.not_pluggable


def test_a_lun_says_channel_target_and_unit(content: host_pb2.DiskFile) -> None:
    made = kind(scsi_disk=host_pb2.ScsiDisk(content=content, controller="c", target=3, lun=10))
    assert the_part(made) == {
        "driver": "scsi-hd",
        "id": "dev-x",
        "drive": "back7",
        "serial": "x",
        "channel": 0,
        "scsi-id": 3,
        "lun": 10,
    }
    assert made.place is Place.CONTROLLER


@pytest.mark.parametrize(
    ("model", "driver"),
    [
        (host_pb2.NIC_MODEL_UNSPECIFIED, "virtio-net-pci"),
        (host_pb2.NIC_MODEL_E1000E, "e1000e"),
        (host_pb2.NIC_MODEL_IGB, "igb"),
    ],
)
def test_a_nic_has_its_network_first(model: Any, driver: str) -> None:
    made = kind(nic=host_pb2.Nic(model=model, mac="52:54:00:AB:cd:01"))
    (backend,) = made.backends(NAMES)
    assert backend.arguments == {
        "type": "user",
        "id": "back7",
        "restrict": True,
        "ipv6": False,
    }
    assert (backend.add, backend.remove, backend.removal) == (
        "netdev_add",
        "netdev_del",
        {"id": "back7"},
    )
    part = the_part(made)
    assert (part["driver"], part["netdev"], part["mac"]) == (driver, "back7", "52:54:00:ab:cd:01")
    guest = made.guest()
    assert guest is not None
    assert guest.nic.expect_mac == "52:54:00:ab:cd:01"


def test_a_nic_may_reach_the_host_only_when_it_is_asked_for() -> None:
    made = kind(nic=host_pb2.Nic(backend=host_pb2.NIC_BACKEND_USER))
    arguments = made.backends(NAMES)[0].arguments
    assert arguments["restrict"] is False
    assert "ipv6" not in arguments


def test_a_made_mac_is_one_stations_locally_administered_and_always_the_same() -> None:
    """IEEE 802: bit 0 of the first octet is multicast, bit 1 local."""
    mac = mac_for("web", "nic0")
    assert int(mac[:2], 16) & 3 == 2
    assert mac == mac_for("web", "nic0")
    assert mac != mac_for("other", "nic0")


@pytest.mark.parametrize("mac", ["52:54:00:12:34", "01:00:5e:00:00:01", "00:00:00:00:00:00", "x"])
def test_an_impossible_mac_is_a_bad_field(mac: str) -> None:
    assert refusal(nic=host_pb2.Nic(mac=mac)).fields["field"] == "mac"


def test_igb_is_asked_for_since_it_came_late() -> None:
    assert kind(nic=host_pb2.Nic(model=host_pb2.NIC_MODEL_IGB)).since == "8.0"


def test_a_display_comes_hot_and_virtio_gpu_does_not() -> None:
    bochs = kind(gpu=host_pb2.Gpu())
    assert the_part(bochs) == {"driver": "bochs-display", "id": "dev-x"}
    assert (bochs.not_pluggable, bochs.roomy, bochs.silent) == ("", True, True)
    virtio = kind(gpu=host_pb2.Gpu(model=host_pb2.GPU_MODEL_VIRTIO))
    assert "virtio-gpu" in virtio.not_pluggable
    assert virtio.not_removable


def test_an_rng_with_and_without_a_limit() -> None:
    """virtio-rng's limit is max-bytes for each period in milliseconds."""
    made = kind(rng=host_pb2.Rng())
    assert backends(made) == [("object-add", "back7", "object-del", "back7")]
    assert the_part(made) == {"driver": "virtio-rng-pci", "id": "dev-x", "rng": "back7"}
    limited = the_part(kind(rng=host_pb2.Rng(bytes_per_second=1024)))
    assert (limited["max-bytes"], limited["period"]) == (1024, 1000)


def pmem(path: Path, size: int, model: Any = host_pb2.PMEM_MODEL_VIRTIO, **more: Any) -> Any:
    path.touch()
    with path.open("r+b") as file:
        file.truncate(size)
    return host_pb2.Pmem(file=str(path), model=model, **more)


def test_persistent_memory_is_shared_with_its_file_and_never_removed(tmp_path: Path) -> None:
    made = kind(pmem=pmem(tmp_path / "pmem", 4 * MIB))
    (backend,) = made.backends(NAMES)
    assert backend.arguments == {
        "qom-type": "memory-backend-file",
        "id": "back7",
        "mem-path": str(tmp_path / "pmem"),
        "size": 4 * MIB,
        "share": True,
        "readonly": False,
    }
    assert the_part(made) == {"driver": "virtio-pmem-pci", "id": "dev-x", "memdev": "back7"}
    assert made.not_removable
    guest = made.guest()
    assert guest is not None
    assert guest.pmem.expect_size == 4 * MIB


def test_an_nvdimm_that_may_not_be_written_is_unarmed(tmp_path: Path) -> None:
    model = host_pb2.PMEM_MODEL_NVDIMM
    made = kind(pmem=pmem(tmp_path / "pmem", 128 * MIB, model, read_only=True))
    assert the_part(made)["unarmed"] is True
    assert made.backends(NAMES)[0].arguments["readonly"] is True
    assert made.place is Place.MACHINE


@pytest.mark.parametrize(
    ("model", "size"),
    [(host_pb2.PMEM_MODEL_VIRTIO, 3 * MIB), (host_pb2.PMEM_MODEL_NVDIMM, 64 * MIB)],
)
def test_persistent_memory_comes_in_whole_units(tmp_path: Path, model: Any, size: int) -> None:
    assert refusal(pmem=pmem(tmp_path / "pmem", size, model)).reason is Reason.BAD_FIELD


def test_memory_of_a_vm_without_room_is_not_pluggable(tmp_path: Path) -> None:
    bare = Setting(vm="web")
    for message in (
        {"memory": host_pb2.Memory(size=128 * MIB)},
        {"pmem": pmem(tmp_path / "pmem", 128 * MIB)},
    ):
        assert refusal(bare, **message).reason is Reason.NOT_PLUGGABLE
    grows = Setting(vm="web", max_memory=4096 * MIB, room=3584 * MIB)
    nvdimm = pmem(tmp_path / "pmem", 128 * MIB, host_pb2.PMEM_MODEL_NVDIMM)
    for setting in (bare, grows):
        error = refusal(setting, pmem=nvdimm)
        assert error.reason is Reason.NOT_PLUGGABLE
        assert "--nvdimm and --max-memory" in error.hint


def test_a_dimm_can_go_and_virtio_mem_can_not() -> None:
    dimm = kind(memory=host_pb2.Memory(size=256 * MIB))
    assert the_part(dimm) == {"driver": "pc-dimm", "id": "dev-x", "memdev": "back7"}
    assert dimm.backends(NAMES)[0].arguments == {
        "qom-type": "memory-backend-ram",
        "id": "back7",
        "size": 256 * MIB,
    }
    assert (dimm.not_removable, dimm.growth.memory, dimm.guest()) == ("", 256 * MIB, None)
    model = host_pb2.MEMORY_MODEL_VIRTIO
    virtio = kind(memory=host_pb2.Memory(size=256 * MIB, model=model))
    assert the_part(virtio)["requested-size"] == 256 * MIB
    assert virtio.not_removable


@pytest.mark.parametrize("size", [4096 * MIB + 128 * MIB, 1 << 63, (1 << 64) - 128 * MIB])
def test_memory_beyond_all_that_the_vm_can_have_is_not_asked_for(size: int) -> None:
    """QEMU's size_t wraps when it adds a page: for the last one it did not refuse, but ended,
    and the VM with it."""
    assert refusal(memory=host_pb2.Memory(size=size)).reason is Reason.MEMORY_EXHAUSTED


def test_too_much_memory_is_told_with_what_fits() -> None:
    error = refusal(memory=host_pb2.Memory(size=64 << 30))
    message = "device x: no room for 64 GiB of memory, only for 3.5 GiB in all"
    assert error.message.startswith(message)


def test_an_odd_size_of_memory_is_told_with_its_unit() -> None:
    error = refusal(memory=host_pb2.Memory(size=100 * MIB))
    assert (error.message, error.hint) == (
        "memory of 100 MiB: not possible",
        "a whole number of 128 MiB",
    )


def test_memory_of_a_vm_with_a_helper_is_shared() -> None:
    """vhost-user: another process maps all of the guest's memory."""
    shared = Setting(vm="web", max_memory=4096 * MIB, room=3584 * MIB, shared_memory=True)
    made = kind(shared, memory=host_pb2.Memory(size=128 * MIB))
    arguments = made.backends(NAMES)[0].arguments
    assert (arguments["qom-type"], arguments["share"]) == ("memory-backend-memfd", True)


@pytest.mark.parametrize("size", [0, 1, 100 * MIB])
def test_memory_comes_in_blocks_of_the_guests_kernel(size: int) -> None:
    assert refusal(memory=host_pb2.Memory(size=size)).reason is Reason.BAD_FIELD


@pytest.mark.parametrize(
    "text",
    [
        "not enough space, currently 0x3000 in use of total space for memory devices 0xf000",
        "no free slots available",
    ],
)
def test_qemus_words_for_no_room_have_a_reason(text: str) -> None:
    """As QEMU 7.2 says it."""
    made = kind(memory=host_pb2.Memory(size=128 * MIB))
    told = made.explain(QemuRefusedError("device_add", "GenericError", text))
    assert told.reason is Reason.MEMORY_EXHAUSTED


def test_more_cpus_than_there_is_room_for() -> None:
    assert refusal(cpus=host_pb2.Cpus(count=5)).reason is Reason.CPUS_EXHAUSTED
    assert refusal(cpus=host_pb2.Cpus()).reason is Reason.BAD_FIELD


def test_emulated_cpus_come_for_good() -> None:
    """QEMU 7.2 ends itself when an emulated CPU was unplugged."""
    emulated = Setting(vm="web", more_cpus=4, emulated=True)
    assert kind(emulated, cpus=host_pb2.Cpus(count=1)).not_removable
    assert not kind(SETTING, cpus=host_pb2.Cpus(count=1)).not_removable


@pytest.mark.parametrize("bdf", ["3b:00.0", "0000:3b:20.0", "0000:3b:00.8", "0000:3B:00.0", "../x"])
def test_a_malformed_host_address_is_refused_before_sysfs_is_looked_at(bdf: str) -> None:
    error = refusal(host_function=host_pb2.HostFunction(bdf=bdf))
    assert (error.reason, error.fields["field"]) == (Reason.BAD_FIELD, "bdf")


def test_a_host_function_is_given_away_when_vfio_has_it(tmp_path: Path) -> None:
    function = tmp_path / "devices" / "0000:3b:00.0"
    with pytest.raises(ShimError) as caught:
        check_given(function.name, function.parent)
    assert caught.value.reason is Reason.UNKNOWN_HOST_FUNCTION
    function.mkdir(parents=True)
    for driver in ("nvme", "vfio-pci"):
        with pytest.raises(ShimError) as caught:
            check_given(function.name, function.parent)
        assert caught.value.reason is Reason.NOT_GIVEN_AWAY
        assert caught.value.hint.startswith("innkeeper devices 0000:3b:00.0 says what is in")
        (tmp_path / driver).mkdir()
        (function / "driver").unlink(missing_ok=True)
        (function / "driver").symlink_to(tmp_path / driver)
    check_given(function.name, function.parent)


def test_a_host_function_is_the_guests_own_drivers_unless_said_otherwise() -> None:
    made = hardware.host_function.HostFunction(bdf="0000:3b:00.0")
    assert the_part(made) == {"driver": "vfio-pci", "id": "dev-x", "host": "0000:3b:00.0"}
    assert made.guest().vfio.mode == devices_pb2.VFIO_MODE_GUEST_KERNEL

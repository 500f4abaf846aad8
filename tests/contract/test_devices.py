"""innkeeper.v1.Devices over the wire."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from agent.core.holding import Holder, HolderKind
from agent.core.kinds import (
    BlockInfo,
    DriverName,
    FpgaInfo,
    GpuInfo,
    Info,
    MigProfile,
    NicInfo,
    PmemInfo,
    RngInfo,
    VfioInfo,
    VfioMode,
)
from innkeeper.v1 import devices_pb2 as pb
from innkeeper.v1.devices_pb2_grpc import DevicesStub
from tests.fakes.agent_managers import attached
from tests.fakes.agent_server import RunningAgent, refused

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from agent.core.model import AttachedDevice, DeviceRequest
    from innkeeper.v1.devices_pb2_grpc import DevicesAsyncStub

pytestmark = [pytest.mark.contract, pytest.mark.devices]


@pytest.fixture
def stub(agent: RunningAgent) -> DevicesAsyncStub:
    return DevicesStub(agent.channel)


def disk(device_id: str = "d1", path: str = "02/00", **wanted: object) -> pb.Device:
    device = pb.Device(id=device_id, address=pb.DeviceAddress(pci_path=path))
    device.block.SetInParent()
    for name, value in wanted.items():
        setattr(device, name, value)
    return device


def attaching(*devices: pb.Device) -> pb.AttachDevicesRequest:
    return pb.AttachDevicesRequest(devices=devices)


async def test_a_usable_device_is_answered_with_both_addresses(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    agent.devices.plug("02/00")
    asked = disk()
    asked.host.add(type="path", id="/dev/sdb")
    (attached,) = (await stub.Attach(attaching(asked))).attached
    assert (attached.pci_path, attached.pci_bdf) == ("02/00", "0000:01:00.0")
    assert attached.device == asked
    assert attached.block.size == 1 << 30
    assert attached.nodes[0] == pb.DeviceNode(path="/dev/vda", type="b", major=254, minor=0)
    assert (attached.numa_node, attached.iommu_group) == (-1, -1)
    assert attached.state == pb.DEVICE_STATE_ATTACHED
    assert await stub.Get(pb.GetDeviceRequest(id="d1")) == attached
    assert list((await stub.List(pb.ListDevicesRequest())).devices) == [attached]


async def test_the_same_request_twice_is_answered_twice(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    agent.devices.plug("02/00")
    first = await stub.Attach(attaching(disk()))
    assert await stub.Attach(attaching(disk())) == first
    assert len(agent.devices.table) == 1


async def test_another_device_under_a_used_id_is_refused(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    agent.devices.plug("02/00")
    await stub.Attach(attaching(disk()))
    answer = await refused(stub.Attach(attaching(disk(path="03/00"))))
    assert (answer.code, answer.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")
    assert answer.domain == "innkeeper"
    assert answer.fields["id"] == "d1"


async def test_a_device_that_does_not_come_tells_how_far_it_came(stub: DevicesAsyncStub) -> None:
    answer = await refused(stub.Attach(attaching(disk(timeout_seconds=0.01))))
    assert (answer.code, answer.reason) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEVICE_NOT_READY",
    )
    assert answer.fields["evidence"] == "slot 02 is empty"
    assert answer.fields["hint"] == "is it plugged in?"


async def test_the_calls_own_deadline_ends_the_wait_early_enough_to_say_why(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    answer = await refused(stub.Attach(attaching(disk()), timeout=2.0))
    assert answer.reason == "DEVICE_NOT_READY"
    (waited,) = agent.devices.timeouts
    assert waited is not None
    assert waited < 2.0


async def test_a_timeout_shorter_than_the_call_is_left_as_it_is(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    agent.devices.plug("02/00")
    await stub.Attach(attaching(disk(timeout_seconds=3)), timeout=60)
    await stub.Attach(attaching(disk(timeout_seconds=3)))
    assert agent.devices.timeouts == [3, 3]


async def test_a_batch_that_fails_takes_back_what_it_attached_and_nothing_else(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    agent.devices.plug("02/00")
    agent.devices.plug("03/00")
    await stub.Attach(attaching(disk("old")))
    batch = attaching(
        disk("old"), disk("new", "03/00"), disk("late", "04/00", timeout_seconds=0.05)
    )
    assert (await refused(stub.Attach(batch))).reason == "DEVICE_NOT_READY"
    assert agent.devices.forgotten == ["new"]
    assert set(agent.devices.table) == {"old"}


async def test_a_device_that_comes_as_the_batch_fails_is_taken_back_too(
    agent: RunningAgent, stub: DevicesAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = agent.devices.attach

    async def crossing(request: DeviceRequest) -> AttachedDevice:
        """Its caller is told of the batch's failure while it enters the table."""
        try:
            return await whole(request)
        except asyncio.CancelledError:
            agent.devices.table[request.id] = attached(request)
            raise

    monkeypatch.setattr(agent.devices, "attach", crossing)
    batch = attaching(disk("late", "02/00"), disk("never", "03/00", timeout_seconds=0.05))
    assert (await refused(stub.Attach(batch))).reason == "DEVICE_NOT_READY"
    assert agent.devices.table == {}


async def test_a_batch_is_answered_in_its_own_order(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    agent.devices.plug("03/00")
    call = stub.Attach(attaching(disk("b", "02/00"), disk("a", "03/00")))
    await agent.devices.until_waiting(1)
    agent.devices.plug("02/00")
    assert [one.device.id for one in (await call).attached] == ["b", "a"]


async def test_a_cancelled_call_ends_the_wait_and_takes_back_the_rest(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    agent.devices.plug("02/00")
    call = stub.Attach(attaching(disk("here"), disk("never", "03/00")))
    await agent.devices.until_waiting(1)
    call.cancel()
    await agent.devices.until_waiting(0)
    await agent.devices.until_forgotten("here")
    assert agent.devices.table == {}


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (disk(""), "BAD_ID"),
        (disk("../etc"), "BAD_ID"),
        (disk("a" * 65), "BAD_ID"),
        (disk(path=""), "BAD_ADDRESS"),
        (disk(path="zz"), "BAD_ADDRESS"),
        (disk(path="20/00"), "BAD_ADDRESS"),
        (disk(timeout_seconds=-1), "BAD_FIELD"),
        (disk(timeout_seconds=float("nan")), "BAD_FIELD"),
        (disk(timeout_seconds=1e9), "BAD_FIELD"),
        (pb.Device(id="d1", block=pb.BlockDevice()), "BAD_ADDRESS"),
        (pb.Device(id="d1", address=pb.DeviceAddress(pci_path="02/00")), "BAD_FIELD"),
        (
            pb.Device(id="d1", address=pb.DeviceAddress(pci_bdf="01:00.0"), block=pb.BlockDevice()),
            "BAD_ADDRESS",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_bad_input_is_named_and_changes_nothing(
    agent: RunningAgent, stub: DevicesAsyncStub, device: pb.Device, reason: str
) -> None:
    answer = await refused(stub.Attach(attaching(device)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert agent.devices.table == {}


async def test_bad_fields_are_named_by_their_place_in_the_request(stub: DevicesAsyncStub) -> None:
    answer = await refused(stub.Attach(attaching(disk("a"), disk("b", timeout_seconds=-1))))
    assert answer.fields["field"] == "devices[1].timeout_seconds"


@pytest.mark.parametrize(
    "batch",
    [[], [disk("a"), disk("a", "03/00")], [disk(f"d{number}") for number in range(65)]],
    ids=["none", "twice the same id", "65"],
)
async def test_a_batch_has_1_to_64_different_devices(
    stub: DevicesAsyncStub, batch: list[pb.Device]
) -> None:
    assert (await refused(stub.Attach(attaching(*batch)))).reason == "BAD_FIELD"


AFU = "0123456789abcdef0123456789abcdef"
KINDS = {
    "block": pb.BlockDevice(expect_serial="s1", expect_size=1 << 30),
    "vfio": pb.VfioDevice(
        mode=pb.VFIO_MODE_GUEST_KERNEL, same_group_as=["d2", "d3"], take_group=True
    ),
    "nic": pb.NicDevice(expect_mac="52:54:00:12:34:56"),
    "gpu": pb.GpuDevice(expect_pci_id="10de:2330", expect_driver="nvidia", expect_render_node=True),
    "fpga": pb.FpgaDevice(expect_pci_id="8086:bcc0", expect_afu_ids=[AFU]),
    "rng": pb.RngDevice(make_current=True),
    "pmem": pb.PmemDevice(expect_size=2 << 20),
    "common": pb.CommonDevice(expect_pci_id="8086:37c8", expect_driver="4xxx", expect_nodes=2),
}
ADDRESSES = {
    "pci_path": (pb.DeviceAddress(pci_path="0000:20/00/02.1"), "0000:20/00/02.1"),
    "pci_bdf": (pb.DeviceAddress(pci_bdf="10000:01:00.0"), "10000:01:00.0"),
    "scsi": (
        pb.DeviceAddress(
            scsi=pb.ScsiAddress(adapter_pci_path="02/00", host=0, channel=0, target=3, lun=10)
        ),
        "[02/00]0:0:3:10",
    ),
    "ccw": (pb.DeviceAddress(ccw="0.0.0001"), "0.0.0001"),
    "mmio": (pb.DeviceAddress(mmio="0xd0000000"), "0xd0000000"),
    "path": (pb.DeviceAddress(path="/dev/dri/card0"), "/dev/dri/card0"),
    "mac": (pb.DeviceAddress(mac="52:54:00:12:34:56"), "52:54:00:12:34:56"),
}
INFOS: dict[str, tuple[Info, Message]] = {
    "block": (
        BlockInfo(size=4096, logical_block_size=512, read_only=True, model="m", serial="s"),
        pb.BlockInfo(size=4096, logical_block_size=512, read_only=True, model="m", serial="s"),
    ),
    "vfio": (
        VfioInfo(mode=VfioMode.VFIO, group=7, former_driver="nvme", group_members=("a", "b")),
        pb.VfioInfo(
            mode=pb.VFIO_MODE_VFIO, group=7, former_driver="nvme", group_members=["a", "b"]
        ),
    ),
    "nic": (
        NicInfo(name="eth0", mac="52:54:00:12:34:56", mtu=1500, ifindex=2),
        pb.NicInfo(name="eth0", mac="52:54:00:12:34:56", mtu=1500, ifindex=2),
    ),
    "gpu": (
        GpuInfo(vendor="nvidia", minor=0, uuid="GPU-1", shared_nodes=("/dev/nvidiactl",)),
        pb.GpuInfo(vendor="nvidia", minor=0, uuid="GPU-1", shared_nodes=["/dev/nvidiactl"]),
    ),
    "fpga": (
        FpgaInfo(fme="/dev/dfl-fme.0", ports=("/dev/dfl-port.0",), afu_ids=(AFU,)),
        pb.FpgaInfo(fme="/dev/dfl-fme.0", ports=["/dev/dfl-port.0"], afu_ids=[AFU]),
    ),
    "rng": (
        RngInfo(name="virtio_rng.1", current=True, former="virtio_rng.0"),
        pb.RngInfo(name="virtio_rng.1", current=True, former="virtio_rng.0"),
    ),
    "pmem": (
        PmemInfo(size=2 << 20, dax=True, removable=False),
        pb.PmemInfo(size=2 << 20, dax=True, removable=False),
    ),
}


def members(oneof: str, message: type[Message]) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.oneofs_by_name[oneof].fields}


def test_every_kind_address_and_result_is_tried_here() -> None:
    assert members("kind", pb.Device) == set(KINDS)
    assert members("address", pb.DeviceAddress) == set(ADDRESSES)
    assert members("info", pb.AttachedDevice) == set(INFOS)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kind_comes_back_as_it_was_asked_for(
    agent: RunningAgent, stub: DevicesAsyncStub, kind: str
) -> None:
    agent.devices.plug("02/00")
    device = pb.Device(id="d1", address=pb.DeviceAddress(pci_path="02/00"))
    device.load_modules[:] = ["nvidia", "nvidia-uvm"]
    getattr(device, kind).CopyFrom(KINDS[kind])
    (answer,) = (await stub.Attach(attaching(device))).attached
    assert answer.device == device


@pytest.mark.parametrize("form", ADDRESSES)
async def test_an_address_comes_back_as_it_was_asked_for(
    agent: RunningAgent, stub: DevicesAsyncStub, form: str
) -> None:
    address, text = ADDRESSES[form]
    agent.devices.plug(text)
    device = pb.Device(id="d1", address=address, block=pb.BlockDevice())
    (answer,) = (await stub.Attach(attaching(device))).attached
    assert answer.device == device


@pytest.mark.parametrize("kind", INFOS)
async def test_what_a_device_became_is_told(
    agent: RunningAgent, stub: DevicesAsyncStub, kind: str
) -> None:
    agent.devices.plug("02/00")
    await stub.Attach(attaching(disk()))
    info, wanted = INFOS[kind]
    agent.devices.table["d1"] = replace(agent.devices.table["d1"], info=info)
    answer = await stub.Get(pb.GetDeviceRequest(id="d1"))
    assert answer.WhichOneof("info") == kind
    assert getattr(answer, kind) == wanted


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("vfio", pb.VfioDevice(mode=9)),  # type: ignore[arg-type]
        ("vfio", pb.VfioDevice(same_group_as=["d"] * 65)),
        ("gpu", pb.GpuDevice(expect_pci_id="10de")),
        ("gpu", pb.GpuDevice(expect_driver="../nvidia")),
        ("fpga", pb.FpgaDevice(expect_afu_ids=["12"])),
        ("common", pb.CommonDevice(expect_driver="-f")),
        ("block", pb.BlockDevice(expect_serial="a\0b")),
    ],
)
async def test_a_malformed_expectation_is_refused_before_any_wait(
    agent: RunningAgent, stub: DevicesAsyncStub, kind: str, message: Message
) -> None:
    device = pb.Device(id="d1", address=pb.DeviceAddress(pci_path="02/00"))
    getattr(device, kind).CopyFrom(message)
    answer = await refused(stub.Attach(attaching(device)))
    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert agent.devices.timeouts == []


@pytest.mark.parametrize("modules", [["a b"], ["../x"], [""], ["-r"], ["m"] * 17])
async def test_module_names_are_checked(stub: DevicesAsyncStub, modules: list[str]) -> None:
    """modprobe takes options, too."""
    device = disk()
    device.load_modules.extend(modules)
    answer = await refused(stub.Attach(attaching(device)))
    assert answer.reason == "BAD_FIELD"
    assert answer.fields["field"].startswith("devices[0].load_modules")


async def test_who_uses_a_device_is_told_in_full(
    agent: RunningAgent, stub: DevicesAsyncStub
) -> None:
    agent.devices.plug("02/00")
    await stub.Attach(attaching(disk()))
    agent.devices.users = (
        Holder(kind=HolderKind.MOUNT, name="/dev/vda", path="/data"),
        Holder(kind=HolderKind.DESCRIPTOR, path="/dev/vda", pid=42, command="dd"),
    )
    answer = await stub.Holders(pb.DeviceHoldersRequest(id="d1"))
    assert list(answer.holders) == [
        pb.DeviceHolder(kind=pb.HOLDER_KIND_MOUNT, name="/dev/vda", path="/data"),
        pb.DeviceHolder(kind=pb.HOLDER_KIND_DESCRIPTOR, path="/dev/vda", pid=42, command="dd"),
    ]
    assert (
        await refused(stub.Holders(pb.DeviceHoldersRequest(id="d2")))
    ).reason == "UNKNOWN_DEVICE"


@pytest.mark.parametrize(
    ("asked", "mode"),
    [
        ({"vfio": pb.VFIO_MODE_VFIO}, VfioMode.VFIO),
        ({"vfio": pb.VFIO_MODE_GUEST_KERNEL}, VfioMode.GUEST_KERNEL),
        ({"driver": "uio_pci_generic"}, DriverName("uio_pci_generic")),
        ({"mig_profile": "1g.10gb,1g.10gb"}, MigProfile("1g.10gb,1g.10gb")),
    ],
)
async def test_a_mode_is_switched(
    agent: RunningAgent, stub: DevicesAsyncStub, asked: dict[str, Any], mode: object
) -> None:
    agent.devices.plug("02/00")
    attached = (await stub.Attach(attaching(disk()))).attached[0]
    assert await stub.Reconfigure(pb.ReconfigureDeviceRequest(id="d1", **asked)) == attached
    assert agent.devices.modes == [mode]


@pytest.mark.parametrize(
    "asked", [{}, {"vfio": 9}, {"driver": ""}, {"driver": "a/b"}, {"mig_profile": "-x"}]
)
async def test_a_mode_that_cannot_be_is_refused(
    agent: RunningAgent, stub: DevicesAsyncStub, asked: dict[str, Any]
) -> None:
    agent.devices.plug("02/00")
    await stub.Attach(attaching(disk()))
    answer = await refused(stub.Reconfigure(pb.ReconfigureDeviceRequest(id="d1", **asked)))
    assert answer.reason == "BAD_FIELD"
    assert agent.devices.modes == []


async def test_a_device_that_stays_is_released(agent: RunningAgent, stub: DevicesAsyncStub) -> None:
    agent.devices.plug("02/00")
    await stub.Attach(attaching(disk()))
    await _detach(stub, pb.DETACH_PHASE_RELEASE)
    assert (await refused(stub.Get(pb.GetDeviceRequest(id="d1")))).reason == "UNKNOWN_DEVICE"


async def test_detach_goes_in_two_phases(agent: RunningAgent, stub: DevicesAsyncStub) -> None:
    agent.devices.plug("02/00")
    await stub.Attach(attaching(disk()))
    await _detach(stub, pb.DETACH_PHASE_PREPARE)
    leaving = await stub.Get(pb.GetDeviceRequest(id="d1"))
    assert leaving.state == pb.DEVICE_STATE_LEAVING
    early = await refused(_detach(stub, pb.DETACH_PHASE_COMPLETE))
    assert early.reason == "DEVICE_STILL_PRESENT"
    await _detach(stub, pb.DETACH_PHASE_CANCEL)
    agent.devices.present.clear()
    await _detach(stub, pb.DETACH_PHASE_COMPLETE)
    gone = await refused(stub.Get(pb.GetDeviceRequest(id="d1")))
    assert (gone.code, gone.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_DEVICE")


async def _detach(stub: DevicesAsyncStub, phase: pb.DetachPhase.ValueType) -> object:
    return await stub.Detach(pb.DetachDeviceRequest(id="d1", phase=phase))


@pytest.mark.parametrize("phase", [pb.DETACH_PHASE_UNSPECIFIED, 9])
async def test_an_unknown_phase_is_refused(stub: DevicesAsyncStub, phase: int) -> None:
    answer = await refused(stub.Detach(pb.DetachDeviceRequest(id="d1", phase=phase)))  # type: ignore[arg-type]
    assert (answer.reason, answer.fields["field"]) == ("BAD_FIELD", "phase")


@pytest.mark.parametrize(
    "phase", [pb.DETACH_PHASE_PREPARE, pb.DETACH_PHASE_COMPLETE, pb.DETACH_PHASE_CANCEL]
)
async def test_an_unknown_device_cannot_be_detached(
    stub: DevicesAsyncStub, phase: pb.DetachPhase.ValueType
) -> None:
    assert (await refused(_detach(stub, phase))).reason == "UNKNOWN_DEVICE"


async def test_get_checks_the_id(stub: DevicesAsyncStub) -> None:
    assert (await refused(stub.Get(pb.GetDeviceRequest(id="a b")))).reason == "BAD_ID"

"""Plugging what is not one disk: several functions, units of a controller, memory, CPUs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware import Growth
from innkeeper.v1 import devices_pb2, host_pb2
from tests.fakes.guest_devices import refusal
from tests.fakes.plug_bench import LIMIT, PlugBench, plug_bench

pytestmark = [pytest.mark.unit, pytest.mark.devices]

MIB = 1 << 20
RNG: dict[str, Any] = {"rng": host_pb2.Rng()}
NIC: dict[str, Any] = {"nic": host_pb2.Nic()}
DIMM: dict[str, Any] = {"memory": host_pb2.Memory(size=128 * MIB)}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[PlugBench]:
    async with plug_bench(tmp_path) as made:
        yield made


@contextlib.contextmanager
def refused(reason: Reason) -> Iterator[None]:
    with pytest.raises(ShimError) as caught:
        yield
    assert caught.value.reason is reason


def scsi(bench: PlugBench, **place: int) -> dict[str, Any]:
    disk = host_pb2.ScsiDisk(content=bench.content, controller="hba", **place)
    return {"scsi_disk": disk}


CONTROLLER: dict[str, Any] = {"scsi_controller": host_pb2.ScsiController()}


# Several functions in one slot.


async def three(bench: PlugBench) -> list[str]:
    return await bench.plug_kinds(("f0", bench.disk()), ("f1", RNG), ("f2", NIC))


async def test_function_0_comes_last_and_the_agent_gets_the_whole_batch(bench: PlugBench) -> None:
    """A slot comes alive with its function 0 (PCI Express, and QEMU's own rule)."""
    assert await three(bench) == ["10/00", "10/00.1", "10/00.2"]
    adds = [bench.qemu.devices[name] for name in ("dev-f2", "dev-f1", "dev-f0")]
    assert list(bench.qemu.devices) == ["dev-f2", "dev-f1", "dev-f0"]
    assert [each["addr"] for each in adds] == ["00.2", "00.1", "00.0"]
    assert all(each["multifunction"] is True for each in adds)
    assert bench.guest.calls == ["attach f0", "attach f1", "attach f2"]
    assert bench.states() == {"f0": "plugged", "f1": "plugged", "f2": "plugged"}


async def test_all_functions_go_with_one_request(bench: PlugBench) -> None:
    """A second one for the same slot would take the first back (attention button)."""
    await three(bench)
    bench.guest.calls.clear()
    await bench.plugger.unplug("f1", LIMIT)
    assert bench.guest.calls == [
        *("prepare f0", "prepare f1", "prepare f2"),
        *("complete f0", "complete f1", "complete f2"),
    ]
    assert bench.qemu.commands.count("device_del") == 1
    bench.assert_untouched()


@pytest.mark.parametrize(
    "step",
    [
        *("blockdev-add back1", "object-add back2", "netdev_add back3"),
        *("device_add dev-f2", "device_add dev-f1", "device_add dev-f0"),
    ],
)
async def test_a_failure_at_any_step_undoes_the_steps_before(bench: PlugBench, step: str) -> None:
    bench.qemu.refuse[step] = "no"
    with refused(Reason.QEMU_REFUSED):
        await three(bench)
    bench.assert_untouched()


async def test_a_batch_that_the_agent_refuses_is_undone(bench: PlugBench) -> None:
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    bench.guest.refuse["attach"] = refusal(code, "DEVICE_NOT_READY")
    with refused(Reason.GUEST_REFUSED):
        await three(bench)
    bench.assert_untouched()


async def test_a_used_id_in_a_batch_changes_nothing(bench: PlugBench) -> None:
    await bench.plug("f2")
    with refused(Reason.ID_IN_USE):
        await three(bench)
    assert bench.states() == {"f2": "plugged"}
    assert len(bench.ports.free) == 1
    with refused(Reason.BAD_FIELD):
        await bench.plug_kinds(("a", RNG), ("a", RNG))


async def test_one_that_is_still_in_use_keeps_all(bench: PlugBench) -> None:
    """Those that were prepared before it are taken back."""
    await three(bench)
    used = refusal(grpc.StatusCode.FAILED_PRECONDITION, "STILL_IN_USE")
    bench.guest.refuse["prepare f1"] = used
    with refused(Reason.GUEST_REFUSED):
        await bench.plugger.unplug("f0", LIMIT)
    assert bench.guest.calls[-1] == "cancel f0"
    assert bench.guest.leaving == set()
    assert "device_del" not in bench.qemu.commands
    assert bench.states() == {"f0": "plugged", "f1": "plugged", "f2": "plugged"}


async def test_the_slot_is_taken_until_its_last_function_is_gone(bench: PlugBench) -> None:
    await three(bench)
    bench.qemu.lets_go = False
    with refused(Reason.OPERATION_TIMED_OUT):
        await bench.plugger.unplug("f0", 0.05)
    bench.qemu.release("dev-f0")
    bench.qemu.release("dev-f2")
    await bench.until_idle()
    assert set(bench.states().values()) == {"leaving"}
    assert bench.qemu.nodes
    assert len(bench.ports.free) == 1
    bench.qemu.release("dev-f1")
    await bench.qemu.until("netdev_del")
    await bench.until_idle()
    bench.assert_untouched()


async def test_a_slot_that_the_guest_gives_up_by_itself_is_forgotten(bench: PlugBench) -> None:
    await three(bench)
    for name in ("dev-f0", "dev-f1", "dev-f2"):
        bench.qemu.release(name)
    await bench.qemu.until("netdev_del")
    await bench.until_idle()
    bench.assert_untouched()


async def test_a_slot_that_was_removed_while_it_came_is_plugged_once_more(bench: PlugBench) -> None:
    bench.qemu.drops = 1
    assert await three(bench) == ["10/00", "10/00.1", "10/00.2"]
    assert bench.qemu.commands.count("blockdev-add") == 1
    assert list(bench.qemu.devices) == ["dev-f2", "dev-f1", "dev-f0"]


# Ports.


async def test_a_port_by_its_name(bench: PlugBench) -> None:
    assert await bench.plug_kinds(("a", RNG), port="port1") == ["10.1/00"]
    with refused(Reason.PORT_IN_USE):
        await bench.plug_kinds(("b", RNG), port="port1")
    with refused(Reason.UNKNOWN_PORT):
        await bench.plug_kinds(("b", RNG), port="port9")
    with refused(Reason.BAD_FIELD):
        await bench.plug_kinds(("b", DIMM), port="port0")


async def test_a_display_that_qemu_holds_on_to_spends_its_port(bench: PlugBench) -> None:
    """QEMU 7.2 never tells that it is gone, and ends itself when another comes there."""
    bench.qemu.silent.add("bochs-display")
    for path in ("10/00", "10.1/00"):
        assert await bench.plug_kinds(("g", {"gpu": host_pb2.Gpu()})) == [path]
        await bench.plugger.unplug("g", LIMIT)
    with pytest.raises(ShimError) as caught:
        await bench.plug_kinds(("g", {"gpu": host_pb2.Gpu()}))
    assert caught.value.reason is Reason.PORT_POOL_EMPTY
    assert "QEMU still holds displays that were in port0, port1" in caught.value.message
    assert "detach" not in caught.value.hint
    assert await bench.plug_kinds(("r", RNG)) == ["10/00"]


async def test_a_display_that_went_by_itself_spends_its_port_too(bench: PlugBench) -> None:
    bench.qemu.silent.add("bochs-display")
    await bench.plug_kinds(("g", {"gpu": host_pb2.Gpu()}))
    bench.qemu.release("dev-g")
    await bench.plugger.unplug("g", LIMIT)
    assert await bench.plug_kinds(("g", {"gpu": host_pb2.Gpu()})) == ["10.1/00"]


# What can't come or go.


async def test_what_qemu_can_not_plug_is_not_tried(bench: PlugBench) -> None:
    gpu = {"gpu": host_pb2.Gpu(model=host_pb2.GPU_MODEL_VIRTIO)}
    with refused(Reason.NOT_PLUGGABLE):
        await bench.plug_kinds(("g", gpu))
    assert bench.qemu.commands == []
    bench.assert_untouched()


async def test_what_this_qemu_does_not_have_is_told_as_that(bench: PlugBench) -> None:
    igb = {"nic": host_pb2.Nic(model=host_pb2.NIC_MODEL_IGB)}
    with refused(Reason.QEMU_TOO_OLD):
        await bench.plug_kinds(("n", igb))
    bench.assert_untouched()
    bench.qemu.types.add("igb")
    assert await bench.plug_kinds(("n", igb)) == ["10/00"]


async def test_persistent_memory_is_never_asked_to_go(bench: PlugBench, tmp_path: Path) -> None:
    """Its volumes are unmounted, its container is deleted; neither side tries to remove it."""
    (tmp_path / "pmem").write_bytes(bytes(2 * MIB))
    await bench.plug_kinds(("p", {"pmem": host_pb2.Pmem(file=str(tmp_path / "pmem"))}))
    bench.guest.calls.clear()
    with refused(Reason.NOT_REMOVABLE):
        await bench.plugger.unplug("p", LIMIT)
    assert bench.guest.calls == []
    assert "device_del" not in bench.qemu.commands
    assert bench.states() == {"p": "plugged"}


async def test_persistent_memory_that_did_not_come_stays_and_is_told(
    bench: PlugBench, tmp_path: Path
) -> None:
    (tmp_path / "pmem").write_bytes(bytes(2 * MIB))
    late = refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "DEVICE_NOT_READY")
    bench.guest.refuse["attach"] = late
    bench.qemu.refuse["device_del"] = "virtio based memory devices cannot be unplugged."
    with pytest.raises(ShimError, match="it stays plugged in"):
        await bench.plug_kinds(("p", {"pmem": host_pb2.Pmem(file=str(tmp_path / "pmem"))}))
    assert bench.states() == {"p": "plugged"}


async def test_nvdimms_are_asked_for_by_the_guests_numbers(
    bench: PlugBench, tmp_path: Path
) -> None:
    """The kernel numbers persistent memory of both kinds as it comes."""
    (tmp_path / "pmem").touch()
    with (tmp_path / "pmem").open("r+b") as file:
        file.truncate(128 * MIB)
    pmem = {"pmem": host_pb2.Pmem(file=str(tmp_path / "pmem"))}
    model = host_pb2.PMEM_MODEL_NVDIMM
    nvdimm = {"pmem": host_pb2.Pmem(file=str(tmp_path / "pmem"), model=model)}
    await bench.plug_kinds(("p0", pmem))
    await asyncio.gather(bench.plug_kinds(("p1", nvdimm)), bench.plug_kinds(("p2", nvdimm)))
    assert [each.address.path for each in bench.guest.asked[1:]] == ["/dev/pmem1", "/dev/pmem2"]


# Units of a controller.


async def test_a_unit_goes_to_its_controller_and_is_asked_for_by_its_address(
    bench: PlugBench,
) -> None:
    await bench.plug_kinds(("hba", CONTROLLER))
    await bench.plug_kinds(("lun1", scsi(bench, target=2, lun=1)))
    assert bench.qemu.devices["dev-lun1"]["bus"] == "dev-hba.0"
    address = bench.guest.asked[-1].address.scsi
    assert (address.adapter_pci_path, address.target, address.lun) == ("10/00", 2, 1)
    assert not address.HasField("host")
    with refused(Reason.ADDRESS_IN_USE):
        await bench.plug_kinds(("other", scsi(bench, target=2, lun=1)))
    await bench.plug_kinds(("lun10", scsi(bench, target=2, lun=10)))
    await bench.plugger.unplug("lun1", LIMIT)
    assert bench.states() == {"hba": "plugged", "lun10": "plugged"}


async def test_a_controller_with_units_stays_and_names_them(bench: PlugBench) -> None:
    await bench.plug_kinds(("hba", CONTROLLER))
    await bench.plug_kinds(("lun1", scsi(bench, lun=1)))
    with pytest.raises(ShimError, match="lun1") as caught:
        await bench.plugger.unplug("hba", LIMIT)
    assert caught.value.reason is Reason.STILL_IN_USE
    await bench.plugger.unplug("lun1", LIMIT)
    await bench.plugger.unplug("hba", LIMIT)
    bench.assert_untouched()


async def test_a_unit_without_its_controller_is_refused(bench: PlugBench) -> None:
    with refused(Reason.UNKNOWN_CONTROLLER):
        await bench.plug_kinds(("lun1", scsi(bench, lun=1)))
    await bench.plug("hba")
    with refused(Reason.UNKNOWN_CONTROLLER):
        await bench.plug_kinds(("lun1", scsi(bench, lun=1)))


# Memory and CPUs.


async def test_memory_is_asked_for_as_a_total(bench: PlugBench) -> None:
    """What the guest's kernel brings online by itself counts too."""
    usable = await bench.plugger.plug([bench.wanted("m", **DIMM)], LIMIT)
    assert bench.guest.wanted == [(0, (512 + 128) * MIB)]
    assert usable.online is not None
    assert usable.online.memory_online == 640 * MIB
    assert usable.attached[0].device.id == "m"
    await bench.plugger.unplug("m", LIMIT)
    bench.assert_untouched()


@pytest.mark.parametrize("model", list(host_pb2.MemoryModel.values())[1:])
async def test_memory_for_which_there_is_no_room_left_never_reaches_qemu(
    bench: PlugBench, model: host_pb2.MemoryModel.ValueType
) -> None:
    """Of 3 GiB of room one is taken; QEMU would get the memory from the host first."""
    await bench.plug_kinds(("m", {"memory": host_pb2.Memory(size=1 << 30)}))
    bench.qemu.commands.clear()
    more = host_pb2.Memory(size=(2 << 30) + 128 * MIB, model=model)
    with pytest.raises(ShimError) as caught:
        await bench.plug_kinds(("n", {"memory": more}))
    assert caught.value.reason is Reason.MEMORY_EXHAUSTED
    assert caught.value.message.endswith("memory, only for 2 GiB")
    assert bench.qemu.commands == []
    await bench.plug_kinds(("n", {"memory": host_pb2.Memory(size=2 << 30)}))


async def test_what_was_plugged_counts_as_the_vms_own(bench: PlugBench) -> None:
    await bench.plug_kinds(("m", DIMM))
    await bench.plug_kinds(("r", RNG))
    assert bench.table.growth == Growth(memory=128 * MIB)
    bench.qemu.cpus = [{"type": "cpu", "vcpus-count": 1, "props": {"socket-id": 1}}]
    await bench.plug_kinds(("c", {"cpus": host_pb2.Cpus(count=1)}))
    assert bench.table.growth == Growth(cpus=1, memory=128 * MIB)
    await bench.plugger.unplug("m", LIMIT)
    assert bench.table.growth == Growth(cpus=1)


async def test_what_is_coming_is_listed_as_that(bench: PlugBench) -> None:
    bench.guest.holds.clear()
    plug = asyncio.create_task(bench.plug_kinds(("r", RNG)))
    await bench.qemu.until("device_add")
    assert bench.states() == {"r": "plugging"}
    bench.guest.holds.set()
    await plug


async def test_plugs_of_memory_come_one_after_the_other(bench: PlugBench) -> None:
    await asyncio.gather(*(bench.plug_kinds((f"m{n}", DIMM)) for n in range(3)))
    assert [memory // MIB for _, memory in bench.guest.wanted] == [640, 768, 896]


@pytest.mark.parametrize(
    "event",
    [
        ("MEM_UNPLUG_ERROR", {"device": "dev-m", "msg": "busy"}),
        (
            "ACPI_DEVICE_OST",
            {"info": {"device": "dev-m", "source": 3, "status": 0x82, "slot": "0"}},
        ),
    ],
)
async def test_memory_in_use_is_the_guests_refusal(
    bench: PlugBench, event: tuple[str, dict[str, Any]]
) -> None:
    await bench.plug_kinds(("m", DIMM))
    bench.qemu.lets_go = False
    unplug = asyncio.create_task(bench.plugger.unplug("m", LIMIT))
    await bench.qemu.until("device_del")
    bench.qemu.event(*event)
    with pytest.raises(ShimError, match="busy") as caught:
        await unplug
    assert caught.value.reason is Reason.GUEST_REFUSED
    assert bench.states() == {"m": "plugged"}


def places(count: int) -> list[dict[str, Any]]:
    """As QEMU lists them: the highest first, taken ones with their object."""
    free = [
        {
            "type": "host-x86_64-cpu",
            "vcpus-count": 1,
            "props": {"socket-id": number, "core-id": 0, "thread-id": 0},
        }
        for number in reversed(range(count))
    ]
    free[-1]["qom-path"] = "/machine/unattached/device[0]"
    return free


async def test_cpus_come_from_the_lowest_place_on_and_go_together(bench: PlugBench) -> None:
    bench.qemu.cpus = places(4)
    await bench.plug_kinds(("c", {"cpus": host_pb2.Cpus(count=2)}))
    assert [each["socket-id"] for each in bench.qemu.devices.values()] == [1, 2]
    assert bench.guest.wanted == [(3, 0)]
    await bench.plugger.unplug("c", LIMIT)
    assert bench.qemu.commands.count("device_del") == 2
    bench.assert_untouched()


async def test_more_cpus_than_qemu_has_places_for(bench: PlugBench) -> None:
    bench.qemu.cpus = places(2)
    with refused(Reason.CPUS_EXHAUSTED):
        await bench.plug_kinds(("c", {"cpus": host_pb2.Cpus(count=2)}))
    bench.assert_untouched()


async def test_a_cpu_that_the_guest_keeps_stays_and_the_other_goes(bench: PlugBench) -> None:
    bench.qemu.cpus = places(3)
    await bench.plug_kinds(("c", {"cpus": host_pb2.Cpus(count=2)}))
    bench.qemu.lets_go = False
    unplug = asyncio.create_task(bench.plugger.unplug("c", LIMIT))
    await bench.qemu.until("device_del", 2)
    bench.qemu.release("part-c-0")
    bench.qemu.event("ACPI_DEVICE_OST", {"info": {"device": "part-c-1", "source": 3, "status": 1}})
    with refused(Reason.GUEST_REFUSED):
        await unplug
    assert bench.states() == {"c": "plugged"}
    bench.qemu.lets_go = True
    await bench.plugger.unplug("c", LIMIT)
    bench.assert_untouched()


# What the caller wants the agent to make of it.


async def test_a_callers_mode_goes_to_the_agent_with_our_id_and_place(bench: PlugBench) -> None:
    wanted = bench.wanted("n", **NIC)
    vfio = devices_pb2.Device(vfio=devices_pb2.VfioDevice(mode=devices_pb2.VFIO_MODE_VFIO))
    asked = type(wanted)(id="n", hardware=wanted.hardware, guest=vfio)
    await bench.plugger.plug([asked], LIMIT)
    (device,) = bench.guest.asked
    assert (device.id, device.address.pci_path, device.WhichOneof("kind")) == ("n", "10/00", "vfio")

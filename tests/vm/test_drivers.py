"""Drivers without udev: modules of cold devices, of plugged ones, of file systems."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.shim.client import VmSpec
from innkeeper.v1 import devices_pb2 as devices
from tests.vm.guest import Guest, booted, reason

pytestmark = [pytest.mark.vm, pytest.mark.devices]

# The chip set's ISA bridge on q35; no kernel of ours has a driver for it.
ISA_BRIDGE = "1f"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    """A VM that is asked for two modules, one of which there is not."""
    spec = VmSpec(
        name="drivers",
        image=f"{image}/",
        transport="serial",
        ports=1,
        cmdline=("innkeeper.modules=loop,no_such_module",),
    )
    async with booted(spec) as running:
        yield running


async def _loaded(guest: Guest) -> set[str]:
    return {line.split()[0] for line in (await guest.probe("cat /proc/modules")).splitlines()}


async def test_cold_devices_have_their_drivers(machine: Guest) -> None:
    """The host's virtio-rng is there before anything listens; its driver is a module."""
    assert {"virtio_rng", "loop"} <= await _loaded(machine)
    driver = await machine.probe(
        "for d in /sys/bus/virtio/devices/*; do"
        "  [ $(cat $d/device) != 0x0004 ] || basename $(readlink $d/driver);"
        " done; cat /sys/class/misc/hw_random/rng_current"
    )
    assert driver.split() == ["virtio_rng", "virtio_rng.0"]


async def test_what_is_asked_for_and_missing_is_said_and_nothing_else(machine: Guest) -> None:
    """Most devices have no module, as the bridges of the chip set: that is no warning."""
    console = (machine.vm.directory / "console.log").read_text(errors="replace")
    warnings = [line for line in console.splitlines() if "warning: " in line]
    assert len(warnings) == 1
    assert "Module no_such_module not found" in warnings[0]


async def test_a_plugged_device_has_its_module_loaded(machine: Guest) -> None:
    """The slot is emptied and found again with the module away: only the agent can load it."""
    text = await machine.probe(
        "for d in /sys/bus/virtio/devices/*; do [ $(cat $d/device) != 0x0004 ] || rng=$d; done;"
        " pci=$(dirname $(readlink -f $rng));"
        " rmmod virtio_rng; grep -c '^virtio_rng ' /proc/modules;"
        " echo 1 >$pci/remove; [ ! -e $pci ] && echo removed;"
        " echo 1 >/sys/bus/pci/rescan;"
        " tries=0; until [ -e $pci/virtio*/driver ]; do"
        "  tries=$((tries + 1)); [ $tries -lt 200 ] || break; sleep 0.1;"
        " done; basename $(readlink $pci/virtio*/driver)"
    )
    assert text.split() == ["0", "removed", "virtio_rng"]


async def test_a_device_without_a_module_fails_with_that_as_evidence(machine: Guest) -> None:
    wanted = devices.Device(
        id="isa",
        address=devices.DeviceAddress(pci_path=ISA_BRIDGE),
        timeout_seconds=3,
        block=devices.BlockDevice(),
    )
    with pytest.raises(aio.AioRpcError) as caught:
        await machine.devices.Attach(devices.AttachDevicesRequest(devices=[wanted]))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert reason(caught.value) == "DEVICE_NOT_READY"
    # Intel's LPC controller of the ICH9, which q35 has.
    assert "no driver for 0000:00:1f.0: no module matches its alias pci:v00008086d00002918" in (
        caught.value.details() or ""
    )


async def test_mounting_loads_the_file_system(machine: Guest) -> None:
    """mount(2) has the kernel call modprobe itself, in the guest's root and not the initrd's."""
    assert "erofs" not in await _loaded(machine)
    text = await machine.probe("mount -t erofs none /mnt 2>&1 || true")
    assert "No such device" not in text, "ENODEV: the kernel has no such file system"
    assert "erofs" in await _loaded(machine)


def _with_modules(*modules: str) -> devices.AttachDevicesRequest:
    address = devices.DeviceAddress(path="/dev/vda")
    device = devices.Device(id="root", address=address, load_modules=modules)
    device.block.SetInParent()
    return devices.AttachDevicesRequest(devices=[device])


async def test_modules_that_a_request_names_are_loaded_first(machine: Guest) -> None:
    """A driver without an alias for the device, as NVIDIA's for shared memory, is named."""
    assert "dummy" not in await _loaded(machine)
    await machine.devices.Attach(_with_modules("dummy"))
    assert "dummy" in await _loaded(machine)
    release = devices.DetachDeviceRequest(id="root", phase=devices.DETACH_PHASE_RELEASE)
    await machine.devices.Detach(release)


async def test_a_module_that_there_is_not_is_refused_by_name(machine: Guest) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await machine.devices.Attach(_with_modules("dummy", "no_such_module"))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert reason(caught.value) == "MODULE_REFUSED"
    assert "no_such_module" in (caught.value.details() or "")
    assert list((await machine.devices.List(devices.ListDevicesRequest())).devices) == []

"""The fake kernel of the VFIO tests does what the real one does, write by write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from tests.fakes.vfio_sysfs import VfioGuest, vfio_guest

pytestmark = [pytest.mark.unit, pytest.mark.devices]

CARD = "0000:01:00.0"
BUS = "bus/pci"


async def write(guest: VfioGuest, path: str, text: str) -> None:
    await guest.files.write_text(guest.sysfs.sys / path, f"{text}\n", Deadline.after(1))


async def test_an_override_decides_only_at_the_next_look(tmp_path: Path) -> None:
    """driver_override alone unbinds and binds nothing (sysfs-bus-pci)."""
    async with vfio_guest(tmp_path) as guest:
        sysfs = guest.sysfs
        sysfs.card(sysfs.port_with_slot(), CARD, group=7)
        sysfs.load_vfio()
        await write(guest, f"{BUS}/devices/{CARD}/driver_override", "vfio-pci")
        assert sysfs.state(CARD) == {CARD: ("virtio-pci", "vfio-pci")}
        await write(guest, f"{BUS}/drivers_probe", CARD)
        assert sysfs.bound(CARD) == "virtio-pci", "one with a driver is not looked at"
        await write(guest, f"{BUS}/drivers/virtio-pci/unbind", CARD)
        assert sysfs.bound(CARD) == ""
        await write(guest, f"{BUS}/drivers_probe", CARD)
        assert sysfs.bound(CARD) == "vfio-pci"
        assert (sysfs.sys / "devices/virtual/vfio/7/dev").exists()
        await write(guest, f"{BUS}/devices/{CARD}/driver_override", "")
        assert sysfs.state(CARD) == {CARD: ("vfio-pci", "(null)")}
        await write(guest, f"{BUS}/drivers/vfio-pci/unbind", CARD)
        assert not (sysfs.sys / "devices/virtual/vfio/7").exists()
        await write(guest, f"{BUS}/drivers_probe", CARD)
        assert sysfs.bound(CARD) == "virtio-pci"


async def test_unbinding_another_driver_is_refused(tmp_path: Path) -> None:
    """unbind_store answers ENODEV."""
    async with vfio_guest(tmp_path) as guest:
        guest.sysfs.card(guest.sysfs.port_with_slot(), CARD, group=7)
        with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
            await write(guest, f"{BUS}/drivers/pci-stub/unbind", CARD)


async def test_a_group_node_stays_with_its_last_function(tmp_path: Path) -> None:
    async with vfio_guest(tmp_path) as guest:
        sysfs, other = guest.sysfs, "0000:01:00.1"
        port = sysfs.port_with_slot()
        for bdf in (CARD, other):
            sysfs.card(port, bdf, group=7, driver="")
            await write(guest, f"{BUS}/devices/{bdf}/driver_override", "vfio-pci")
        sysfs.load_vfio()
        for bdf in (CARD, other):
            await write(guest, f"{BUS}/drivers_probe", bdf)
        node = sysfs.sys / "devices/virtual/vfio/7"
        await write(guest, f"{BUS}/drivers/vfio-pci/unbind", CARD)
        assert node.exists()
        await write(guest, f"{BUS}/drivers/vfio-pci/unbind", other)
        assert not node.exists()


async def test_without_an_iommu_the_group_comes_with_the_driver(tmp_path: Path) -> None:
    async with vfio_guest(tmp_path) as guest:
        sysfs = guest.sysfs
        card = sysfs.card(sysfs.port_with_slot(), CARD, group=None, driver="")
        sysfs.load_vfio(no_iommu=True)
        await write(guest, f"{BUS}/devices/{CARD}/driver_override", "vfio-pci")
        await write(guest, f"{BUS}/drivers_probe", CARD)
        group = (card / "iommu_group").readlink().name
        assert (sysfs.sys / f"devices/virtual/vfio/noiommu-{group}/dev").exists()
        await write(guest, f"{BUS}/drivers/vfio-pci/unbind", CARD)
        assert not (card / "iommu_group").is_symlink()

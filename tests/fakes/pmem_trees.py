"""Persistent memory in a fake sysfs, as Linux 6.12 has it."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.sysfs import FakeSysfs

NFIT = "devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00"


def namespace(sysfs: FakeSysfs, owner: Path, bus: int = 0) -> Path:
    """The namespace of a region below a virtio device, or below ACPI's root of NVDIMMs."""
    region = owner / f"ndbus{bus}/region{bus}"
    for seed in (f"btt{bus}.0", f"pfn{bus}.0", f"dax{bus}.0"):
        sysfs.link(region / seed / "subsystem", "../../../../../../bus/nd")
    path = region / f"namespace{bus}.0"
    sysfs.link(path / "subsystem", "../../../../../../../bus/nd")
    sysfs.link(path / "driver", "../../../../../../../bus/nd/drivers/nd_pmem")
    return path


def disk(
    sysfs: FakeSysfs, owner: Path, name: str = "pmem0", *, size: int, dax: bool = True
) -> Path:
    dev = f"259:{name.removeprefix('pmem')}"
    path = sysfs.disk(owner / "block", name, dev=dev, size=size)
    sysfs.write(path / "queue/dax", str(int(dax)))
    sysfs.link(sysfs.sys / "dev/block" / dev, str(path))
    return path


def mapped(sysfs: FakeSysfs, owner: Path, *, size: int, driver: str | None = "device_dax") -> Path:
    """A device-dax in the seed of its region: a character device on a bus of its own."""
    name = "dax0.0"
    path = owner.parent / name / name
    sysfs.write(path / "dev", "252:3")
    sysfs.write(path / "size", str(size))
    sysfs.write(path / "uevent", f"MAJOR=252\nMINOR=3\nDEVNAME={name}")
    sysfs.write(path / "modalias", "dax:t0")
    sysfs.link(path / "subsystem", "../../../../../../../../../bus/dax")
    if driver is not None:
        sysfs.link(path / "driver", f"../../../../../../../../../bus/dax/drivers/{driver}")
    sysfs.link(sysfs.sys / "dev/char/252:3", str(path))
    sysfs.node(name, "252:3", "c")
    return path


def virtio_pmem(sysfs: FakeSysfs, port: Path, bdf: str) -> Path:
    """A virtio-pmem function with its driver; the virtio device."""
    function = sysfs.function(port, bdf, pci_class="0x058000", driver="virtio-pci")
    return sysfs.virtio(function, "virtio2", driver="virtio_pmem")

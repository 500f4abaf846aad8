"""FPGA cards as their drivers show them in sysfs.

Layouts are those of drivers/fpga/dfl.c, dfl-fme-main.c and dfl-afu-main.c, of OPAE's
intel-fpga-pci before it, and of Xilinx's xclmgmt and xocl.
"""

from __future__ import annotations

from pathlib import Path

from tests.fakes.gpu_trees import drm, put
from tests.fakes.sysfs import FakeSysfs

ACCELERATOR = "0x120000"
AFU = "d8424dc4a4a3c413f89e433683f9040b"
OTHER_AFU = "00000000000000000000000000000001"


def card(
    sysfs: FakeSysfs,
    port: Path,
    bdf: str,
    *,
    ids: tuple[str, str] = ("8086", "09c4"),
    driver: str | None = "dfl-pci",
) -> Path:
    """A function with a driver whose probe is over."""
    path = sysfs.function(port, bdf, pci_class=ACCELERATOR, driver=driver)
    sysfs.write(path / "vendor", f"0x{ids[0]}")
    sysfs.write(path / "device", f"0x{ids[1]}")
    sysfs.write(path / "power/control", "auto")
    return path


def device(
    sysfs: FakeSysfs,
    path: Path,
    dev: str,
    *,
    subsystem: str = "platform",
    driver: str | None = None,
    devname: str = "",
    node: bool = True,
) -> Path:
    """A device with a node."""
    major, _, minor = dev.partition(":")
    name = devname or path.name
    sysfs.write(path / "dev", dev)
    sysfs.write(path / "uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={name}")
    sysfs.link(path / "subsystem", f"../../../../../bus/{subsystem}")
    if driver:
        sysfs.link(path / "driver", f"../../../../../bus/{subsystem}/drivers/{driver}")
    if node:
        put(sysfs, name, dev)
    return path


def region(sysfs: FakeSysfs, function: Path, number: int = 0) -> Path:
    path = function / f"fpga_region/region{number}"
    _class_device(sysfs, path, "fpga_region")
    return path


def dfl_engine(
    sysfs: FakeSysfs, parent: Path, number: int = 0, *, state: str = "operating"
) -> Path:
    """With its manager, and the region that it programs, inside the region of the card."""
    path = parent / f"dfl-fme.{number}"
    device(sysfs, path, f"240:{number}", driver="dfl-fme")
    sysfs.write(path / "ports_num", "2")
    manager = path / f"dfl-fme-mgr.{number}/fpga_manager/fpga{number}"
    sysfs.write(manager / "name", "DFL FME FPGA Manager")
    sysfs.write(manager / "state", state)
    _class_device(sysfs, manager, "fpga_manager")
    _class_device(
        sysfs, path / f"dfl-fme-region.{number}/fpga_region/region{number + 5}", "fpga_region"
    )
    return path


def dfl_port(
    sysfs: FakeSysfs,
    parent: Path,
    number: int = 0,
    *,
    afu: str | None = AFU,
    driver: str | None = "dfl-port",
) -> Path:
    path = parent / f"dfl-port.{number}"
    device(sysfs, path, f"241:{number}", driver=driver)
    sysfs.write(path / "modalias", "platform:dfl-port")
    sysfs.write(path / "id", str(number))
    if afu is not None:
        sysfs.write(path / "afu_id", afu)
    return path


def opae(sysfs: FakeSysfs, port: Path, bdf: str) -> Path:
    """The driver before DFL went upstream."""
    path = card(sysfs, port, bdf, ids=("8086", "bcc0"), driver="intel-fpga-pci")
    top = path / "fpga/intel-fpga-dev.0"
    device(sysfs, top / "intel-fpga-fme.0", "242:0", driver="intel-fpga-fme")
    afu = device(sysfs, top / "intel-fpga-port.0", "243:0", driver="intel-fpga-afu")
    sysfs.write(afu / "afu_id", AFU)
    return path


def xilinx_management(
    sysfs: FakeSysfs, port: Path, bdf: str, *, instance: int = 259, node: bool = True
) -> Path:
    path = card(sysfs, port, bdf, ids=("10ee", "5000"), driver="xclmgmt")
    sysfs.write(path / "instance", str(instance))
    name = f"xclmgmt{instance}"
    dev = f"244:{instance}"
    device(sysfs, path / "xrt_mgmt" / name, dev, subsystem="xrt_mgmt", node=node)
    return path


def xilinx_user(sysfs: FakeSysfs, port: Path, bdf: str, *, render: int | None = 128) -> Path:
    path = card(sysfs, port, bdf, ids=("10ee", "5001"), driver="xocl")
    name = "dma.qdma.u256.0"
    device(
        sysfs,
        path / "dma.qdma.u.256/xrt_user" / name,
        "245:3",
        subsystem="xrt_user",
        devname=f"xfpga/{name}",
    )
    if render is not None:
        drm(sysfs, path, card=None, render=render)
    return path


def _class_device(sysfs: FakeSysfs, path: Path, kind: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    sysfs.link(path / "subsystem", f"../../../../../class/{kind}")
    sysfs.link(sysfs.sys / f"class/{kind}" / path.name, str(path))

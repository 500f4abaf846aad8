"""GPUs as their drivers show them in sysfs and proc.

Layouts are those of Documentation/gpu and of the drivers: drm_sysfs.c, nv-procfs.c and
nv-caps.c of NVIDIA's open kernel modules, kfd_topology.c and amdgpu_xcp_drv.c of amdgpu.
"""

from __future__ import annotations

from pathlib import Path

from agent.handlers.devices.gpus.parts import CharNode
from tests.fakes.sysfs import FakeSysfs

VGA = "0x030000"
COMPUTE = "0x030200"
SWITCH = "0x068000"

DEVICES = """Character devices:
  1 mem
 10 misc
195 {nvidia}
{more}226 drm

Block devices:
254 virtblk
259 blkext
"""

PARAMS = """ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: {modify}
DeviceFileUID: {uid}
DeviceFileGID: {gid}
DeviceFileMode: {mode}
CreateImexChannel0: {imex}
RegistryDwords: ""
RmMsg: ""
ExcludedGpus: ""
"""

INFORMATION = """Model: \t\t {model}
IRQ:   \t\t 42
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.99.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {bdf}
Device Minor: \t {minor}
GPU Firmware: \t 570.124.06
GPU Excluded:\t {excluded}
"""


class FakeNodes:
    """Makes nodes in the tree's table: real ones need root."""

    def __init__(self, sysfs: FakeSysfs) -> None:
        self._sysfs = sysfs
        self.made: list[CharNode] = []
        self.refusal: OSError | None = None

    def make(self, node: CharNode) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.made.append(node)
        put(self._sysfs, str(node.path.relative_to(self._sysfs.roots.dev)), node.content[2:])

    def remove(self, path: Path) -> None:
        self._sysfs.nodes.pop(path, None)
        path.unlink(missing_ok=True)


def put(sysfs: FakeSysfs, name: str, numbers: str, kind: str = "c") -> None:
    """A node in /dev: in the table of numbers, and as a file for links to lead to."""
    path = sysfs.roots.dev / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    sysfs.node(name, numbers, kind)


def there(sysfs: FakeSysfs) -> set[str]:
    """The names in /dev, of nodes and of links."""
    dev = sysfs.roots.dev
    return {str(path.relative_to(dev)) for path in dev.rglob("*") if not path.is_dir()}


def gpu(
    sysfs: FakeSysfs,
    port: Path,
    bdf: str,
    *,
    ids: tuple[str, str] = ("1234", "1111"),
    pci_class: str = VGA,
    driver: str | None = "bochs-drm",
) -> Path:
    """A function with a driver whose probe is over; DRM devices come with `drm`."""
    path = sysfs.function(port, bdf, pci_class=pci_class, driver=driver)
    sysfs.write(path / "vendor", f"0x{ids[0]}")
    sysfs.write(path / "device", f"0x{ids[1]}")
    sysfs.write(path / "power/control", "auto")
    return path


def drm(
    sysfs: FakeSysfs,
    owner: Path,
    *,
    card: int | None = 0,
    render: int | None = None,
    node: bool = True,
) -> None:
    """`owner`'s DRM device; the connector has a directory like a device, and no node."""
    if render is not None:
        _class_device(sysfs, owner, "drm", f"renderD{render}", f"226:{render}", node=node)
    if card is not None:
        path = _class_device(sysfs, owner, "drm", f"card{card}", f"226:{card}", node=node)
        connector = path / f"card{card}-Virtual-1"
        sysfs.write(connector / "status", "connected")
        sysfs.link(connector / "subsystem", "../../../../../../class/drm")


def accel(sysfs: FakeSysfs, owner: Path, number: int = 0) -> None:
    _class_device(sysfs, owner, "accel", f"accel{number}", f"261:{number}", folder="accel")


def _class_device(
    sysfs: FakeSysfs,
    owner: Path,
    subsystem: str,
    name: str,
    dev: str,
    *,
    node: bool = True,
    folder: str = "dri",
) -> Path:
    path = owner / subsystem / name
    major, _, minor = dev.partition(":")
    sysfs.write(path / "dev", dev)
    sysfs.write(path / "uevent", f"MAJOR={major}\nMINOR={minor}\nDEVNAME={folder}/{name}")
    sysfs.link(path / "subsystem", f"../../../../../class/{subsystem}")
    sysfs.link(sysfs.sys / f"class/{subsystem}" / name, str(path))
    if node:
        put(sysfs, f"{folder}/{name}", dev)
    return path


def nvidia_driver(
    sysfs: FakeSysfs,
    *,
    name: str = "nvidia",
    majors: tuple[str, ...] = ("511 nvidia-uvm", "508 nvidia-caps"),
    modify: int = 1,
    owner: tuple[int, int] = (0, 0),
    mode: int = 0o666,
    imex: int = 0,
) -> None:
    """The module as it is loaded: /proc/devices and its parameters."""
    more = "".join(f"{line}\n" for line in majors)
    sysfs.write(sysfs.roots.proc / "devices", DEVICES.format(nvidia=name, more=more))
    sysfs.write(
        sysfs.roots.proc / "driver/nvidia/params",
        PARAMS.format(modify=modify, uid=owner[0], gid=owner[1], mode=mode, imex=imex),
    )


def nvidia_gpu(
    sysfs: FakeSysfs,
    port: Path,
    bdf: str,
    *,
    minor: int = 0,
    uuid: str = "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c",
    excluded: str = "No",
    model: str = "NVIDIA H100 PCIe",
) -> Path:
    path = gpu(sysfs, port, bdf, ids=("10de", "2331"), pci_class=COMPUTE, driver="nvidia")
    text = INFORMATION.format(model=model, uuid=uuid, bdf=bdf, minor=minor, excluded=excluded)
    sysfs.write(sysfs.roots.proc / "driver/nvidia/gpus" / bdf / "information", text)
    return path


def mig_instance(
    sysfs: FakeSysfs, gpu_minor: int, name: str, minor: int, mode: int = 0o444
) -> None:
    """`name` is "gi1" or "gi1/ci0"."""
    text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1"
    top = sysfs.roots.proc / f"driver/nvidia/capabilities/gpu{gpu_minor}/mig"
    sysfs.write(top / name / "access", text)


def nvswitch(sysfs: FakeSysfs, port: Path, bdf: str, *, minor: int, base: str) -> Path:
    """It holds its BAR under a name that has its minor (linux_nvswitch.c)."""
    path = gpu(sysfs, port, bdf, ids=("10de", "22a3"), pci_class=SWITCH, driver="nvidia-nvswitch")
    iomem = sysfs.roots.proc / "iomem"
    before = iomem.read_text() if iomem.exists() else "00001000-0009ffff : System RAM\n"
    span = f"{base}-{base[:-6]}ffffff"
    iomem.write_text(f"{before}  {span} : {bdf}\n    {span} : nvidia-nvswitch{minor}\n")
    sysfs.write(sysfs.roots.proc / "driver/nvidia-nvswitch/permissions", "DeviceFileMode: 438")
    return path


def amd_gpu(sysfs: FakeSysfs, port: Path, bdf: str, *, card: int = 0, render: int = 128) -> Path:
    path = gpu(sysfs, port, bdf, ids=("1002", "74a1"), pci_class="0x120000", driver="amdgpu")
    sysfs.write(path / "unique_id", "3f2a1b0c5d6e7f80")
    sysfs.write(path / "product_name", "AMD Instinct MI300X")
    drm(sysfs, path, card=card, render=render)
    return path


def kfd(sysfs: FakeSysfs, dev: str = "235:0") -> None:
    """The compute interface, one for all GPUs."""
    path = sysfs.sys / "devices/virtual/kfd/kfd"
    sysfs.write(path / "dev", dev)
    sysfs.write(path / "uevent", f"MAJOR={dev.split(':')[0]}\nMINOR=0\nDEVNAME=kfd")
    sysfs.link(path / "subsystem", "../../../../class/kfd")
    sysfs.link(sysfs.sys / "class/kfd/kfd", str(path))
    put(sysfs, "kfd", dev)


def kfd_node(
    sysfs: FakeSysfs, number: int, *, render: int, domain: int = 0, location: int = 0
) -> None:
    """One node of the topology; CPUs have no render node and location 0."""
    text = f"cpu_cores_count 0\ndomain {domain}\nlocation_id {location}\ndrm_render_minor {render}"
    top = sysfs.sys / "devices/virtual/kfd/kfd/topology/nodes"
    sysfs.write(top / str(number) / "properties", text)


def amd_partition(sysfs: FakeSysfs, number: int, *, card: int, render: int) -> None:
    """A further DRM device of a partitioned GPU: a platform device."""
    path = sysfs.sys / f"devices/platform/amdgpu_xcp_{number}"
    sysfs.link(path / "subsystem", "../../../bus/platform")
    drm(sysfs, path, card=card, render=render)

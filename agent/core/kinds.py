"""What a device of each class is asked to be, and what it became.

An expectation holds what a request says beyond the address; an unset member is
not checked. An info holds what the guest's kernel says. Both are saved with the
device, so their members are plain: texts, numbers, and tuples of texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockExpectation:
    """A disk, by serial number and size in bytes."""

    serial: str | None = None
    size: int | None = None


class VfioMode(StrEnum):
    """How a function is used: through vfio-pci, or by the guest's own driver."""

    VFIO = "vfio"
    GUEST_KERNEL = "guest-kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class VfioExpectation:
    """A function for user space drivers; `same_group_as` are ids of other devices."""

    mode: VfioMode = VfioMode.VFIO
    same_group_as: tuple[str, ...] = ()
    take_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NicExpectation:
    """A network interface, by MAC address (lower case, with colons)."""

    mac: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExpectation:
    """A GPU; `pci_id` is "vvvv:dddd" in lower-case hex."""

    pci_id: str | None = None
    driver: str | None = None
    render_node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FpgaExpectation:
    """An FPGA; AFU ids are 32 lower-case hex digits."""

    pci_id: str | None = None
    afu_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RngExpectation:
    """A random number generator, to be made the kernel's current source or not."""

    make_current: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PmemExpectation:
    """Persistent memory, by size in bytes."""

    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonExpectation:
    """Any other function; `nodes` is the least number of its nodes in /dev."""

    pci_id: str | None = None
    driver: str | None = None
    nodes: int = 0


Expectation: TypeAlias = (
    BlockExpectation
    | VfioExpectation
    | NicExpectation
    | GpuExpectation
    | FpgaExpectation
    | RngExpectation
    | PmemExpectation
    | CommonExpectation
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    """What the kernel says of a disk; sizes in bytes."""

    size: int
    logical_block_size: int
    read_only: bool
    model: str = ""
    serial: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VfioInfo:
    """A function's IOMMU group and nodes; `group` is -1 in guest-kernel mode without one."""

    mode: VfioMode
    group: int = -1
    cdev: str = ""
    no_iommu: bool = False
    former_driver: str = ""
    group_members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NicInfo:
    """An interface as it is now."""

    name: str
    mac: str
    mtu: int
    ifindex: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """A GPU's names and nodes; `minor` is that of the vendor's own node, -1 without one."""

    vendor: str
    model: str = ""
    minor: int = -1
    uuid: str = ""
    render_node: str = ""
    card_node: str = ""
    shared_nodes: tuple[str, ...] = ()
    mig_nodes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FpgaInfo:
    """An FPGA's engines, functions, regions and manager."""

    fme: str = ""
    ports: tuple[str, ...] = ()
    afu_ids: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    manager_name: str = ""
    manager_state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RngInfo:
    """A generator; `former` was the kernel's source before this one, "" when it still is."""

    name: str
    current: bool
    former: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PmemInfo:
    """Persistent memory; size in bytes."""

    size: int
    dax: bool
    removable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonInfo:
    """A function of no class of ours: its nodes say it all."""


Info: TypeAlias = (
    BlockInfo | VfioInfo | NicInfo | GpuInfo | FpgaInfo | RngInfo | PmemInfo | CommonInfo
)


@dataclass(frozen=True, slots=True)
class DriverName:
    """Devices.Reconfigure: another driver of the kernel, by its name in /sys/bus/pci/drivers."""

    name: str


@dataclass(frozen=True, slots=True)
class MigProfile:
    """Devices.Reconfigure: the GPU's instances, as nvidia-smi names a profile ("1g.10gb")."""

    name: str


Mode: TypeAlias = VfioMode | DriverName | MigProfile

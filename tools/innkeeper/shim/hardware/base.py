"""The words of hardware: what one kind of it has to know and to say.

A kind is a frozen dataclass, made from its message once and right from then on.
It names its backends in QEMU and their undo, the arguments of `device_add`, and
what the guest's agent is asked to make of it. It does nothing by itself: the
transaction is `plug.py`'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from innkeeper.shim.errors import Reason, ShimError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innkeeper.shim.disks import DiskFile
    from innkeeper.shim.qmp import Monitor, QemuRefusedError
    from innkeeper.v1 import devices_pb2

# Bytes of one memory block of a guest with less than 64 GiB on x86-64 (the
# kernel's MIN_MEMORY_BLOCK_SIZE): memory comes and goes in these.
MEMORY_BLOCK = 128 << 20


class Place(StrEnum):
    """Where a kind of hardware goes."""

    PORT = "port"
    """A PCI function in a port."""
    CONTROLLER = "controller"
    """A unit of a SCSI controller."""
    MACHINE = "machine"
    """The machine itself: sockets for memory and CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a kind has to know of its VM."""

    vm: str
    directory: Path = Path()
    """The VM's own, for sockets."""
    shared_memory: bool = False
    """Another process reads the guest's memory: all of it must be shareable."""
    max_memory: int = 0
    """Bytes that the guest's memory can grow to; 0: it can't."""
    room: int = 0
    """Bytes of it that are for memory that comes."""
    nvdimm: bool = False
    emulated: bool = False
    """There is no hypervisor below the guest (TCG)."""
    more_cpus: int = 0
    """CPUs that can be added in all."""
    iommu: bool = False
    """PCI functions are behind an IOMMU, and virtio ones must say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a function and its parts are called in QEMU.

    QEMU's ids begin with a letter, ours need not; its names of block nodes have
    31 characters, ours 64.
    """

    id: str
    number: int

    @property
    def device(self) -> str:
        return f"dev-{self.id}"

    @property
    def backend(self) -> str:
        return f"back{self.number}"

    def part(self, index: int) -> str:
        """For hardware that is several devices."""
        return f"part-{self.id}-{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Something in QEMU that a device stands on: how it comes and goes."""

    add: str
    arguments: Mapping[str, object]
    remove: str
    removal: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """A program beside QEMU that a device's other half runs in."""

    name: str
    socket: Path
    """Where QEMU connects to it."""
    argv: Callable[[int], tuple[str, ...]]
    """Its command line; the argument is the descriptor of the socket, which listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What the guest has to bring online."""

    cpus: int = 0
    memory: int = 0
    """Bytes."""

    def __add__(self, other: Growth) -> Growth:
        return Growth(cpus=self.cpus + other.cpus, memory=self.memory + other.memory)

    def __bool__(self) -> bool:
        return bool(self.cpus or self.memory)


class Hardware(ABC):
    """One kind; see the module's docstring."""

    __slots__ = ()

    place: ClassVar[Place] = Place.PORT
    express: ClassVar[bool] = False
    """It goes into PCI Express ports only."""
    silent: ClassVar[bool] = False
    """QEMU may not tell when it is gone: it is looked for, and its port is not used
    for such a device again."""
    roomy: ClassVar[bool] = False
    """Its memory needs a port with a large window."""
    not_removable: ClassVar[str] = ""
    """Why QEMU can't unplug it."""
    not_pluggable: ClassVar[str] = ""
    """Why QEMU can't plug it into a running VM."""
    not_cold: ClassVar[str] = ""
    """Why it can't be there from the start."""
    in_turn: ClassVar[bool] = False
    """The guest knows it by a number or by how much came: only one may be on its way."""
    flavour: ClassVar[str] = ""
    """The image flavour whose kernel has a driver for it; empty where all have."""
    since: ClassVar[str] = ""
    """The QEMU that has it first; empty for what all supported ones have."""

    @property
    @abstractmethod
    def driver(self) -> str:
        """QEMU's name of the device."""

    @property
    def model(self) -> str:
        """As `ListPlugged` tells it."""
        return self.driver.removesuffix("-pci")

    @property
    def source(self) -> str:
        """What it is made of on the host; empty where nothing."""
        return ""

    @property
    def growth(self) -> Growth:
        return Growth()

    @property
    def disk_file(self) -> DiskFile | None:
        """Its content, of a disk."""
        return None

    @property
    def share_tag(self) -> str:
        """What the guest mounts it by; empty for what is no share."""
        return ""

    def helper(self, names: Names) -> Helper | None:  # noqa: ARG002 - for kinds that do
        """Started before the backends, ended after them."""
        return None

    def backends(self, names: Names) -> tuple[Backend, ...]:  # noqa: ARG002 - for kinds that do
        """In the order in which they are added."""
        return ()

    def properties(self, names: Names) -> dict[str, object]:  # noqa: ARG002 - for kinds that do
        """`device_add`'s, besides driver, id and place."""
        return {}

    def claim(self) -> Hardware:
        """Takes what only one device of all VMs can have, before anything is made in
        QEMU; then `release` gives it back. Raises what says who has it."""
        return self

    def release(self) -> None:  # noqa: B027 - most kinds took nothing
        """Gives back what `claim` took, once QEMU has let go of it."""

    async def resolve(self, names: Names, monitor: Monitor) -> Hardware:  # noqa: ARG002 - likewise
        """Fills in what only QEMU knows; called right before the first backend."""
        return self

    def parts(self, names: Names) -> tuple[dict[str, object], ...]:
        """`device_add`'s arguments, without a place, of each device that it is."""
        return ({"driver": self.driver, "id": names.device} | self.properties(names),)

    def children(self, names: Names) -> tuple[dict[str, object], ...]:  # noqa: ARG002
        """Devices on it, of hardware that is there from the start."""
        return ()

    def guest(self) -> devices_pb2.Device | None:
        """What the agent is asked to make of it, without id and address; None for
        what is no device in the guest."""
        return None

    def explain(self, error: QemuRefusedError) -> ShimError:
        """QEMU has one class for all errors; its words are all there is to tell them apart."""
        return error


def bad_field(field: str, message: str, hint: str = "") -> ShimError:
    return ShimError(Reason.BAD_FIELD, message, hint=hint, fields={"field": field})

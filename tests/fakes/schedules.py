"""Places where devices come and go for tests of the hotplug board: what is there now, in a
sysfs of files, and the events that the kernel sends of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from agent.core.addresses import Address, ScsiAddress
from agent.core.hotplug import Wish
from agent.core.kinds import BlockExpectation, BlockInfo
from agent.core.pci import PciPath
from agent.core.places import find
from agent.core.tree import SysfsTree
from agent.core.verdict import NotYet, Ready, Verdict
from agent.handlers.devices.block import BlockDevices

if TYPE_CHECKING:
    from tests.fakes.netlink_queue import NetlinkQueue
    from tests.fakes.sysfs import FakeSysfs


class Place(ABC):
    """One place for a device. Each device that comes has an identity of its own.

    Places of one `family` hear of each other's devices: a SCSI host tells of all its units.
    """

    stages: ClassVar[int]

    def __init__(self, sysfs: FakeSysfs, kernel: NetlinkQueue, name: str) -> None:
        self.sysfs = sysfs
        self.kernel = kernel
        self.name = name
        self.family = name
        self.stage = 0
        self._numbers = count(1)
        self.coming = self._next()

    def _next(self) -> str:
        return f"{self.name}-{next(self._numbers)}"

    @property
    def present(self) -> str | None:
        """The identity of the device that is there and usable."""
        return self.coming if self.stage == self.stages else None

    @property
    @abstractmethod
    def directory(self) -> Path: ...

    @abstractmethod
    def grow(self, stage: int) -> Path:
        """Make a part of the device; returns the directory that the kernel tells of."""

    @abstractmethod
    def judge(self, tree: SysfsTree, expected: str | None) -> Verdict[str]: ...

    def wish(self, expected: str | None) -> Wish[str]:
        return Wish(what=self.name, probe=lambda tree: self.judge(tree, expected))

    def advance(self, *, cut: bool = False) -> None:
        """One more part of the device is there; nothing when it is complete."""
        if self.stage < self.stages:
            self.stage += 1
            self.tell("add", self.grow(self.stage), cut=cut)

    def arrive(self) -> None:
        while self.stage < self.stages:
            self.advance()

    def remove(self) -> None:
        """The kernel announces a removal before the directory goes."""
        if self.stage == 0:
            return
        self.tell("remove", self.directory)
        self.sysfs.remove(self.directory)
        self.stage = 0
        self.coming = self._next()

    def stir(self) -> None:
        self.tell("change", self.directory)

    def tell(self, action: str, directory: Path, *, cut: bool = False) -> None:
        self.kernel.send(action, self.sysfs.devpath(directory), "any", cut=cut)


class Disk(Place):
    """A disk that comes part by part; the last two are a disk without a size and node, and
    one that can be used."""

    _minors = count(16, 16)

    def __init__(self, sysfs: FakeSysfs, kernel: NetlinkQueue, name: str, address: Address) -> None:
        super().__init__(sysfs, kernel, name)
        self._address = address
        self._number = ""

    @property
    @abstractmethod
    def _parent(self) -> Path:
        """The device that the disk hangs on."""

    @property
    def _disk(self) -> Path:
        return self._parent / "block" / self.name

    def grow(self, stage: int) -> Path:
        if stage == self.stages - 1:
            self._number = f"254:{next(self._minors)}"
            parent, number = self._disk.parent, self._number
            return self.sysfs.disk(
                parent, self.name, dev=number, size=0, serial=self.coming, node=False
            )
        self.sysfs.write(self._disk / "size", "2048")
        self.sysfs.node(self.name, self._number)
        return self._disk

    def remove(self) -> None:
        super().remove()
        self.sysfs.nodes.pop(self.sysfs.roots.dev / self.name, None)

    def judge(self, tree: SysfsTree, expected: str | None) -> Verdict[str]:
        place = find(tree, self._address)
        if not isinstance(place, Ready):
            return place
        found = BlockDevices().probe(tree, place.result, BlockExpectation(serial=expected))
        if not isinstance(found, Ready):
            return found
        # The right disk with another's node would be wrong as well.
        (node,) = found.result.nodes
        assert f"{node.major}:{node.minor}" == self._number
        assert isinstance(found.result.info, BlockInfo)
        return Ready(found.result.info.serial)


class VirtioDisk(Disk):
    """A root port for a virtio-blk disk: its function comes first, then the driver."""

    stages = 4

    def __init__(self, sysfs: FakeSysfs, kernel: NetlinkQueue, *, slot: str, bus: str) -> None:
        super().__init__(sysfs, kernel, f"disk{slot}", PciPath.parse(f"{slot}/00"))
        root = sysfs.sys / "devices/pci0000:00"
        self._port = sysfs.bridge(root, f"0000:00:{slot}", f"0000:{bus}")
        self._function = f"0000:{bus}:00.0"

    @property
    def directory(self) -> Path:
        return self._port / self._function

    @property
    def _parent(self) -> Path:
        return self.directory / "virtio1"

    def grow(self, stage: int) -> Path:
        match stage:
            case 1:
                return self.sysfs.function(self._port, self._function)
            case 2:
                self.sysfs.link(self.directory / "driver", "../../drivers/virtio-pci")
                return self.sysfs.virtio(self.directory, "virtio1")
        return super().grow(stage)


class ScsiDisk(Disk):
    """A logical unit of a SCSI host: 0:0:0:1 is not 0:0:0:10."""

    stages = 3

    def __init__(self, sysfs: FakeSysfs, kernel: NetlinkQueue, *, host: Path, lun: int) -> None:
        name = f"0:0:0:{lun}"
        super().__init__(sysfs, kernel, f"sd{lun}", ScsiAddress.parse(name))
        self.family = host.name
        self._directory = host / "target0:0:0" / name
        self._listed = sysfs.sys / "bus/scsi/devices" / name

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def _parent(self) -> Path:
        return self.directory

    def grow(self, stage: int) -> Path:
        if stage > 1:
            return super().grow(stage)
        # Page 0x80 has a header of four bytes before the serial number (SPC-4, 7.8.13).
        page = bytes((0, 0x80, 0, len(self.coming))) + self.coming.encode()
        self.directory.mkdir(parents=True)
        (self.directory / "vpd_pg80").write_bytes(page)
        self.sysfs.link(self._listed, str(self.directory))
        return self.directory

    def remove(self) -> None:
        super().remove()
        self._listed.unlink(missing_ok=True)


class Plain(Place):
    """A device that is there as soon as its directory is; its name may begin another's."""

    stages = 1

    def __init__(self, sysfs: FakeSysfs, kernel: NetlinkQueue, directory: Path) -> None:
        self._directory = directory
        super().__init__(sysfs, kernel, directory.name)

    @property
    def directory(self) -> Path:
        return self._directory

    def grow(self, stage: int) -> Path:
        self.sysfs.write(self.directory / "id", self.coming)
        return self.directory

    def judge(self, tree: SysfsTree, expected: str | None) -> Verdict[str]:
        found = tree.text(self.directory / "id")
        if found is not None and expected in (None, found):
            return Ready(found)
        return NotYet(evidence=f"{found}", near=(tree.devpath(self.directory),))

"""Drivers, overrides and IOMMU groups of PCI functions: writes have the kernel's effect.

What a write does is from drivers/base/bus.c (unbind, drivers_probe), drivers/pci/pci-driver.c
(driver_override decides alone; it alone also makes a driver match) and drivers/vfio (a group's
node comes with its first function and goes with its last; without an IOMMU the group itself
does). All writes are noted, and each can be made to fail, to hang, or to wait.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.core.commands import CommandResult
from agent.core.deadlines import Deadline
from agent.core.errors import timed_out
from agent.core.hotplug import HotplugBoard
from agent.core.model import AttachedDevice, DeviceRequest
from agent.core.tree import NoLog
from agent.handlers.devices.job import Hands
from tests.fakes.sysfs import FakeSysfs
from tests.fakes.uevents import FakeUevents

VFIO = "vfio-pci"
NET = "0x020000"
_GROUP_MAJOR, _CDEV_MAJOR = 240, 511


class FakeLog(NoLog):
    """The kernel's log as `SysfsTree.log` has it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def lines(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(line for line in self.said if any(name in line for name in names))


class VfioSysfs(FakeSysfs):
    """A guest with an IOMMU, VFIO as Debian builds it, and two root ports with functions."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.natural: dict[str, str] = {}
        """The driver whose ids fit, by BDF."""
        self.refusing: set[tuple[str, str]] = set()
        """Drivers whose probe fails, with the BDF."""
        self.cdevs = False
        self.write(self.sys / "bus/pci/drivers_probe", "")
        for name in ("pcieport", "virtio-pci", "snd_hda_intel", "pci-stub"):
            self.driver(name)
        self._minors = iter(range(1000))

    def bridge(self, parent: Path, bdf: str, *buses: str) -> Path:
        _, bus, slot = bdf.split(":")
        self.added(bus, slot)
        return super().bridge(parent, bdf, *buses)

    def driver(self, name: str) -> None:
        self.write(self.sys / "bus/pci/drivers" / name / "unbind", "")

    def load_vfio(self, *, no_iommu: bool = False) -> None:
        """What modprobe vfio-pci brings: the driver, the container's node, the parameter."""
        self.driver(VFIO)
        self._device(self.sys / "devices/virtual/misc/vfio", "10:196", "vfio/vfio")
        self.link(self.sys / "class/misc/vfio", str(self.sys / "devices/virtual/misc/vfio"))
        parameter = self.sys / "module/vfio/parameters/enable_unsafe_noiommu_mode"
        self.write(parameter, "Y" if no_iommu else "N")
        (self.sys / "class/vfio").mkdir(parents=True)

    def cdev_interface(self) -> None:
        """As of Linux 6.6 with CONFIG_VFIO_DEVICE_CDEV."""
        self.cdevs = True
        self._device(self.sys / "devices/virtual/misc/iommu", "10:125", "iommu")
        self.link(self.sys / "class/misc/iommu", str(self.sys / "devices/virtual/misc/iommu"))

    def card(
        self, parent: Path, bdf: str, *, group: int | None, driver: str = "virtio-pci"
    ) -> Path:
        """A network function that its driver has; with driver "" nobody wants it."""
        path = self.function(parent, bdf, pci_class=NET, driver=driver or None)
        self.write(path / "driver_override", "(null)")
        self.write(path / "power/control", "auto")
        _, bus, slot = bdf.split(":")
        self.added(bus, slot)
        if driver:
            self.natural[bdf] = driver
        if group is not None:
            self.join(path, group)
        return path

    def join(self, function: Path, group: int) -> None:
        self.link(function / "iommu_group", f"../../../../kernel/iommu_groups/{group}")
        listing = self.sys / f"kernel/iommu_groups/{group}/devices"
        self.link(listing / function.name, str(function))

    def bound(self, bdf: str) -> str:
        """The function's driver now, "" without one."""
        link = self.where(bdf) / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def override(self, bdf: str) -> str:
        """As read from the file."""
        return (self.where(bdf) / "driver_override").read_text().strip()

    def where(self, bdf: str) -> Path:
        return (self.sys / "bus/pci/devices" / bdf).resolve()

    def state(self, *bdfs: str) -> dict[str, tuple[str, str]]:
        return {bdf: (self.bound(bdf), self.override(bdf)) for bdf in bdfs}

    # What the kernel does.

    def unbind(self, driver: str, bdf: str) -> None:
        if self.bound(bdf) != driver:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        (self.where(bdf) / "driver").unlink()
        if driver == VFIO:
            self._leave_vfio(self.where(bdf))

    def look_for_driver(self, bdf: str) -> str | None:
        """The driver whose probe failed, None when none did."""
        if not (self.sys / "bus/pci/devices" / bdf).exists():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        override = self.override(bdf).removeprefix("(null)")
        driver = override or self.natural.get(bdf, "")
        if self.bound(bdf) or not (self.sys / "bus/pci/drivers" / driver / "unbind").exists():
            return None
        if (driver, bdf) in self.refusing:
            return driver
        self.link(self.where(bdf) / "driver", f"../../../bus/pci/drivers/{driver}")
        if driver == VFIO:
            self._join_vfio(self.where(bdf))
        return None

    def _join_vfio(self, function: Path) -> None:
        number = next(self._minors)
        if not (function / "iommu_group").is_symlink():
            self.join(function, number)
            self.write(self.sys / f"kernel/iommu_groups/{number}/name", "vfio-noiommu")
        node = self._group_node(function)
        if not node.exists():
            self._device(node, f"{_GROUP_MAJOR}:{number}", f"vfio/{node.name}")
        own = function / f"vfio-dev/vfio{number}"
        if self.cdevs:
            self._device(own, f"{_CDEV_MAJOR}:{number}", f"vfio/devices/vfio{number}")
        else:
            own.mkdir(parents=True)

    def _leave_vfio(self, function: Path) -> None:
        node = self._group_node(function)
        group = function / "iommu_group"
        for own in (function / "vfio-dev").iterdir():
            self.remove(own)
        others = (self.sys / "kernel/iommu_groups" / group.readlink().name / "devices").iterdir()
        if not any(
            (other / "driver").is_symlink() and self.bound(other.name) == VFIO for other in others
        ):
            self.remove(node)
        if node.name.startswith("noiommu-"):
            self.remove(self.sys / "kernel/iommu_groups" / group.readlink().name)
            group.unlink()

    def _group_node(self, function: Path) -> Path:
        group = (function / "iommu_group").readlink().name
        unsafe = (self.sys / f"kernel/iommu_groups/{group}/name").exists()
        return self.sys / f"devices/virtual/vfio/{'noiommu-' if unsafe else ''}{group}"

    def _device(self, path: Path, dev: str, name: str) -> None:
        self.write(path / "dev", dev)
        self.write(path / "uevent", f"DEVNAME={name}")
        self.link(path / "subsystem", "../../../class/some")
        self.node(name, dev, "c")


@dataclass(slots=True)
class KernelFiles:
    """The board's slow files on such a tree. Keys of `fails` and `gates` and members of
    `late` are ends of paths, as "driver_override" or "vfio-pci/unbind"."""

    sysfs: VfioSysfs
    kernel: FakeUevents
    log: FakeLog
    writes: list[tuple[str, str]] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    """Reads and writes that come back too late."""
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    on_write: Callable[[str], None] = lambda _: None
    """Called with the file's short name before a write takes effect, and before it fails."""
    fails_after: int | None = None
    """The number of writes that succeed; the next one fails with EIO, once."""

    async def read_text(self, path: Path, deadline: Deadline) -> str:
        self._check_late(path)
        return path.read_text()  # noqa: ASYNC240 - a plain file of the test

    async def write_text(self, path: Path, text: str, deadline: Deadline) -> None:
        self._check_late(path)
        if path.name == "control":
            # The kernel waits for the function's lock, and then knows no such word.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        name = self._name(path)
        self.writes.append((name, text.strip()))
        gate = next((gate for end, gate in self.gates.items() if str(path).endswith(end)), None)
        if gate is not None:
            await gate.wait()
        self.on_write(name)
        if self.fails_after == len(self.writes) - 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        for end, number in self.fails.items():
            if str(path).endswith(end):
                raise OSError(number, os.strerror(number), str(path))
        self._effect(path, text.strip())

    def _name(self, path: Path) -> str:
        """ "BDF driver_override", or the path below /sys/bus/pci."""
        if path.name == "driver_override":
            return f"{path.parent.name} {path.name}"
        return str(path.relative_to(self.sysfs.sys / "bus/pci"))

    def _check_late(self, path: Path) -> None:
        if any(str(path).endswith(end) for end in self.late):
            raise timed_out(f"{path} did not come back")

    def _effect(self, path: Path, text: str) -> None:
        if path.name == "driver_override":
            self.sysfs.write(path, text or "(null)")
            return
        if path.name == "unbind":
            self.sysfs.unbind(path.parent.name, text)
            self.tell("unbind", text)
        elif path.name == "drivers_probe":
            refused = self.sysfs.look_for_driver(text)
            if refused:
                said = f"{refused} {text}: probe with driver {refused} failed with error -22"
                self.log.said.append(said)
            else:
                self.tell("bind", text)

    def tell(self, action: str, bdf: str) -> None:
        self.kernel.send(action, self.sysfs.devpath(self.sysfs.where(bdf)), "pci")


@dataclass(slots=True, kw_only=True)
class VfioGuest:
    """Such a guest with a board on it, and what a class of devices is given."""

    sysfs: VfioSysfs
    files: KernelFiles
    board: HotplugBoard
    loaded: list[str] = field(default_factory=list)
    unknown_modules: set[str] = field(default_factory=set)
    no_iommu: bool = False
    known: dict[str, DeviceRequest | AttachedDevice] = field(default_factory=dict)

    @property
    def hands(self) -> Hands:
        return Hands(
            board=self.board,
            peer=self.known.get,
            run=self.modprobe,
            others=lambda: tuple(self.known.values()),
        )

    async def modprobe(
        self, argv: Sequence[str], *, deadline: Deadline, check: bool
    ) -> CommandResult:
        *command, module = argv
        assert (command, check) == (["modprobe", "--"], False)
        assert not deadline.passed
        self.loaded.append(module)
        failed = module in self.unknown_modules
        if module == VFIO and not failed:
            self.sysfs.load_vfio(no_iommu=self.no_iommu)
        said = f"modprobe: FATAL: Module {module} not found." if failed else ""
        return CommandResult(argv=tuple(argv), code=int(failed), stdout=b"", stderr_tail=said)


@asynccontextmanager
async def vfio_guest(base: Path) -> AsyncIterator[VfioGuest]:
    """Without relooks: only events make waits look, so that a test sees which do."""
    sysfs, kernel, log = VfioSysfs(base), FakeUevents(), FakeLog()
    files = KernelFiles(sysfs, kernel, log)
    tree = replace(sysfs.tree, log=log)
    board = HotplugBoard(tree=tree, source=kernel, files=files, relooks=())
    board.start()
    try:
        yield VfioGuest(sysfs=sysfs, files=files, board=board)
    finally:
        board.close()

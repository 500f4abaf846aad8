"""The kernel's core of random number generators, and virtio-rng devices, in a fake sysfs.

Shapes, names and rules are those of Linux 6.12: a generator takes the lowest free number
when the driver takes its device, is listed in the order of coming, becomes the source
when there is none, and when it goes the first of the others does.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from tests.fakes.sysfs import FakeSysfs

ALIAS = "virtio:d00000004v00001AF4"


class FakeRngs:
    """Generators by name, oldest first; `store` is what a write to rng_current does."""

    def __init__(self, sysfs: FakeSysfs) -> None:
        self.sysfs = sysfs
        self.core = sysfs.sys / "devices/virtual/misc/hw_random"
        self.names: list[str] = []
        self.current = "none"
        self.chosen = False
        self._of: dict[Path, str] = {}
        self._links = itertools.count()
        self._newest = 0
        sysfs.write(self.core / "dev", "10:183")
        sysfs.write(self.core / "uevent", "MAJOR=10\nMINOR=183\nDEVNAME=hwrng")
        sysfs.link(self.core / "subsystem", str(sysfs.sys / "class/misc"))
        sysfs.link(sysfs.sys / "class/misc/hw_random", str(self.core))
        sysfs.node("hwrng", "10:183", "c")
        for folder in ("bus/virtio/devices", "bus/virtio/drivers/virtio_rng"):
            (sysfs.sys / folder).mkdir(parents=True)
        self._tell()

    def function(self, port: Path, bdf: str, virtio: str) -> Path:
        """A virtio-rng function whose virtio device has no driver yet; that device."""
        function = self.sysfs.function(port, bdf, driver="virtio-pci")
        device = self.sysfs.virtio(function, virtio, driver=None)
        self.sysfs.write(device / "modalias", ALIAS)
        self.sysfs.link(device / "subsystem", str(self.sysfs.sys / "bus/virtio"))
        self.sysfs.link(self.sysfs.sys / "bus/virtio/devices" / virtio, str(device))
        return device

    def begin(self, device: Path) -> None:
        """The driver starts to take the device: the links are made first."""
        driver = self.sysfs.sys / "bus/virtio/drivers/virtio_rng"
        self.sysfs.link(driver / device.name, str(device))
        self._newer_link(device / "driver", driver)

    def register(self, device: Path, name: str | None = None) -> str:
        if name is None:
            free = (f"virtio_rng.{number}" for number in itertools.count())
            name = next(each for each in free if each not in self.names)
        self._of[device] = name
        self.names.append(name)
        if self.current == "none":
            self.current = name
        self._tell()
        return name

    def bind(self, device: Path) -> str:
        self.begin(device)
        return self.register(device)

    def plug(self, port: Path, bdf: str, virtio: str) -> str:
        """The whole: the name that the generator got."""
        return self.bind(self.function(port, bdf, virtio))

    def let_go(self, device: Path) -> None:
        """The driver lets go: its links go first, its generator a little later."""
        (device / "driver").unlink()
        (self.sysfs.sys / "bus/virtio/drivers/virtio_rng" / device.name).unlink()

    def unregister(self, device: Path) -> None:
        name = self._of.pop(device)
        self.names.remove(name)
        if self.current == name:
            self.current = self.names[0] if self.names else "none"
            self.chosen = False
        self._tell()

    def unplug(self, device: Path) -> None:
        self.let_go(device)
        self.unregister(device)
        (self.sysfs.sys / "bus/virtio/devices" / device.name).unlink()
        shutil.rmtree(device.parent)
        (self.sysfs.sys / "bus/pci/devices" / device.parent.name).unlink()

    def store(self, path: Path, text: str) -> None:
        """rng_current_store: a name that it doesn't know is taken, and nothing happens."""
        assert path == self.sysfs.sys / "class/misc/hw_random/rng_current", path
        name = text.strip()
        if not name:
            self.current, self.chosen = (self.names or ["none"])[0], False
        elif name in self.names:
            self.current, self.chosen = name, True
        self._tell()

    def choose(self, name: str) -> None:
        """As an operator does."""
        self.store(self.sysfs.sys / "class/misc/hw_random/rng_current", name)

    def _tell(self) -> None:
        self.sysfs.write(self.core / "rng_available", " ".join([*self.names, "none"]))
        self.sysfs.write(self.core / "rng_current", self.current)
        self.sysfs.write(self.core / "rng_selected", str(int(self.chosen)))

    def _newer_link(self, path: Path, target: Path) -> None:
        """A link with an inode number above all before, as every new one in sysfs has."""
        attic = self.sysfs.sys.parent / "attic"
        attic.mkdir(exist_ok=True)
        while True:
            made = attic / str(next(self._links))
            made.symlink_to(target)
            if made.lstat().st_ino > self._newest:
                break
        self._newest = made.lstat().st_ino
        made.rename(path)

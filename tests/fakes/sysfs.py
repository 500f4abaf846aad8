"""A sysfs, proc and dev in a directory, with the shapes that the kernel gives them.

Paths and files are those of a virtio-blk disk and an NVMe controller behind PCIe
root ports in a q35 guest with Linux 6.12. Device nodes need root to make, so the
numbers of nodes are kept in a table and handed out by `node_numbers`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from agent.core.roots import Roots
from agent.core.tree import SysfsTree
from agent.linux.block import NodeNumbers

PORT = "0x060400"
STORAGE = "0x010000"


class FakeSysfs:
    """Builds and takes apart a tree; its `roots` and `tree` go to what is tested."""

    def __init__(self, base: Path, *, acpi: bool = True) -> None:
        self.roots = Roots(
            sys=base / "sys", proc=base / "proc", dev=base / "dev", run=base / "run/innkeeper"
        )
        self.nodes: dict[Path, NodeNumbers] = {}
        self._sequence = 0
        for folder in ("bus/pci/devices", "class/block", "class/pci_bus", "firmware"):
            (self.sys / folder).mkdir(parents=True)
        for path in (self.roots.proc / "self", self.roots.dev, self.roots.run):
            path.mkdir(parents=True)
        self.write(self.sys / "bus/pci/rescan", "")
        if acpi:
            (self.sys / "firmware/acpi").mkdir()

    @property
    def sys(self) -> Path:
        return self.roots.sys

    @property
    def tree(self) -> SysfsTree:
        return SysfsTree(roots=self.roots, node_numbers=self.nodes.get)

    def devpath(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.sys))

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def link(self, path: Path, target: str) -> None:
        """A symbolic link as the kernel has them: only its last part matters here."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def root_bus(self, name: str = "0000:00", below: str = "devices") -> Path:
        bus = self.sys / below / f"pci{name}"
        self._bus(bus, name)
        return bus

    def function(
        self, parent: Path, bdf: str, *, pci_class: str = STORAGE, driver: str | None = None
    ) -> Path:
        path = parent / bdf
        self.write(path / "vendor", "0x1af4")
        self.write(path / "device", "0x1042")
        self.write(path / "class", pci_class)
        self.write(path / "numa_node", "-1")
        if driver:
            self.link(path / "driver", f"../../../bus/pci/drivers/{driver}")
        self.link(self.sys / "bus/pci/devices" / bdf, str(path))
        return path

    def bridge(self, parent: Path, bdf: str, *buses: str) -> Path:
        path = self.function(parent, bdf, pci_class=PORT, driver="pcieport")
        for bus in buses:
            self._bus(path, bus)
        return path

    def port_with_slot(self, slot: str = "02", bus: str = "01") -> Path:
        """A root port at `slot` of 0000:00, with an empty bus behind it."""
        root = self.sys / "devices/pci0000:00"
        if not root.exists():
            root = self.root_bus()
        return self.bridge(root, f"0000:00:{slot}.0", f"0000:{bus}")

    def virtio(self, function: Path, name: str, *, driver: str | None = "virtio_blk") -> Path:
        path = function / name
        self.write(path / "status", "0x0000000f")
        if driver:
            self.link(path / "driver", f"../../../../bus/virtio/drivers/{driver}")
        self.link(path / "subsystem", "../../../../bus/virtio")
        return path

    def disk(
        self,
        parent: Path,
        name: str,
        *,
        dev: str = "254:16",
        size: int = 64 << 20,
        serial: str | None = None,
        node: bool = True,
    ) -> Path:
        """A whole disk directory with one partition; `serial` as virtio-blk has it."""
        path = parent / name
        self._sequence += 1
        self.write(path / "dev", dev)
        self.write(path / "size", str(size // 512))
        self.write(path / "ro", "0")
        self.write(path / "diskseq", str(self._sequence))
        self.write(path / "queue/logical_block_size", "512")
        self.write(path / "uevent", f"MAJOR={dev.split(':')[0]}\nDEVNAME={name}\nDEVTYPE=disk")
        if serial is not None:
            self.write(path / "serial", serial)
        self.link(path / "subsystem", "../../../../../../class/block")
        self.link(path / "device", "../..")
        self._partition(path, f"{name}1")
        self.link(self.sys / "class/block" / name, str(path))
        if node:
            self.node(name, dev)
        return path

    def virtio_disk(self, port: Path, bdf: str, name: str = "vdb", **facts: object) -> Path:
        """A virtio-blk function behind a port, complete; returns the function."""
        function = self.function(port, bdf, driver="virtio-pci")
        self.disk(self.virtio(function, f"virtio_{name}") / "block", name, **facts)  # type: ignore[arg-type]
        return function

    def node(self, name: str, dev: str, kind: str = "b") -> None:
        major, _, minor = dev.partition(":")
        self.nodes[self.roots.dev / name] = NodeNumbers(kind, int(major), int(minor))

    def remove(self, path: Path) -> None:
        """Take a function or device away, with the links that point to it."""
        shutil.rmtree(path)
        for folder in ("bus/pci/devices", "class/block"):
            for link in (self.sys / folder).iterdir():
                if not link.exists():
                    link.unlink()

    def take_out(self, path: Path) -> None:
        """What a write to a function's `remove` does; the hardware stays in its slot."""
        stash = self.sys.parent / "slots" / path.relative_to(self.sys)
        shutil.copytree(path, stash, symlinks=True)
        self.remove(path)

    def rescan(self, bus: Path) -> list[Path]:
        """What a write to a bus's `rescan` does: functions that were taken out come back."""
        bridge = bus.parent.parent
        slots = self.sys.parent / "slots" / bridge.relative_to(self.sys)
        found = []
        for stash in slots.iterdir() if slots.exists() else ():
            path = bridge / stash.name
            stash.rename(path)
            self.link(self.sys / "bus/pci/devices" / path.name, str(path))
            for disk in path.glob("virtio*/block/*"):
                self.link(self.sys / "class/block" / disk.name, str(disk))
            found.append(path)
        return found

    def added(self, bus: str, slot: str) -> None:
        """What the kernel does when it is done with a new function."""
        self.write(self.roots.proc / "bus/pci" / bus / slot, "")

    def _bus(self, owner: Path, name: str) -> None:
        path = owner / "pci_bus" / name
        path.mkdir(parents=True)
        self.link(self.sys / "class/pci_bus" / name, str(path))

    def _partition(self, disk: Path, name: str) -> None:
        self.write(disk / name / "dev", "254:17")
        self.write(disk / name / "partition", "1")
        self.write(disk / name / "size", "2048")
        self.link(disk / name / "subsystem", "../../../../../../../class/block")

"""The view of sysfs, proc and /dev that probes are given, and PCI's part of it.

Facts: Documentation/ABI/testing/sysfs-bus-pci; a root bus is a directory
`pciDDDD:BB` (below /sys/devices, or below its own controller's device), each
function a directory named by its BDF inside its bridge's, and a bridge's bus the
entry of its `pci_bus` directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agent.core.pci import Bdf, PciAddress, PciBus, PciPath
from agent.core.verdict import Failed, NotYet, Ready, SlowRead, Verdict
from agent.linux import modalias
from agent.linux.block import NodeNumbers, node_numbers
from agent.linux.pseudo import read_optional

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.core.roots import Roots


# A binary attribute of sysfs is read a page at a time.
_DATA_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """A PCI function that sysfs has now; `directory` is absolute."""

    directory: Path
    bdf: Bdf
    path: PciPath


class KernelLines(Protocol):
    """What the kernel's log says of devices, by their kernel names (`core/kernel_log.py`)."""

    def lines(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The lines that name one of them since it came, oldest first; a bounded number."""

    def refusal(self, names: tuple[str, ...]) -> Failed | None:
        """Why no driver will serve them, where one of the lines says so."""

    def explanation(self, names: tuple[str, ...]) -> Failed | None:
        """What went wrong with them, told though nobody has given up."""


class NoLog:
    """For a tree without a log."""

    def lines(self, names: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002 - a Protocol's
        return ()

    def refusal(self, names: tuple[str, ...]) -> Failed | None:  # noqa: ARG002 - a Protocol's
        return None

    def explanation(self, names: tuple[str, ...]) -> Failed | None:  # noqa: ARG002 - a Protocol's
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SysfsTree:
    """Reads of what is there now: an absent file is None, never an error.

    `driver_notes` say for a modalias what came of looking for a module (`core/drivers.py`).
    """

    roots: Roots
    node_numbers: Callable[[Path], NodeNumbers | None] = node_numbers
    slow_texts: dict[SlowRead, str] = field(default_factory=dict)
    driver_notes: dict[str, str] = field(default_factory=dict)
    log: KernelLines = field(default_factory=lambda: NoLog())

    def text(self, path: Path) -> str | None:
        """A file's text without surrounding blanks."""
        try:
            text = read_optional(path)
        except OSError:
            return None
        return None if text is None else text.strip()

    def data(self, path: Path) -> bytes | None:
        """A small binary file's bytes."""
        try:
            with path.open("rb", buffering=0) as file:
                return file.read(_DATA_BYTES)
        except OSError:
            return None

    def slow_text(self, read: SlowRead) -> str | None:
        """The text of a slow read that the board has made; None before."""
        return self.slow_texts.get(read)

    def link_name(self, path: Path) -> str | None:
        """The last part of a symbolic link's target: of a driver, a subsystem, a group."""
        try:
            return path.readlink().name
        except OSError:
            return None

    def names(self, directory: Path) -> tuple[str, ...]:
        """The names in a directory, sorted; none when it is not there."""
        try:
            return tuple(sorted(entry.name for entry in directory.iterdir()))
        except OSError:
            return ()

    def subdirectories(self, directory: Path) -> tuple[Path, ...]:
        """The real directories in a directory, sorted: of a device its children, not its links."""
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return ()
        return tuple(directory / name for name in sorted(names))

    def real(self, path: Path) -> Path | None:
        """Where a link of /sys/bus or /sys/class leads; None when it is not there."""
        try:
            return path.resolve(strict=True)
        except (OSError, RuntimeError):
            return None

    def wanted_driver(self, directory: Path) -> str | None:
        """The modalias of a device that has no driver, None for any other."""
        try:
            return modalias.wanted(directory)
        except OSError:
            return None

    def properties(self, directory: Path) -> dict[str, str]:
        """The KEY=VALUE lines of a device's `uevent` file."""
        lines = (self.text(directory / "uevent") or "").splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    def instance(self, directory: Path) -> str | None:
        """What tells a device from a later one at the same place, or None without one.

        The inode number of a sysfs directory is the kernfs id, which is not used again.
        """
        try:
            return str(directory.stat().st_ino)
        except OSError:
            return None

    def devpath(self, directory: Path) -> str:
        """The path below /sys, as uevents name it."""
        return "/" + str(directory.relative_to(self.roots.sys))

    def node_path(self, name: str) -> Path:
        """The node in /dev of a name that sysfs or an uevent gives."""
        return self.roots.dev / name


def locate(tree: SysfsTree, address: PciAddress) -> Verdict[PciFunction]:
    """Find the function at an address, or say how far sysfs goes towards it."""
    match address:
        case PciPath():
            return _walk(tree, address)
        case Bdf():
            return _look_up(tree, address)


def path_of(tree: SysfsTree, directory: Path) -> PciPath | None:
    """The path from the root bus of a function's real directory; None if it is not one."""
    steps: list[Bdf] = []
    for name in reversed(directory.relative_to(tree.roots.sys).parts):
        if Bdf.is_name(name):
            steps.insert(0, Bdf.parse(name))
            continue
        if not name.startswith("pci") or not steps:
            return None
        # The domain may change on the way (VMD): the nearest root bus counts.
        return PciPath(PciBus.parse(name.removeprefix("pci")), tuple(b.slot for b in steps))
    return None


def _walk(tree: SysfsTree, path: PciPath) -> Verdict[PciFunction]:
    directory = _root_directory(tree, path.root)
    if directory is None:
        known = ", ".join(tree.names(tree.roots.sys / "class/pci_bus")) or "none"
        return NotYet(evidence=f"there is no root bus {path.root} (PCI buses: {known})")
    bus = path.root
    for number, slot in enumerate(path.steps, start=1):
        bdf = Bdf(bus, slot)
        directory = directory / str(bdf)
        done = PciPath(path.root, path.steps[:number])
        if not directory.is_dir():
            return _missing(tree, directory, done, path)
        if number == len(path.steps):
            return Ready(PciFunction(directory=directory, bdf=bdf, path=path))
        below = _bus_below(tree, directory, done)
        if not isinstance(below, PciBus):
            return below
        bus = below
    raise AssertionError("a PCI path has at least one step")


def _root_directory(tree: SysfsTree, root: PciBus) -> Path | None:
    """Most root buses lie below /sys/devices; one behind a controller is found by its class."""
    plain = tree.roots.sys / "devices" / f"pci{root}"
    if plain.is_dir():
        return plain
    listed = tree.roots.sys / "class/pci_bus" / str(root)
    directory = listed.resolve().parent.parent
    return directory if directory.name == f"pci{root}" and directory.is_dir() else None


def _missing(tree: SysfsTree, directory: Path, done: PciPath, path: PciPath) -> NotYet:
    functions = [name for name in tree.names(directory.parent) if Bdf.is_name(name)]
    found = ", ".join(functions) or "none"
    reached = f"up to {done.parent}" if done.parent else "not beyond the root bus"
    return NotYet(
        evidence=(
            f"sysfs goes {reached} of the path {path}: no {directory.name} in "
            f"{tree.devpath(directory.parent)}, which has {found if functions else 'no functions'}"
        ),
        near=(tree.devpath(directory),),
        facts=(("reached", str(done.parent or path.root)), ("children", found)),
        hint="is it plugged into the port that this path names? The kernel has not seen it",
    )


def _bus_below(tree: SysfsTree, bridge: Path, done: PciPath) -> PciBus | NotYet | Failed:
    buses = tree.names(bridge / "pci_bus")
    where = f"{bridge.name} (path {done})"
    if len(buses) == 1:
        return PciBus.parse(buses[0])
    if buses:
        return Failed(f"the bridge {where} has {len(buses)} buses: {', '.join(buses)}")
    device_class = tree.text(bridge / "class") or ""
    if device_class and not device_class.startswith("0x0604"):
        return Failed(f"{where} is not a bridge but of class {device_class}: nothing is behind it")
    return NotYet(evidence=f"the bridge {where} has 0 buses", near=(tree.devpath(bridge),))


def _look_up(tree: SysfsTree, bdf: Bdf) -> Verdict[PciFunction]:
    listing = tree.roots.sys / "bus/pci/devices"
    if str(bdf) not in tree.names(listing):
        on_bus = [name for name in tree.names(listing) if name.startswith(f"{bdf.bus}:")]
        found = ", ".join(on_bus) or "nothing"
        return NotYet(evidence=f"there is no PCI function {bdf}: on bus {bdf.bus} is {found}")
    directory = (listing / str(bdf)).resolve()
    path = path_of(tree, directory)
    if path is None:
        return Failed(f"the PCI function {bdf} is not below a root bus: {tree.devpath(directory)}")
    return Ready(PciFunction(directory=directory, bdf=bdf, path=path))

"""What a class of devices is, and what all devices have in common.

A class is one file here and one line in the list of `__init__`: it says which
expectation of a request it serves, and judges a place that sysfs has. A class that
has to change something to make its device usable (bind a driver, switch a source)
also says how, in `take`, and how to take that back, in `give_back`. The manager
does the rest (finding the place, waiting, the table, undo).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from agent.core.errors import AgentError, Reason, wrong_state
from agent.core.verdict import Failed, NotYet, SlowRead, Verdict
from agent.handlers.devices.nodes import children

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agent.core.kinds import Info
    from agent.core.model import AttachedDevice, DeviceNode
    from agent.core.places import Place
    from agent.core.tree import PciFunction, SysfsTree
    from agent.handlers.devices.job import Hands, Job

E = TypeVar("E")

# include/linux/ioport.h: memory resource; address not assigned.
_IORESOURCE_MEM = 0x0000_0200
_IORESOURCE_UNSET = 0x2000_0000

# VIRTIO_CONFIG_S_FAILED (virtio 1.2, 2.1): set by the core when a driver's probe fails.
_VIRTIO_FAILED = 0x80

_BARS = 6

_NO_DRIVER = (
    "no driver takes it: the image's flavour 'generic' has more of them; or build the image "
    "with the driver's --module or --package, or name the module in load_modules"
)
_OTHER_KIND = "it has a driver, which makes no such part: is it a device of the kind asked for?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a class found at a place."""

    nodes: tuple[DeviceNode, ...]
    info: Info


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A place whose probe was Ready, and which device it was: `instance` tells it from a
    later one at the same place."""

    place: Place
    instance: str
    found: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A device made usable. `kept` is saved with it: what `give_back` has to know."""

    sighting: Sighting
    kept: Mapping[str, str] = field(default_factory=dict)


class DeviceClass(ABC, Generic[E]):
    """One class of devices."""

    name: ClassVar[str]
    """The class in errors, events and saved state."""

    expectation: ClassVar[type]
    """The type of `DeviceRequest.kind` that this class serves."""

    @abstractmethod
    def probe(self, tree: SysfsTree, place: Place, expected: E) -> Verdict[Found]:
        """Ready with its nodes, NotYet with evidence, or Failed; reads, and changes nothing."""

    async def take(self, job: Job[E]) -> Taken:
        """Make the device usable; whatever is changed goes to `job.undo` as well.

        Raises what `job.until` does.
        """
        return Taken(sighting=await job.until(self.probe))

    async def give_back(
        self, hands: Hands, device: AttachedDevice, kept: Mapping[str, str]
    ) -> None:
        """Take back what `take` changed; the device may be gone already. Raises AgentError."""

    def restored(self, device: AttachedDevice, kept: Mapping[str, str]) -> None:
        """A new agent has taken the device over: what `take` noted in memory is to be noted
        again."""

    def own_nodes(self, device: AttachedDevice) -> tuple[DeviceNode, ...]:
        """Those of its nodes whose users use this device, and not another that shares them."""
        return device.nodes

    def removable(self, device: AttachedDevice) -> str | None:  # noqa: ARG002 - for subclasses
        """Why the guest can't let go of the device; None when it can."""
        return None


def describe(tree: SysfsTree, place: Place) -> str:
    """A place for people: address, ids, driver and what is below it."""
    driver = tree.link_name(place.directory / "driver")
    below = [_child(tree, path) for path in _devices(tree, place.directory)]
    return (
        f"{_what(tree, place)} is there, "
        f"{f'its driver is {driver}' if driver else 'it has no driver'}, "
        f"below it: {', '.join(below) or 'nothing'}"
    )


def absent(tree: SysfsTree, place: Place, what: str, near: tuple[str, ...] = ()) -> NotYet:
    """The place is there and has no such part so far, maybe for want of a driver.

    `near` are further device paths where the part may show up.
    """
    waiting = tuple(_driverless(tree, place.directory))
    return NotYet(
        evidence=f"{describe(tree, place)}{_driver_notes(tree, waiting)}; no {what}",
        near=(tree.devpath(place.directory), *near),
        driverless=waiting,
        names=names(tree, place),
        facts=facts(tree, place),
        hint=_NO_DRIVER if waiting else _OTHER_KIND,
    )


def names(tree: SysfsTree, place: Place) -> tuple[str, ...]:
    """The kernel's names of the device and of those right below it, as its log has them."""
    return (place.name, *(path.name for path in _devices(tree, place.directory)))


def facts(tree: SysfsTree, place: Place) -> tuple[tuple[str, str], ...]:
    """What an error says of a place for programs."""
    below = " ".join(path.name for path in _devices(tree, place.directory))
    driver = tree.link_name(place.directory / "driver") or "none"
    return (("reached", place.name), ("driver", driver), ("children", below or "none"))


def refusal(tree: SysfsTree, place: Place) -> Failed | None:
    """Why no driver will ever serve this place, where the kernel lets us know."""
    for child in children(tree, place.directory):
        status = tree.text(child / "status") or ""
        if child.name.startswith("virtio") and status and int(status, 16) & _VIRTIO_FAILED:
            return Failed(
                f"its driver refused {child.name} (status {status})",
                Reason.DRIVER_REFUSED,
                names(tree, place),
            )
    if tree.link_name(place.directory / "driver") is not None:
        return None
    return _unset(tree, place.function) or tree.log.refusal(names(tree, place))


def unexpected(
    tree: SysfsTree, place: Place, *, pci_id: str | None, driver: str | None
) -> NotYet | None:
    """The place has another device than expected, or another driver so far; None if not."""
    near = (tree.devpath(place.directory),)
    there = pci_id_of(tree, place.function) if place.function else ""
    if pci_id is not None and there != pci_id:
        evidence = f"{_what(tree, place)} is another device than expected: not {pci_id}"
        return NotYet(evidence=evidence, near=near, reason=Reason.UNEXPECTED_DEVICE)
    bound = tree.link_name(place.directory / "driver")
    if driver is not None and bound is not None and bound != driver:
        evidence = f"{_what(tree, place)} has the driver {bound}, not {driver}"
        return NotYet(evidence=evidence, near=near, reason=Reason.UNEXPECTED_DEVICE)
    return None


def settled(tree: SysfsTree, place: Place) -> SlowRead | None:
    """What ends once a bound driver's probe is over; None when it has ended.

    The `driver` link is made before the driver's probe runs, so what a driver makes may
    not all be there yet, and no attribute tells. But the probe runs under the device's
    lock, and a word that `power/control` does not know is refused, with nothing changed,
    once that lock could be had (drivers/base/power/sysfs.c, control_store). Reading
    `driver_override` did as much until overrides got a lock of their own: Linux 7.0, and
    6.12 by its updates.
    """
    driver = tree.link_name(place.directory / "driver")
    instance = tree.instance(place.directory)
    if driver is None or not place.is_function:
        return None
    path = place.directory / "power/control"
    read = SlowRead(path=path, instance=f"{instance} {driver}", poke="wait\n")
    return None if tree.slow_text(read) is not None else read


def pci_id_of(tree: SysfsTree, function: PciFunction) -> str:
    """ "1af4:1042"; "?" stands for what sysfs does not tell."""
    parts = (tree.text(function.directory / name) or "?" for name in ("vendor", "device"))
    return ":".join(part.removeprefix("0x") for part in parts)


def pci_class_of(tree: SysfsTree, function: PciFunction) -> str:
    """ "010802"; empty when sysfs does not tell."""
    return (tree.text(function.directory / "class") or "").removeprefix("0x")


def numa_node(tree: SysfsTree, function: PciFunction) -> int | None:
    """The NUMA node; the kernel writes -1 where it knows none."""
    number = int(tree.text(function.directory / "numa_node") or "-1")
    return None if number < 0 else number


def iommu_group(tree: SysfsTree, function: PciFunction) -> int | None:
    name = tree.link_name(function.directory / "iommu_group")
    return int(name) if name is not None and name.isdecimal() else None


def refused(device: AttachedDevice, why: str, reason: Reason) -> AgentError:
    """A request that this device can't serve as things are; nothing was changed."""
    return wrong_state(
        f"device {device.request.id} at {device.request.address}: {why}",
        reason=reason,
        id=device.request.id,
    )


def _devices(tree: SysfsTree, directory: Path) -> Iterator[Path]:
    """The directories that are devices: `net` and `block` in between are none."""
    for path in children(tree, directory):
        if tree.link_name(path / "subsystem") is not None:
            yield path
        elif not (path / "uevent").exists():
            yield from (p for p in children(tree, path) if tree.link_name(p / "subsystem"))


def _what(tree: SysfsTree, place: Place) -> str:
    function = place.function
    if function is None or not place.is_function:
        behind = f" behind {function.bdf}" if function else ""
        return f"the device {place.name}{behind}"
    ids = pci_id_of(tree, function)
    return f"the PCI function {function.bdf} (path {function.path}, {ids})"


def _unset(tree: SysfsTree, function: PciFunction | None) -> Failed | None:
    if function is None or not is_added(tree, function):
        return None
    bars = _unset_bars(tree.text(function.directory / "resource") or "")
    if not bars:
        return None
    text = ", ".join(map(str, bars))
    return Failed(
        f"BAR {text} of {function.bdf} has no address: its bridge has no room",
        Reason.NO_BAR_ADDRESS,
        (str(function.bdf),),
    )


def _driverless(tree: SysfsTree, directory: Path) -> Iterator[Path]:
    """The device and those below it that could have a driver and have none."""
    if tree.wanted_driver(directory) is not None:
        yield directory
    for path in children(tree, directory):
        yield from _driverless(tree, path)


def _driver_notes(tree: SysfsTree, waiting: tuple[Path, ...]) -> str:
    """What came of looking for the drivers that are missing."""
    notes = (
        f"; no driver for {path.name}: {note}"
        for path in waiting
        if (note := tree.driver_notes.get(tree.wanted_driver(path) or ""))
    )
    return "".join(notes)


def _child(tree: SysfsTree, path: Path) -> str:
    if not path.name.startswith("virtio"):
        return path.name
    return f"{path.name} ({tree.link_name(path / 'driver') or 'no driver'})"


def is_added(tree: SysfsTree, function: PciFunction) -> bool:
    """Whether the kernel is done with the function: its directory comes before its addresses.

    pci_bus_add_device makes the entry of /proc/bus/pci after addresses are assigned and
    before a driver is tried. Domains other than 0 have them in their bus directory's name.
    """
    bus = function.bdf.bus
    slot = f"{function.bdf.slot.slot:02x}.{function.bdf.slot.function}"
    names = (f"{bus.number:02x}", str(bus))
    return any((tree.roots.proc / "bus/pci" / name / slot).exists() for name in names)


def _unset_bars(resource: str) -> list[int]:
    lines = [line.split() for line in resource.splitlines()[:_BARS]]
    flags = [int(line[2], 16) if len(line) == 3 else 0 for line in lines]
    wanted = _IORESOURCE_MEM | _IORESOURCE_UNSET
    return [number for number, value in enumerate(flags) if value & wanted == wanted]

"""Random number generators: found by device, made the kernel's source, and given back.

The kernel's core of generators (/sys/class/misc/hw_random) knows them by name alone,
and links none to its device. Some names hold the device's own, as the TPM's does; those
of virtio are numbered by when they came, the lowest free number first, and not as the
virtio devices are. What tells them apart is order. `rng_available` lists the generators
of a driver as they were registered, which a driver does while it takes a device; and
the link `driver` of a device is made right before, with an inode number that only ever
grows in sysfs (fs/kernfs: numbers are given in a cycle, and count how often it came
round). So the devices of a driver by the age of that link are its generators by name,
provided that none of them is coming or leaving at that moment, and their numbers agree;
else it is not known, and this says so instead of a guess. The order could only be wrong
were two devices taken at the same moment, and the PCI core plugs one at a time
(pci_rescan_remove_lock).

/dev/hwrng belongs to whichever generator is the source, so it is a device's node
exactly while that device is. Facts: drivers/char/hw_random/{core,virtio-rng}.c;
Documentation/admin-guide/hw_random.rst.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from agent.core.deadlines import Deadline
from agent.core.errors import kernel_refused
from agent.core.kinds import RngExpectation, RngInfo
from agent.core.verdict import NotYet, Ready, Verdict
from agent.handlers.devices import base, nodes
from agent.handlers.devices.base import DeviceClass, Found, Taken
from agent.handlers.devices.job import GIVE_BACK_WITHIN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.core.model import AttachedDevice, DeviceNode
    from agent.core.places import Place
    from agent.core.tree import SysfsTree
    from agent.handlers.devices.job import Hands, Job

log = logging.getLogger(__name__)

_CORE = "class/misc/hw_random"

# What `rng_current` says without a source; newer kernels list it as a choice as well.
_NONE = "none"

# An empty line leaves the choice to the kernel (rng_current_store).
_KERNELS_CHOICE = ""


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A generator whose name is not known, and why."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """The kernel's generators: by name in its order, the source, and whether that was chosen."""

    available: tuple[str, ...]
    current: str
    chosen: bool

    @classmethod
    def read(cls, tree: SysfsTree) -> _Sources:
        core = tree.roots.sys / _CORE
        return cls(
            available=tuple((tree.text(core / "rng_available") or "").split()),
            current=tree.text(core / "rng_current") or _NONE,
            chosen=tree.text(core / "rng_selected") == "1",
        )


class RngDevices(DeviceClass[RngExpectation]):
    """One generator; on request the kernel's source for as long as it is attached."""

    name = "rng"
    expectation = RngExpectation

    def probe(
        self,
        tree: SysfsTree,
        place: Place,
        expected: RngExpectation,  # noqa: ARG002 - what is asked for is done by `take`
    ) -> Verdict[Found]:
        device = _source_device(tree, place)
        if tree.link_name(device / "driver") is None:
            return base.refusal(tree, place) or base.absent(tree, place, "generator")
        name = _name_of(tree, device)
        if name is None:
            return base.absent(tree, place, "generator of its driver's")
        if isinstance(name, _Unknown):
            # Whatever happens to any generator may make it known.
            return NotYet(evidence=name.why, names=base.names(tree, place))
        current = _Sources.read(tree).current == name
        node = _node(tree) if current else None
        if isinstance(node, nodes.NoNode):
            return NotYet(evidence=node.why)
        info = RngInfo(name=name, current=current)
        return Ready(Found(nodes=(node,) if node else (), info=info))

    async def take(self, job: Job[RngExpectation]) -> Taken:
        sighting = await job.until(self.probe)
        info = sighting.found.info
        if not isinstance(info, RngInfo) or info.current or not job.expected.make_current:
            return Taken(sighting=sighting)
        tree = job.hands.tree
        before = _Sources.read(tree)
        chosen = "1" if before.chosen else "0"
        kept = {"name": info.name, "former": before.current, "chosen": chosen}
        job.claim(sighting.place.directory)
        job.note(kept)
        # First, since the write may have come through although it was not waited for.
        job.undo.push(f"make {before.current} the source again", partial(_restore, job.hands, kept))
        await job.write(tree.roots.sys / _CORE / "rng_current", f"{info.name}\n")
        made = await job.until(partial(_as_current, self))
        told = replace(
            made.found, info=RngInfo(name=info.name, current=True, former=before.current)
        )
        return Taken(sighting=replace(made, found=told), kept=kept)

    async def give_back(
        self,
        hands: Hands,
        device: AttachedDevice,  # noqa: ARG002 - what was changed is in `kept`
        kept: Mapping[str, str],
    ) -> None:
        # There is more in it where a driver was switched.
        if "former" in kept:
            await _restore(hands, kept)


def _as_current(
    rngs: RngDevices, tree: SysfsTree, place: Place, expected: RngExpectation
) -> Verdict[Found]:
    verdict = rngs.probe(tree, place, expected)
    if not isinstance(verdict, Ready) or verdict.result.nodes:
        return verdict
    # Some kernels take any name, and do nothing for one that they don't know.
    current = _Sources.read(tree).current
    return NotYet(
        evidence=f"the kernel was told to use the generator of {place.name}: {current} is"
    )


async def _restore(hands: Hands, kept: Mapping[str, str]) -> None:
    """Make the former source the source again, if nobody has chosen another meanwhile."""
    now = _Sources.read(hands.tree)
    name, former = kept["name"], kept["former"]
    # When a source goes, the kernel takes the best of the others: that is nobody's choice.
    replaced = name not in now.available and not now.chosen
    if now.current != name and not replaced:
        log.info("the source of random numbers is %s: left as it is", now.current)
        return
    if kept["chosen"] == "0" or former not in now.available:
        await _choose(hands, _KERNELS_CHOICE)
        now = _Sources.read(hands.tree)
    if former in now.available and now.current != former:
        await _choose(hands, former)


async def _choose(hands: Hands, name: str) -> None:
    """May take long: the kernel reads from its new source first, and waits for its old one."""
    path = hands.tree.roots.sys / _CORE / "rng_current"
    try:
        await hands.write(path, f"{name}\n", Deadline.after(GIVE_BACK_WITHIN))
    except OSError as error:
        doing = f"make {name or 'the best generator'} the source of random numbers again"
        raise kernel_refused(error, doing=doing) from error


def _node(tree: SysfsTree) -> DeviceNode | nodes.NoNode:
    core = tree.real(tree.roots.sys / _CORE)
    return nodes.node_of(tree, core) if core else nodes.NoNode("the kernel has no hw_random device")


def _source_device(tree: SysfsTree, place: Place) -> Path:
    """The device whose driver makes the generator: the virtio device that the place carries."""
    carried = (
        path
        for path in nodes.children(tree, place.directory)
        if tree.link_name(path / "subsystem") == "virtio"
    )
    return next(carried, place.directory)


def _name_of(tree: SysfsTree, device: Path) -> str | _Unknown | None:
    """The name of a device's generator; None: there is none so far."""
    available = _Sources.read(tree).available
    own = {device.name, *(f"tpm-rng-{number}" for number in _tpms(tree, device))}
    for name in available:
        if name in own or name.endswith(f"-{device.name}"):
            return name
    return _by_order(tree, device, tree.link_name(device / "driver") or "")


def _tpms(tree: SysfsTree, device: Path) -> tuple[str, ...]:
    return tuple(name.removeprefix("tpm") for name in tree.names(device / "tpm"))


def _by_order(tree: SysfsTree, device: Path, driver: str) -> str | _Unknown | None:
    before = _taken_by(tree, device)
    available = _Sources.read(tree).available
    names = [name for name in available if _is_of(name, driver)]
    if not names:
        return None
    passing = _passing(tree, device)
    if before != _taken_by(tree, device) or passing or len(before) != len(names):
        return _Unknown(_confusion(driver, before, names, passing))
    return dict(zip(before, names, strict=True)).get(device.name) or _Unknown(
        f"{device.name} is not among the devices of {driver}"
    )


def _is_of(name: str, driver: str) -> bool:
    """Whether a generator is named after a driver: "virtio_rng.0", "ccp-1-rng"."""
    plain = name.replace("-", "_")
    stem = driver.replace("-", "_")
    return plain == stem or plain.startswith((f"{stem}.", f"{stem}_"))


def _taken_by(tree: SysfsTree, device: Path) -> tuple[str, ...]:
    """All devices of the same driver, in the order in which it took them."""
    driver = tree.real(device / "driver")
    if driver is None:
        return ()
    aged = [
        (age, name)
        for name in tree.names(driver)
        if (age := _age(driver / name / "driver")) is not None
    ]
    return tuple(name for _, name in sorted(aged))


def _age(link: Path) -> int | None:
    try:
        return link.lstat().st_ino
    except OSError:
        return None


def _passing(tree: SysfsTree, device: Path) -> list[str]:
    """Devices of the same kind without a driver: on their way in, or on their way out, when
    the driver has let go of them already and their generator is still listed."""
    alias = tree.text(device / "modalias")
    listing = tree.real(device / "subsystem")
    if alias is None or listing is None:
        return []
    others = tree.names(listing / "devices")
    return [each for each in others if tree.wanted_driver(listing / "devices" / each) == alias]


def _confusion(driver: str, devices: tuple[str, ...], names: list[str], passing: list[str]) -> str:
    moving = f", {', '.join(passing)} without a driver" if passing else ""
    return (
        f"which generator is its is not known: {driver} has the devices "
        f"{', '.join(devices) or 'none'}{moving}; the kernel has the generators {', '.join(names)}"
    )

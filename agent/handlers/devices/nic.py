"""Network interfaces by the device that has them; naming and configuring is not done here.

An interface is a directory below its device (`net/eth0`, behind virtio `virtio3/net/eth0`),
named as the interface is: it moves when the interface is renamed, and two that exchange
their names may do so between two reads. So all is read through one descriptor of the
directory, which stays the interface's own; its `uevent` file tells name and index in one
read. A directory `net` shows those interfaces alone that are in the network namespace of
the sysfs mount. Facts: Documentation/ABI/testing/sysfs-class-net; netdev_uevent in
net/core/net-sysfs.c.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.core.errors import Reason
from agent.core.kinds import NicExpectation, NicInfo
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices import base, nodes
from agent.handlers.devices.base import DeviceClass, Found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.places import Place
    from agent.core.tree import SysfsTree


@dataclass(frozen=True, slots=True)
class _NoInterface:
    """An interface that can't be told yet, and why."""

    why: str


class NicDevices(DeviceClass[NicExpectation]):
    """One interface behind a device; with several, the one that has the expected address."""

    name = "nic"
    expectation = NicExpectation

    def probe(self, tree: SysfsTree, place: Place, expected: NicExpectation) -> Verdict[Found]:
        found = [_read(tree, path) for path in _interfaces(tree, place)]
        known = _once([each for each in found if isinstance(each, NicInfo)])
        if fitting := [each for each in known if expected.mac in (None, each.mac)]:
            return _choose(tree, place, expected, fitting)
        if waiting := [each.why for each in found if isinstance(each, _NoInterface)]:
            near, names = (tree.devpath(place.directory),), base.names(tree, place)
            return NotYet(evidence="; ".join(waiting), near=near, names=names)
        if known:
            return _another(tree, place, expected, known)
        return base.refusal(tree, place) or _absent(tree, place)


def _interfaces(tree: SysfsTree, place: Place) -> list[Path]:
    """With failover virtio-net has two of one address: the one that is meant for use is
    the master of the other (Documentation/networking/net_failover.rst)."""
    found = list(nodes.below(tree, place.directory, "net"))
    names = {path.name for path in found}
    return [
        path
        for path in found
        if place.interface in (None, path.name) and tree.link_name(path / "master") not in names
    ]


def _once(found: list[NicInfo]) -> list[NicInfo]:
    """One that was renamed after the directory was listed is there under both names."""
    return list({each.ifindex: each for each in found}.values())


def _read(tree: SysfsTree, directory: Path) -> NicInfo | _NoInterface:
    """The interface that has this directory now, whatever it is called meanwhile."""
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return _NoInterface(f"the interface {directory.name} has gone or got another name")
    try:
        return _read_held(tree, directory.name, Path(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def _read_held(tree: SysfsTree, called: str, held: Path) -> NicInfo | _NoInterface:
    address = tree.text(held / "address")
    mtu = _number(tree.text(held / "mtu"))
    # Last, so that the name is the newest.
    properties = tree.properties(held)
    name, index = properties.get("INTERFACE"), _number(properties.get("IFINDEX"))
    if name is None or not index or address is None or mtu is None:
        return _NoInterface(f"the interface {called} is only half there so far")
    return NicInfo(name=name, mac=address.lower(), mtu=mtu, ifindex=index)


def _choose(
    tree: SysfsTree, place: Place, expected: NicExpectation, fitting: list[NicInfo]
) -> Verdict[Found]:
    if len(fitting) > 1:
        return Failed(f"{place.name} has several interfaces that fit: {_shown(fitting)}")
    # Without an address to go by, a driver that is still at work may bring a second one.
    by_address = expected.mac is not None or place.interface is not None
    read = None if by_address else base.settled(tree, place)
    if read is not None:
        return NotYet(
            evidence=f"the driver of {place.name} is still at work: so far {_shown(fitting)}",
            near=(tree.devpath(place.directory),),
            needs=(read,),
        )
    return Ready(Found(nodes=(), info=fitting[0]))


def _another(
    tree: SysfsTree, place: Place, expected: NicExpectation, known: list[NicInfo]
) -> NotYet:
    return NotYet(
        evidence=f"no interface of {place.name} has the address {expected.mac}: {_shown(known)}",
        near=(tree.devpath(place.directory),),
        facts=base.facts(tree, place),
        reason=Reason.UNEXPECTED_DEVICE,
    )


def _absent(tree: SysfsTree, place: Place) -> NotYet:
    what = f"network interface {place.interface}" if place.interface else "network interface"
    if any(_net_directories(tree, place.directory)) and not place.interface:
        what += " in sight: its driver has made one, which may be in another network namespace"
    return base.absent(tree, place, what)


def _net_directories(tree: SysfsTree, directory: Path) -> Iterator[Path]:
    """Directories of interfaces: the kernel removes one when its last interface goes."""
    for path in nodes.children(tree, directory):
        if path.name == "net":
            yield path
        else:
            yield from _net_directories(tree, path)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None


def _shown(interfaces: list[NicInfo]) -> str:
    return ", ".join(f"{each.name} ({each.mac or 'without an address'})" for each in interfaces)

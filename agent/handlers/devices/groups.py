"""IOMMU groups: the smallest sets of functions that can be given to user space.

A group is usable once none of its functions has a driver that does DMA for the guest
(Documentation/driver-api/vfio.rst, "groups"). Such are not: VFIO's own, pci-stub and
the port driver of bridges (`driver_managed_dma` in drivers/iommu/iommu.c and its users);
a function without a driver is fine as well. Groups without an IOMMU (drivers/vfio/group.c)
are made when VFIO binds a function, have that one function, and are named "vfio-noiommu".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Reason, not_found, wrong_state
from agent.core.model import AttachedDevice, DeviceRequest
from agent.core.pci import Bdf
from agent.core.places import find
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.base import iommu_group, is_added
from agent.handlers.devices.binding import is_vfio

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.core.tree import PciFunction, SysfsTree

_SAFE = frozenset({"", "pci-stub", "pcieport"})
_BRIDGE = "0604"

_NO_GROUP_HINT = (
    "the VM needs an IOMMU (start it with --iommu), the guest's kernel intel_iommu=on; or attach "
    "it in guest-kernel mode"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A device of a group; `driver` is empty without one."""

    directory: Path
    driver: str
    is_function: bool
    is_bridge: bool

    @property
    def name(self) -> str:
        """Of a PCI function its BDF."""
        return self.directory.name

    @property
    def is_safe(self) -> bool:
        """Whether user space can have the group in spite of this member's driver."""
        return self.driver in _SAFE or is_vfio(self.driver)

    @property
    def can_be_taken(self) -> bool:
        """Whether it may be bound to VFIO too: also without a driver, since one that comes
        later would take the group from user space."""
        return self.is_function and not self.is_bridge and self.driver != "pci-stub"

    def __str__(self) -> str:
        return f"{self.name} ({self.driver or 'no driver'})"


def members(tree: SysfsTree, group: int) -> tuple[Member, ...]:
    """All devices of a group, by name."""
    listing = tree.roots.sys / "kernel/iommu_groups" / str(group) / "devices"
    found = (tree.real(listing / name) for name in tree.names(listing))
    return tuple(_member(tree, directory) for directory in found if directory is not None)


def has_no_iommu(tree: SysfsTree, group: int) -> bool:
    name = tree.text(tree.roots.sys / "kernel/iommu_groups" / str(group) / "name")
    return name == "vfio-noiommu"


def allows_no_iommu(tree: SysfsTree) -> bool:
    """Whether VFIO will make a group of its own for a function that has none."""
    parameter = "module/vfio/parameters/enable_unsafe_noiommu_mode"
    return tree.text(tree.roots.sys / parameter) == "Y"


def arrived(function: PciFunction, tree: SysfsTree) -> Verdict[int | None]:
    """The function's group, once the kernel is done with the function; None: it has none."""
    if not function.directory.is_dir():
        return Failed(f"{function.bdf} went away")
    if not is_added(tree, function):
        return NotYet(
            evidence=f"{function.bdf} is still being added",
            near=(tree.devpath(function.directory),),
            names=(str(function.bdf),),
        )
    return Ready(iommu_group(tree, function))


def agree(
    function: PciFunction,
    others: tuple[str, ...],
    peer: Callable[[str], DeviceRequest | AttachedDevice | None],
    tree: SysfsTree,
) -> Verdict[None]:
    """Ready when the function is in one group with all other devices, which may have to come.

    Raises GROUP_MISMATCH, NO_IOMMU_GROUP, UNKNOWN_DEVICE, naming the other device.
    """
    own = iommu_group(tree, function)
    for other in others:
        found = _function_of_peer(tree, other, peer(other))
        if not isinstance(found, Ready):
            return found
        verdict = arrived(found.result, tree)
        if not isinstance(verdict, Ready):
            return verdict
        if verdict.result != own or own is None:
            raise _mismatch(f"{function.bdf}", own, other, found.result, verdict.result)
    return Ready(None)


def no_group(what: str, bdf: object) -> AgentError:
    return wrong_state(
        f"{what}: {bdf} is in no IOMMU group, so that VFIO can't have it",
        reason=Reason.NO_IOMMU_GROUP,
        hint=_NO_GROUP_HINT,
        address=bdf,
    )


def _member(tree: SysfsTree, directory: Path) -> Member:
    pci_class = (tree.text(directory / "class") or "").removeprefix("0x")
    return Member(
        directory=directory,
        driver=tree.link_name(directory / "driver") or "",
        is_function=Bdf.is_name(directory.name),
        is_bridge=pci_class.startswith(_BRIDGE),
    )


def _function_of_peer(
    tree: SysfsTree, name: str, peer: DeviceRequest | AttachedDevice | None
) -> Verdict[PciFunction]:
    if peer is None:
        raise not_found(
            f"no device {name!r} is attached or being attached, to be in one group with",
            reason=Reason.UNKNOWN_DEVICE,
            hint="attach it in the same batch, or before",
            id=name,
        )
    address = peer.request.address if isinstance(peer, AttachedDevice) else peer.address
    found = find(tree, address)
    if not isinstance(found, Ready):
        return found
    if found.result.function is None:
        return Failed(f"the device {name} at {address} is no PCI function, and so in no group")
    return Ready(found.result.function)


def _mismatch(
    bdf: str, own: int | None, name: str, other: PciFunction, group: int | None
) -> AgentError:
    if own is None or group is None:
        return no_group(f"device {name}", other.bdf if group is None else bdf)
    return wrong_state(
        f"{bdf} is in the IOMMU group {own}, the device {name} ({other.bdf}) in the group {group}",
        reason=Reason.GROUP_MISMATCH,
        hint="the host says they are one group: is the VM's topology as it believes?",
        address=bdf,
        group=own,
        other=name,
        other_address=other.bdf,
        other_group=group,
    )

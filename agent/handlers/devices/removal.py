"""How the kernel is told to let go of a device, and to look again at its place.

Before the host unplugs a function, the guest takes it out through sysfs: its driver is
done with it then, which an unplug in the middle of its work would not ask about. It
comes back, when the host does not unplug after all, by a look at the one bus that it
was on; the file that has the whole machine looked at (/sys/bus/pci/rescan) is for
platforms without hot-plug notice alone. Facts: Documentation/ABI/testing/sysfs-bus-pci
(remove, pci_bus/.../rescan), sysfs-bus-scsi (delete).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agent.core.addresses import ScsiName
from agent.core.errors import Reason, kernel_refused
from agent.core.pci import Bdf
from agent.core.verdict import NotYet, Ready, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.hotplug import HotplugBoard
    from agent.core.tree import SysfsTree
    from agent.handlers.devices.table import Entry

log = logging.getLogger(__name__)


async def take_out(board: HotplugBoard, entry: Entry, deadline: Deadline) -> bool:
    """Have the kernel let go of it; False where sysfs has no way to say so.

    Raises KERNEL_REFUSED, OPERATION_TIMED_OUT.
    """
    file = _removal_file(entry)
    if file is None:
        return False
    await _write(board, file, f"take {entry.directory.name} out", deadline)
    return True


async def bring_back(board: HotplugBoard, entry: Entry, deadline: Deadline) -> None:
    """Have the kernel look at the place that the device was taken out of.

    A SCSI device needs no more than a new search for it: its host is asked then.
    """
    if not entry.is_function:
        return
    bus = str(Bdf.parse(entry.device.bdf).bus)
    file = entry.directory.parent / "pci_bus" / bus / "rescan"
    await _write(board, file, f"look at the bus {bus} again", deadline)


def _removal_file(entry: Entry) -> Path | None:
    if entry.is_function:
        # A virtual function has no such file: its physical function makes and removes it.
        return None if entry.physical_function else entry.directory / "remove"
    if ScsiName.of(entry.directory.name):
        return entry.directory / "delete"
    return None


async def _write(board: HotplugBoard, file: Path, doing: str, deadline: Deadline) -> None:
    try:
        await board.write(file, "1\n", deadline)
    except FileNotFoundError:
        log.info("%s: %s is gone", doing, file)
    except OSError as error:
        raise kernel_refused(error, doing=doing) from error


def probe_gone(entry: Entry, tree: SysfsTree) -> Verdict[None]:
    """Whether sysfs no longer has this very device, whatever there is at its place."""
    if not entry.is_there(tree):
        return Ready(None)
    driver = tree.link_name(entry.directory / "driver")
    return NotYet(
        evidence=(
            f"sysfs still has {entry.directory.name}, "
            f"{f'bound to {driver}' if driver else 'without a driver'}"
        ),
        near=(tree.devpath(entry.directory),),
        names=(entry.directory.name,),
        facts=(("driver", driver or "none"),),
        reason=Reason.DEVICE_STILL_PRESENT,
    )

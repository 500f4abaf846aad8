"""Which driver serves a PCI function: changed in one way, and changed back.

The order is the kernel's own (Documentation/ABI/testing/sysfs-bus-pci and
Documentation/driver-api/vfio.rst): the override first, so that nobody else's driver
takes the function in between; then the present driver is unbound; then the bus is asked
to look for a driver, which runs the driver's probe before write(2) returns
(drivers/base/bus.c, drivers_probe_store). The way back is the same, with what there was.

A driver comes and goes under the function's lock (drivers/base/dd.c), and a VFIO driver
that is told to go waits, with the lock held, until its device is closed: a write can last,
and is given up at the deadline. The driver's link says little meanwhile: it is made before
the probe and taken away before the driver is. So before anything is judged, the lock is
waited for.
"""

from __future__ import annotations

import errno
import json
import re
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent.core.deadlines import Deadline
from agent.core.errors import (
    AgentError,
    Reason,
    invalid,
    kernel_refused,
    timed_out,
    wrong_state,
)
from agent.core.verdict import Failed, NotYet, Ready, SlowRead, Verdict
from agent.handlers.devices.job import GIVE_BACK_WITHIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.core.tree import PciFunction, SysfsTree
    from agent.core.undo import UndoStack
    from agent.handlers.devices.job import Hands

VFIO_PCI = "vfio-pci"

REFUSED_AFTER = 1.0
"""Seconds from the end of `drivers_probe` until a function without the driver counts as
refused. Only a function that is just being added gets its driver after that write."""

# A name of drivers/*/: what modprobe takes and a directory of /sys/bus/pci/drivers can be.
_DRIVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")

# driver_override_show prints a null pointer so.
_NO_OVERRIDE = "(null)"

# Group nodes are named by the number, with an IOMMU and without.
_GROUPS = ("", "noiommu-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A function as it was before `switch`: what `give_back` has to know.

    `driver` and `override` are empty where there was none, `given_to` is the driver that
    got it (empty: the guest's own choice). `changed` is False when all was as wanted.
    """

    directory: str
    instance: str
    driver: str
    override: str
    given_to: str = ""
    changed: bool = True

    @property
    def bdf(self) -> str:
        return Path(self.directory).name


def is_vfio(driver: str) -> bool:
    """Whether it is vfio-pci or a vendor's variant of it, such as mlx5_vfio_pci."""
    return driver.replace("-", "_").endswith("vfio_pci")


def is_stand_in(driver: str) -> bool:
    """Whether it holds a function without making anything of it in the guest."""
    return is_vfio(driver) or driver == "pci-stub"


async def switch(
    hands: Hands,
    function: PciFunction,
    driver: str | None,
    deadline: Deadline,
    undo: UndoStack,
    *,
    refusal: Reason = Reason.DRIVER_REFUSED,
) -> Former:
    """Have a driver serve the function, and be done with its probe; None: the guest's own.

    With None an override for another is cleared, a VFIO driver unbound, and the kernel chooses:
    whether and when a driver takes it is for the caller to wait for. Nothing is written when all is
    as wanted. Whatever fails, `undo` brings back the former driver and override.

    Raises MODULE_REFUSED (no such driver), `refusal` (the driver does not take it, with the
    kernel log's lines), KERNEL_REFUSED, OPERATION_TIMED_OUT, DEVICE_FAILED (it went away).
    """
    former = await before(hands, function, driver, deadline)
    binding = _Binding(hands=hands, directory=function.directory, deadline=deadline)
    if not former.changed:
        if driver is not None:
            await binding.settle(driver, refusal)
        elif not former.driver:
            await binding.find_driver()
        return former
    undo.push(
        f"give {former.bdf} back to {former.driver or 'no driver'}",
        lambda: give_back(hands, former, Deadline.after(GIVE_BACK_WITHIN)),
    )
    if driver is None:
        await binding.free(former)
    else:
        await binding.give_to(driver, refusal)
    return former


async def before(
    hands: Hands, function: PciFunction, driver: str | None, deadline: Deadline
) -> Former:
    """The function as it is, and whether `switch` will change it; raises as that does."""
    if driver is not None:
        await have_driver(hands, driver, deadline)
    binding = _Binding(hands=hands, directory=function.directory, deadline=deadline)
    former = await binding.former()
    wanted = _is_as_wanted(former, driver)
    return replace(former, given_to=driver or "", changed=not wanted)


async def give_back(hands: Hands, former: Former, deadline: Deadline) -> None:
    """Override and driver as they were before `switch`, from whatever state it is in now.

    Fine when that is done already, or when the function is gone. Raises KERNEL_REFUSED,
    DRIVER_REFUSED (the former driver did not take it), OPERATION_TIMED_OUT: the kernel waits
    until a VFIO device is closed.
    """
    binding = _Binding(hands=hands, directory=Path(former.directory), deadline=deadline)
    if not former.changed or binding.instance != former.instance:
        return
    await binding.rest()
    if await binding.override() != former.override:
        await binding.set_override(former.override)
    if not _has_other_driver(former, binding.driver):
        return
    await binding.unbind()
    await binding.find_driver()
    if former.driver:
        await binding.settle(former.driver, Reason.DRIVER_REFUSED)
    elif not binding.driver:
        # It came without a driver, perhaps because the module was not loaded by then.
        hands.board.look_after((binding.directory,))


def to_kept(formers: Iterable[Former], purpose: str = "driver") -> dict[str, str]:
    """For `Taken.kept`: one entry for each function that was changed for that purpose."""
    return {
        f"{purpose} {former.bdf}": json.dumps(asdict(former), sort_keys=True)
        for former in formers
        if former.changed
    }


def from_kept(kept: Mapping[str, str], purpose: str = "driver") -> tuple[Former, ...]:
    """The formers of `to_kept`, in the order in which they are to be given back."""
    texts = [text for key, text in kept.items() if key.startswith(f"{purpose} ")]
    return tuple(Former(**json.loads(text)) for text in reversed(texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binding:
    """The steps on one function, each bounded by the deadline."""

    hands: Hands
    directory: Path
    deadline: Deadline

    @property
    def bdf(self) -> str:
        return self.directory.name

    @property
    def tree(self) -> SysfsTree:
        return self.hands.tree

    @property
    def driver(self) -> str:
        return self.tree.link_name(self.directory / "driver") or ""

    @property
    def instance(self) -> str:
        return self.tree.instance(self.directory) or ""

    async def former(self) -> Former:
        instance = self.instance
        if not instance:
            raise _gone(self.bdf)
        await self.rest()
        return Former(
            directory=str(self.directory),
            instance=instance,
            driver=self.driver,
            override=await self.override(),
        )

    async def rest(self) -> None:
        """Until no driver is being probed or removed.

        A word that power/control does not know is refused, with nothing changed, but only once
        the function's lock could be had (drivers/base/power/sysfs.c, control_store). Reading
        driver_override waited for that lock, too, until overrides got a lock of their own:
        Linux 7.0, and 6.12 by its updates.
        """
        path = self.directory / "power/control"
        await self._write(path, "wait", fine=(errno.EINVAL, errno.ENOENT))

    async def override(self) -> str:
        read = SlowRead(path=self.directory / "driver_override", instance=self.instance)
        text = await self.hands.board.slow_text(read, self.deadline)
        if text is None:
            raise self._late(f"read {read.path}", self.driver)
        return "" if text == _NO_OVERRIDE else text

    async def give_to(self, driver: str, refusal: Reason) -> None:
        await self.set_override(driver)
        if self.driver != driver:
            await self.unbind()
            await self.find_driver()
        await self.settle(driver, refusal)

    async def free(self, former: Former) -> None:
        if former.override:
            await self.set_override("")
        if is_stand_in(self.driver):
            await self.unbind()
        if not self.driver:
            await self.find_driver()

    async def set_override(self, driver: str) -> None:
        await self._write(self.directory / "driver_override", driver)

    async def unbind(self) -> None:
        driver = self.driver
        if driver:
            # ENODEV, ENOENT: it has let go by itself meanwhile.
            path = self._bus / "drivers" / driver / "unbind"
            await self._write(path, self.bdf, fine=(errno.ENODEV, errno.ENOENT))

    async def find_driver(self) -> None:
        """Have the bus look for a driver; a probe that is put off shows as EINVAL."""
        await self._write(self._bus / "drivers_probe", self.bdf, fine=(errno.EINVAL,))

    async def settle(self, driver: str, refusal: Reason) -> None:
        """Until the driver has the function and its probe is over."""
        what = f"binding {self.bdf} to {driver}"
        linked = partial(_linked, self.directory, self.instance, driver)
        try:
            await self.hands.wait(what, linked, self.deadline.earlier(REFUSED_AFTER))
            await self.rest()
            # One look: the link goes again when the probe has failed.
            await self.hands.wait(what, linked, Deadline.after(0))
        except AgentError as error:
            if error.reason is not Reason.DRIVER_REFUSED:
                raise
            raise self._refused(driver, refusal, error) from error

    @property
    def _bus(self) -> Path:
        return self.tree.roots.sys / "bus/pci"

    async def _write(self, path: Path, text: str, *, fine: tuple[int, ...] = ()) -> None:
        doing = f"write {text!r} to {path}"
        # A driver's link goes before the driver does: afterwards it would not be seen.
        driver = self.driver
        try:
            await self.hands.write(path, f"{text}\n", self.deadline)
        except OSError as error:
            if not self.instance:
                raise _gone(self.bdf) from error
            if error.errno not in fine:
                raise kernel_refused(error, doing=f"{self.bdf}: {doing}") from error
        except AgentError as error:
            if error.reason is not Reason.OPERATION_TIMED_OUT:
                raise
            raise self._late(doing, driver) from error

    def _late(self, doing: str, driver: str) -> AgentError:
        group = self.tree.link_name(self.directory / "iommu_group")
        why, hint = f"the kernel is busy with {driver or 'its driver'}", None
        if is_vfio(driver) or self._is_leaving_vfio(group):
            why = (
                "a VFIO driver lets go of a function only once nobody has it or its group "
                f"{group or ''} open, and the kernel waits for that"
            )
            hint = "close it (Devices.Holders names who has it open), then ask again"
        return timed_out(
            f"{self.bdf}: {doing} did not come back in time: {why}",
            hint=hint,
            address=self.bdf,
            driver=driver or "none",
        )

    def _is_leaving_vfio(self, group: str | None) -> bool:
        """An unbind that an earlier call gave up still goes on: no driver, but the group's node."""
        nodes = self.tree.roots.sys / "devices/virtual/vfio"
        return not self.driver and any((nodes / f"{kind}{group}").is_dir() for kind in _GROUPS)

    def _refused(self, driver: str, refusal: Reason, error: AgentError) -> AgentError:
        lines = error.fields.get("kernel_log", "none")
        told = f"; the kernel's log: {lines.splitlines()[-1]}" if lines != "none" else ""
        return wrong_state(
            f"the driver {driver} does not take the PCI function {self.bdf}, "
            f"which has {f'the driver {self.driver}' if self.driver else 'no driver'}{told}",
            reason=refusal,
            address=self.bdf,
            driver=driver,
            kernel_log=lines,
        )


async def have_driver(hands: Hands, driver: str, deadline: Deadline) -> None:
    """Load the module of that name where there is no such driver; an override has no alias
    by which the kernel would ask for one."""
    if _DRIVER.fullmatch(driver) is None:
        raise invalid(f"{driver!r} is not a driver's name", driver=driver)
    drivers = hands.tree.roots.sys / "bus/pci/drivers"
    if (drivers / driver).is_dir():
        return
    await hands.load((driver,), deadline)
    if not (drivers / driver).is_dir():
        raise wrong_state(
            f"the module {driver} is loaded, but there is no PCI driver of that name",
            reason=Reason.MODULE_REFUSED,
            hint="give the driver's name as /sys/bus/pci/drivers has it",
            module=driver,
        )


def _is_as_wanted(former: Former, driver: str | None) -> bool:
    if driver is not None:
        return former.driver == driver
    # An override that names the driver in charge was given on purpose, and works.
    return not is_stand_in(former.driver) and former.override in ("", former.driver)


def _gone(bdf: str) -> AgentError:
    return wrong_state(f"{bdf} went away", reason=Reason.DEVICE_FAILED, address=bdf)


def _has_other_driver(former: Former, driver: str) -> bool:
    """Whether the present driver has to go, or to come."""
    if former.driver:
        return driver != former.driver
    # There was none: what came of itself may stay, unless the override forbade it.
    return driver != "" and (driver == former.given_to or former.override not in ("", driver))


def _linked(directory: Path, instance: str, driver: str, tree: SysfsTree) -> Verdict[None]:
    if tree.instance(directory) != instance:
        return Failed(f"{directory.name} went away")
    there = tree.link_name(directory / "driver")
    if there == driver:
        return Ready(None)
    return NotYet(
        evidence=f"{directory.name} has {f'the driver {there}' if there else 'no driver'}",
        near=(tree.devpath(directory),),
        names=(directory.name,),
        reason=Reason.DRIVER_REFUSED,
    )

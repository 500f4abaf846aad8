"""Functions handed to user space through VFIO, or to the guest's own driver.

For VFIO the function is bound to vfio-pci, and usable once no function of its IOMMU
group is the guest's any more and the nodes are there: the group's (`/dev/vfio/N`,
without an IOMMU `/dev/vfio/noiommu-N`) with the container's (`/dev/vfio/vfio`), and
where the kernel has the newer interface the function's own (`/dev/vfio/devices/vfioN`)
with `/dev/iommu` (Documentation/driver-api/vfio.rst). Members of one group may come in
one batch: each request binds its own function before it waits for the others.

A function can be wanted by more than one device, by its own and by one that took the
whole group: what it was before is kept once, and given back when the last one leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

from agent.core.deadlines import Deadline
from agent.core.errors import (
    AgentError,
    Reason,
    already_exists,
    invalid,
    timed_out,
    wrong_state,
)
from agent.core.kinds import VfioExpectation, VfioInfo, VfioMode
from agent.core.model import AttachedDevice, DeviceNode, DeviceRequest
from agent.core.places import find, function_of
from agent.core.undo import UndoStack
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.base import (
    DeviceClass,
    Found,
    Taken,
    absent,
    describe,
    facts,
    iommu_group,
    names,
    refusal,
    settled,
)
from agent.handlers.devices.binding import (
    VFIO_PCI,
    Former,
    before,
    from_kept,
    give_back,
    have_driver,
    is_stand_in,
    is_vfio,
    switch,
    to_kept,
)
from agent.handlers.devices.groups import (
    Member,
    agree,
    allows_no_iommu,
    arrived,
    has_no_iommu,
    members,
    no_group,
)
from agent.handlers.devices.job import GIVE_BACK_WITHIN
from agent.handlers.devices.nodes import NoNode, node_of, nodes_below

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from agent.core.places import Place
    from agent.core.tree import PciFunction, SysfsTree
    from agent.handlers.devices.job import Hands, Job

Known: TypeAlias = DeviceRequest | AttachedDevice

_GROUP_NODES = "/devices/virtual/vfio"

# Names in /dev/vfio and /dev; a group's and a function's own are or end with a number.
_SHARED = frozenset({"vfio", "iommu"})


@dataclass(slots=True)
class _Claim:
    """A function whose driver was changed, and the devices that need it so."""

    former: Former
    owners: set[str] = field(default_factory=set)


class VfioDevices(DeviceClass[VfioExpectation]):
    """One PCI function, for user space or for the guest's own driver."""

    name = "vfio"
    expectation = VfioExpectation

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}
        # Drivers of one group are changed by one at a time; nobody waits for others meanwhile.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def probe(self, tree: SysfsTree, place: Place, expected: VfioExpectation) -> Verdict[Found]:
        if place.function is None or not place.is_function:
            return Failed(f"{place.name} is no PCI function, and VFIO serves no others")
        if expected.mode is VfioMode.GUEST_KERNEL:
            return _of_the_guest(tree, place, place.function)
        return _for_user_space(tree, place, place.function)

    async def take(self, job: Job[VfioExpectation]) -> Taken:
        """Change the driver as asked for, of the whole group where that is asked for.

        Raises NO_IOMMU_GROUP, GROUP_MISMATCH, GROUP_NOT_VIABLE (naming the function that is in
        the way), UNKNOWN_DEVICE and ADDRESS_IN_USE with nothing changed, and what
        `binding.switch` and `Job.until` do.
        """
        # When this fails, others of its group need not wait for it any longer.
        job.undo.push("tell the others", job.hands.board.look_again)
        function = await self._function(job)
        if job.expected.mode is VfioMode.GUEST_KERNEL:
            formers = await self._to_the_guest(job, function)
        else:
            formers = await self._to_user_space(job, function)
        sighting = await job.until(partial(self._while_peers_stay, job))
        info = sighting.found.info
        if isinstance(info, VfioInfo) and formers[0].changed:
            info = replace(info, former_driver=formers[0].driver)
        found = replace(sighting.found, info=info)
        return Taken(sighting=replace(sighting, found=found), kept=to_kept(formers, self.name))

    async def give_back(
        self, hands: Hands, device: AttachedDevice, kept: Mapping[str, str]
    ) -> None:
        """Every function gets its former driver back, also when that fails for one.

        One that another device needs as well stays as it is, until that one leaves.
        """
        errors: list[AgentError] = []
        for former in from_kept(kept, self.name):
            try:
                await self._leave(hands, device.request.id, former)
            except AgentError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def own_nodes(self, device: AttachedDevice) -> tuple[DeviceNode, ...]:
        """All but those that every VFIO device has: the container's and /dev/iommu."""
        info = device.info
        if not isinstance(info, VfioInfo) or info.mode is not VfioMode.VFIO:
            return device.nodes
        return tuple(node for node in device.nodes if Path(node.path).name not in _SHARED)

    def restored(self, device: AttachedDevice, kept: Mapping[str, str]) -> None:
        """Take over what an earlier agent did for a device that is still attached."""
        for former in from_kept(kept, self.name):
            self._claim(device.request.id, former)

    async def _function(self, job: Job[VfioExpectation]) -> PciFunction:
        place = await job.place()
        if place.function is None or not place.is_function:
            raise invalid(
                f"{job.what}: {place.name} is no PCI function, and VFIO serves no others",
                reason=Reason.BAD_ADDRESS,
                address=job.request.address,
            )
        job.claim(place.directory)
        return place.function

    async def _to_the_guest(self, job: Job[VfioExpectation], function: PciFunction) -> list[Former]:
        await job.hands.wait(job.what, partial(arrived, function), job.deadline)
        await _agree(job, function)
        claim = self._claims.get(str(function.bdf))
        if claim is not None and (others := claim.owners - {job.request.id}):
            raise already_exists(
                f"{job.what}: {function.bdf} was taken for user space with the group of the "
                f"device {', '.join(sorted(others))}",
                reason=Reason.ADDRESS_IN_USE,
                address=function.bdf,
                id=min(others),
            )
        async with self._turn(_turn_key(job.hands.tree, function.directory), job.deadline):
            return [await self._switch(job, function, None)]

    async def _to_user_space(
        self, job: Job[VfioExpectation], function: PciFunction
    ) -> list[Former]:
        hands, turn = job.hands, _turn_key(job.hands.tree, function.directory)
        group = await hands.wait(job.what, partial(arrived, function), job.deadline)
        if group is None or has_no_iommu(hands.tree, group):
            await _need_no_iommu(job, function)
            async with self._turn(turn, job.deadline):
                return [await self._switch(job, function, VFIO_PCI)]
        await _agree(job, function)
        survey = partial(_survey, job, group, function)
        await hands.wait(job.what, survey, job.deadline)
        await have_driver(hands, VFIO_PCI, job.deadline)
        async with self._turn(turn, job.deadline):
            # Looked at again: others may have changed drivers until it was our turn.
            more = await hands.wait(job.what, survey, job.deadline)
            return [await self._switch(job, each, VFIO_PCI) for each in (function, *more)]

    def _while_peers_stay(
        self, job: Job[VfioExpectation], tree: SysfsTree, place: Place, expected: VfioExpectation
    ) -> Verdict[Found]:
        """A device of the group whose own attach has failed will never be for user space."""
        verdict = self.probe(tree, place, expected)
        if isinstance(verdict, NotYet):
            for name in expected.same_group_as:
                if job.hands.peer(name) is None:
                    why = f"the device {name} of its group is not being attached any more"
                    return Failed(f"{verdict.evidence}; {why}", Reason.GROUP_NOT_VIABLE)
        return verdict

    async def _switch(
        self, job: Job[VfioExpectation], function: PciFunction, driver: str | None
    ) -> Former:
        """Change the driver, and note for whom; only in the group's turn.

        A vendor's VFIO driver is as good as vfio-pci, and is not replaced by it.
        """
        present = job.hands.tree.link_name(function.directory / "driver") or ""
        if driver == VFIO_PCI and is_vfio(present):
            driver = present
        found = await before(job.hands, function, driver, job.deadline)
        job.note(to_kept((found,), self.name))
        async with UndoStack(f"{job.what}: bind {function.bdf}") as halfway:
            former = await switch(job.hands, function, driver, job.deadline, halfway)
            former = self._claim(job.request.id, former)
            halfway.commit()
        job.undo.push(
            f"give {function.bdf} back to {former.driver or 'no driver'}",
            partial(self._leave, job.hands, job.request.id, former),
        )
        return former

    def _claim(self, owner: str, former: Former) -> Former:
        """Note an owner of the function; what is known of it from before stays true."""
        claim = self._claims.get(former.bdf)
        if claim is None or claim.former.instance != former.instance:
            claim = self._claims[former.bdf] = _Claim(former)
        elif not claim.former.changed:
            claim.former = former
        claim.owners.add(owner)
        return claim.former

    async def _leave(self, hands: Hands, owner: str, former: Former) -> None:
        """Give a function back, unless another device needs it as it is."""
        deadline = Deadline.after(GIVE_BACK_WITHIN)
        async with self._turn(_turn_key(hands.tree, Path(former.directory)), deadline):
            claim = self._claims.get(former.bdf)
            if claim is not None and claim.former.instance == former.instance:
                if claim.owners - {owner}:
                    claim.owners.discard(owner)
                    return
                await give_back(hands, former, deadline)
                del self._claims[former.bdf]
            else:
                await give_back(hands, former, deadline)

    @contextlib.asynccontextmanager
    async def _turn(self, key: str, deadline: Deadline) -> AsyncIterator[None]:
        lock = self._turns.setdefault(key, asyncio.Lock())
        try:
            async with deadline.limit():
                await lock.acquire()
        except TimeoutError:
            raise timed_out(
                f"another device of the IOMMU group ({key}) is still having its driver changed"
            ) from None
        try:
            yield
        finally:
            lock.release()


async def _agree(job: Job[VfioExpectation], function: PciFunction) -> None:
    others = job.expected.same_group_as
    if others:
        agreed = partial(agree, function, others, job.hands.peer)
        await job.hands.wait(job.what, agreed, job.deadline)


async def _need_no_iommu(job: Job[VfioExpectation], function: PciFunction) -> None:
    """Without an IOMMU: fine where VFIO was told so, and where nobody is to share the group."""
    await have_driver(job.hands, VFIO_PCI, job.deadline)
    if job.expected.same_group_as or not allows_no_iommu(job.hands.tree):
        raise no_group(job.what, function.bdf)


def _survey(
    job: Job[VfioExpectation], group: int, function: PciFunction, tree: SysfsTree
) -> Verdict[tuple[PciFunction, ...]]:
    """The further functions to bind; raises GROUP_NOT_VIABLE for one that must not be."""
    wanted: list[PciFunction] = []
    for member in members(tree, group):
        other = function_of(tree, member.directory) if member.is_function else None
        if other is not None and not isinstance(verdict := arrived(other, tree), Ready):
            return verdict
        is_own = member.name == str(function.bdf)
        if not is_own and _is_to_be_bound(job, group, member) and other is not None:
            wanted.append(other)
    return Ready(tuple(wanted))


def _is_to_be_bound(job: Job[VfioExpectation], group: int, member: Member) -> bool:
    """Whether this request binds it: not what is fine as it is, or what another request binds."""
    holder = _holder(job, member)
    if holder is not None and not _is_for_user_space(holder):
        raise _in_the_way(job, group, member, f"which is the device {_id(holder)}")
    if job.expected.take_group and member.can_be_taken:
        return True
    if member.is_safe or holder is not None:
        return False
    raise _in_the_way(job, group, member, f"which the guest drives with {member.driver}")


def _holder(job: Job[VfioExpectation], member: Member) -> Known | None:
    """Another device, attached or being attached, that is this function."""
    named = (job.hands.peer(name) for name in job.expected.same_group_as)
    for known in (*job.hands.others(), *named):
        if known is not None and _id(known) != job.request.id:
            place = find(job.hands.tree, _request(known).address)
            at = place.result.function if isinstance(place, Ready) else None
            if at is not None and str(at.bdf) == member.name:
                return known
    return None


def _request(known: Known) -> DeviceRequest:
    return known.request if isinstance(known, AttachedDevice) else known


def _id(known: Known) -> str:
    return _request(known).id


def _is_for_user_space(known: Known) -> bool:
    """As asked for; an attached device may have changed its mode since."""
    if isinstance(known, AttachedDevice) and isinstance(known.info, VfioInfo):
        return known.info.mode is VfioMode.VFIO
    kind = _request(known).kind
    return isinstance(kind, VfioExpectation) and kind.mode is VfioMode.VFIO


def _in_the_way(job: Job[VfioExpectation], group: int, member: Member, why: str) -> AgentError:
    return wrong_state(
        f"{job.what}: {member} of its IOMMU group {group} is in the way, {why}",
        reason=Reason.GROUP_NOT_VIABLE,
        hint="ask for take_group to have it bound too, or attach it in the same batch, each "
        "named in the other's same_group_as",
        group=group,
        address=member.name,
        driver=member.driver or "none",
    )


def _turn_key(tree: SysfsTree, directory: Path) -> str:
    """The group, or the function where groups come and go with VFIO's driver."""
    group = tree.link_name(directory / "iommu_group") or ""
    if not group.isdecimal() or has_no_iommu(tree, int(group)):
        return directory.name
    return group


def _of_the_guest(tree: SysfsTree, place: Place, function: PciFunction) -> Verdict[Found]:
    driver = tree.link_name(place.directory / "driver")
    if driver is None:
        return refusal(tree, place) or absent(tree, place, "driver of the guest")
    if is_stand_in(driver):
        return absent(tree, place, "driver of the guest")
    waiting = NotYet(
        evidence=f"{describe(tree, place)}; {driver} is not done with it",
        near=(tree.devpath(place.directory),),
        names=names(tree, place),
        facts=facts(tree, place),
    )
    if read := settled(tree, place):
        return replace(waiting, needs=(read,))
    nodes, missing = nodes_below(tree, place.directory)
    if missing:
        return replace(waiting, evidence="; ".join(each.why for each in missing))
    group = iommu_group(tree, function)
    info = VfioInfo(
        mode=VfioMode.GUEST_KERNEL,
        group=-1 if group is None else group,
        group_members=_functions(tree, group),
    )
    return Ready(Found(nodes=nodes, info=info))


def _for_user_space(tree: SysfsTree, place: Place, function: PciFunction) -> Verdict[Found]:
    driver = tree.link_name(place.directory / "driver") or ""
    group = iommu_group(tree, function)
    waiting = NotYet(
        evidence=f"{describe(tree, place)}; it is not with vfio-pci",
        near=(tree.devpath(place.directory), _GROUP_NODES),
        names=names(tree, place),
        facts=facts(tree, place),
    )
    if not is_vfio(driver):
        return waiting
    if read := settled(tree, place):
        return replace(waiting, evidence=f"{driver} is not done with it", needs=(read,))
    if group is None:
        return replace(waiting, evidence=f"{place.name} has {driver}, but no IOMMU group")
    unsafe = [each for each in members(tree, group) if not each.is_safe]
    if unsafe:
        return replace(
            waiting,
            evidence=f"its IOMMU group {group} still has {', '.join(map(str, unsafe))}",
            near=(*waiting.near, *(tree.devpath(each.directory) for each in unsafe)),
            reason=Reason.GROUP_NOT_VIABLE,
        )
    return _nodes(tree, place, group, waiting)


def _nodes(tree: SysfsTree, place: Place, group: int, waiting: NotYet) -> Verdict[Found]:
    """Which nodes there must be depends on what the kernel was built with."""
    no_iommu = has_no_iommu(tree, group)
    misc = tree.roots.sys / "class/misc"
    groups = tree.roots.sys / _GROUP_NODES.strip("/")
    devices: list[Path] = []
    if groups.is_dir() or (tree.roots.sys / "class/vfio").is_dir():
        devices = [groups / f"{'noiommu-' if no_iommu else ''}{group}", misc / "vfio"]
    own = [path for path in tree.subdirectories(place.directory / "vfio-dev") if _has_node(path)]
    if own:
        devices += [*own, misc / "iommu"]
    found = [node_of(tree, device) for device in devices]
    missing = [each.why for each in found if isinstance(each, NoNode)]
    if missing or not devices:
        return replace(waiting, evidence="; ".join(missing) or "VFIO has made no node for it")
    nodes = tuple(each for each in found if isinstance(each, DeviceNode))
    info = VfioInfo(
        mode=VfioMode.VFIO,
        group=group,
        cdev=nodes[-2].path if own else "",
        no_iommu=no_iommu,
        group_members=_functions(tree, group),
    )
    return Ready(Found(nodes=nodes, info=info))


def _has_node(device: Path) -> bool:
    """Kernels before 6.6, and those built so, have the device without a number."""
    return (device / "dev").exists()


def _functions(tree: SysfsTree, group: int | None) -> tuple[str, ...]:
    if group is None:
        return ()
    return tuple(each.name for each in members(tree, group) if each.is_function)

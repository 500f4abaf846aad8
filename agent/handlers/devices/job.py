"""One attach under way: what a class is given to make its device usable.

`Hands` is what outlives the job and is also there when things are taken back: the
tree, waits on the hotplug board, writes to sysfs, modules, other devices. `Job` adds
the request, its deadline and its undo stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from agent.core import commands
from agent.core.errors import AgentError, Reason, kernel_refused, wrong_state
from agent.core.hotplug import HotplugBoard, Wish
from agent.core.places import Place, find
from agent.core.verdict import NotYet, Ready, Verdict
from agent.handlers.devices.base import Found, Sighting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from agent.core.addresses import Address
    from agent.core.commands import CommandResult
    from agent.core.deadlines import Deadline
    from agent.core.model import AttachedDevice, DeviceRequest
    from agent.core.tree import SysfsTree
    from agent.core.undo import UndoStack

E = TypeVar("E")
T = TypeVar("T")

GIVE_BACK_WITHIN = 10.0
"""Seconds for one step of taking back, which has no request whose deadline would bound it."""


class Run(Protocol):
    """What is needed of `core.commands.run`."""

    async def __call__(
        self, argv: Sequence[str], *, deadline: Deadline, check: bool
    ) -> CommandResult: ...


@dataclass(frozen=True, kw_only=True)
class Hands:
    """The ways in which a class touches the guest."""

    board: HotplugBoard
    peer: Callable[[str], DeviceRequest | AttachedDevice | None]
    """By id: a device that is attached, or the request of one that is being attached."""
    others: Callable[[], Iterable[DeviceRequest | AttachedDevice]] = tuple
    """All that are attached, and the requests of all that are being attached."""
    run: Run = commands.run

    @property
    def tree(self) -> SysfsTree:
        return self.board.tree

    async def wait(
        self, what: str, probe: Callable[[SysfsTree], Verdict[T]], deadline: Deadline
    ) -> T:
        """Until the probe is Ready; raises as `HotplugBoard.wait` does."""
        return await self.board.wait(Wish(what=what, probe=probe), deadline)

    async def write(self, path: Path, text: str, deadline: Deadline) -> None:
        """Write to a file of sysfs; binding a driver may take long, so it is done by a worker.

        Raises OSError as write(2) does, OPERATION_TIMED_OUT.
        """
        await self.board.write(path, text, deadline)

    async def load(self, modules: Sequence[str], deadline: Deadline) -> None:
        """Load modules by name, in order; raises MODULE_REFUSED with modprobe's words."""
        for module in modules:
            # Names were checked on entry; -- all the same: modprobe takes options anywhere.
            argv = ["modprobe", "--", module]
            result = await self.run(argv, deadline=deadline, check=False)
            if result.code != 0:
                raise wrong_state(
                    f"the kernel module {module} could not be loaded: "
                    f"{result.stderr_tail.strip() or f'modprobe ended with {result.code}'}",
                    reason=Reason.MODULE_REFUSED,
                    hint="build the image with --module, or --package for the driver's package",
                    module=module,
                )


@dataclass(frozen=True, kw_only=True)
class Job(Generic[E]):
    """One request being served; `expected` is its kind, typed."""

    request: DeviceRequest
    expected: E
    what: str
    """The device for errors: "vfio device gpu0 at 02/00"."""
    hands: Hands
    deadline: Deadline
    undo: UndoStack
    note: Callable[[Mapping[str, str]], None] = lambda _: None
    """To be called before a change, with what `give_back` needs to know of it (as in
    `Taken.kept`): an agent that dies in between has it taken back by the next one."""
    claim: Callable[[Path], None] = lambda _: None
    """To be called before that, with the directory of what is changed; raises ADDRESS_IN_USE
    when it is, or carries, another device, by whatever address."""

    async def until(self, probe: Callable[[SysfsTree, Place, E], Verdict[Found]]) -> Sighting:
        """Until there is a place at the address whose probe is Ready."""
        seen = partial(sight, self.request.address, self.expected, probe)
        return await self.hands.board.wait(
            Wish(what=self.what, probe=seen, rescan=True), self.deadline
        )

    async def place(self) -> Place:
        """Until sysfs has a device at the address, usable or not."""
        located = partial(_located, self.request.address)
        return await self.hands.board.wait(
            Wish(what=self.what, probe=located, rescan=True), self.deadline
        )

    async def write(self, path: Path, text: str) -> None:
        """Write to sysfs within the deadline; raises KERNEL_REFUSED with the errno."""
        try:
            await self.hands.write(path, text, self.deadline)
        except OSError as error:
            raise self.refused(error, f"write {text.strip()!r} to {path}") from error

    def refused(self, error: OSError, doing: str) -> AgentError:
        return kernel_refused(error, doing=f"{self.what}: {doing}")


def sight(
    address: Address,
    expected: E,
    probe: Callable[[SysfsTree, Place, E], Verdict[Found]],
    tree: SysfsTree,
) -> Verdict[Sighting]:
    """Find the place, and have a class judge it."""
    found = find(tree, address)
    if not isinstance(found, Ready):
        return found
    place = found.result
    # Taken before the class looks: a device that is replaced meanwhile shows as gone later.
    instance = tree.instance(place.directory)
    verdict = probe(tree, place, expected)
    if not isinstance(verdict, Ready):
        return verdict
    if instance is None:
        return NotYet(evidence=f"{place.name} went away while it was looked at")
    return Ready(Sighting(place=place, instance=instance, found=verdict.result))


def _located(address: Address, tree: SysfsTree) -> Verdict[Place]:
    return find(tree, address)

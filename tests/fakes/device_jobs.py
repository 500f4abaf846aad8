"""What a class of devices is given, for tests that call a class without the manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agent.core.commands import CommandResult
from agent.core.deadlines import Deadline
from agent.core.kinds import Expectation, Info
from agent.core.model import AttachedDevice, DeviceRequest
from agent.core.pci import parse_address
from agent.core.places import Place, find
from agent.core.tree import SysfsTree
from agent.core.undo import UndoStack
from agent.core.verdict import Failed, NotYet, Ready, Verdict
from agent.handlers.devices.base import Found
from agent.handlers.devices.job import Hands, Job
from tests.fakes.hotplug import Bench

E = TypeVar("E", bound=Expectation)
Probe = Callable[[SysfsTree, Place, E], Verdict[Found]]


class FakeTool:
    """A program, by what it answers; every call is written down."""

    def __init__(self, answer: Callable[[list[str]], tuple[int, str]]) -> None:
        self.calls: list[str] = []
        self._answer = answer

    async def __call__(
        self, argv: Sequence[str], *, deadline: Deadline, check: bool
    ) -> CommandResult:
        self.calls.append(" ".join(argv))
        code, text = self._answer(list(argv))
        return CommandResult(argv=tuple(argv), code=code, stdout=text.encode(), stderr_tail="")


def look(probe: Probe[E], tree: SysfsTree, address: str, expected: E) -> Verdict[Found]:
    """What a probe says at an address, with all its slow reads made."""
    for _ in range(8):
        place = find(tree, parse_address(address))
        assert isinstance(place, Ready), place
        verdict = probe(tree, place.result, expected)
        if not isinstance(verdict, NotYet) or not verdict.needs:
            return verdict
        for read in verdict.needs:
            tree.slow_texts[read] = read.path.read_text().strip()
    raise AssertionError(f"it wants more and more: {verdict}")


def ready(verdict: Verdict[Found]) -> Found:
    assert isinstance(verdict, Ready), verdict
    return verdict.result


def waiting(verdict: Verdict[Found]) -> NotYet:
    assert isinstance(verdict, NotYet), verdict
    return verdict


def failed(verdict: Verdict[Found]) -> Failed:
    assert isinstance(verdict, Failed), verdict
    return verdict


def hands(guest: Bench, *known: str, **parts: Any) -> Hands:
    """`known` are the ids of the devices in the manager's table."""
    peers = {name: request(name, "00", None) for name in known}
    return Hands(board=guest.board, peer=peers.get, **parts)


def request(device_id: str, address: str, kind: Any) -> DeviceRequest:
    return DeviceRequest(id=device_id, address=parse_address(address), kind=kind)


def job(hands: Hands, asked: DeviceRequest, undo: UndoStack, *, timeout: float = 30) -> Job[Any]:
    return Job(
        request=asked,
        expected=asked.kind,
        what=f"device {asked.id} at {asked.address}",
        hands=hands,
        deadline=Deadline.after(timeout),
        undo=undo,
    )


def attached(device_id: str, address: str, bdf: str, info: Info) -> AttachedDevice:
    """A row of the manager's table, as far as `give_back` reads it."""
    return AttachedDevice(
        request=request(device_id, address, None),
        pci_path=None,
        bdf=bdf,
        sysfs_path="",
        driver="",
        numa_node=None,
        iommu_group=None,
        nodes=(),
        info=info,
    )

"""A platform that tells of no hot-plug, and a host that asks before it plugs in."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError
from agent.core.hotplug import Wish
from agent.core.tree import SysfsTree
from agent.core.verdict import NotYet, Ready, Verdict
from tests.fakes.hotplug import bench

pytestmark = [pytest.mark.unit, pytest.mark.devices]

RELOOKS = (0.001, 0.001)


class Slot:
    """What is plugged in shows in sysfs once the kernel was asked to look."""

    def __init__(self, *, plugged_at_look: int) -> None:
        self.plugged_at_look = plugged_at_look
        self.looks = 0
        self.there = False

    def kernel_looks(self, _path: Path, _text: str) -> None:
        self.there = self.looks >= self.plugged_at_look

    def probe(self, _tree: SysfsTree) -> Verdict[str]:
        self.looks += 1
        return Ready("found") if self.there else NotYet(evidence="nothing yet")

    @property
    def wish(self) -> Wish[str]:
        return Wish(what="device d1", probe=self.probe, rescan=True)


async def test_the_one_rescan_comes_after_the_looks_without_news(tmp_path: Path) -> None:
    """The daemon asks the agent first and plugs in meanwhile: a rescan at once finds nothing."""
    async with bench(tmp_path, acpi=False, relooks=RELOOKS) as guest:
        slot = Slot(plugged_at_look=len(RELOOKS) + 1)
        guest.files.effect = slot.kernel_looks
        assert await guest.board.wait(slot.wish, Deadline.after(60.0)) == "found"
        assert guest.files.writes == [(guest.sysfs.sys / "bus/pci/rescan", "1\n")]


async def test_a_short_wait_has_its_rescan_too(tmp_path: Path) -> None:
    """Its deadline comes before the looks are done."""
    async with bench(tmp_path, acpi=False, relooks=(60.0,)) as guest:
        slot = Slot(plugged_at_look=99)
        guest.files.effect = slot.kernel_looks
        with pytest.raises(AgentError, match="the bus was rescanned once"):
            await guest.board.wait(slot.wish, Deadline.after(0.05))
        assert len(guest.files.writes) == 1

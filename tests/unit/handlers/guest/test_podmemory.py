"""The bound of all containers' memory follows the guest's."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.roots import Roots
from agent.handlers.guest.podmemory import PodMemory
from agent.linux.uevents import Uevent

pytestmark = [pytest.mark.unit, pytest.mark.operations]

MIB = 1 << 20


class Pods:
    """/pods of a guest with 512 MiB, as PID 1 left it: 96 MiB are not for containers."""

    def __init__(self, top: Path) -> None:
        self.directory = top / "pods"
        self.directory.mkdir()
        self.total = 512 * MIB
        self.write("memory.max", 416 * MIB)
        self.write("memory.current", 10 * MIB)
        self.memory = PodMemory(Roots(cgroup=top), total=lambda: self.total)

    def write(self, name: str, value: int) -> None:
        (self.directory / name).write_text(f"{value}\n")

    @property
    def limit(self) -> int:
        return int((self.directory / "memory.max").read_text())


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


def event(subsystem: str) -> Uevent:
    path = f"/devices/system/{subsystem}/{subsystem}32"
    return Uevent(action="online", devpath=path, subsystem=subsystem, sequence=1, properties={})


def test_memory_that_comes_is_for_containers(pods: Pods) -> None:
    pods.total = 768 * MIB
    pods.memory.on_event(event("memory"))
    assert pods.limit == 672 * MIB


def test_lost_events_count_as_news(pods: Pods) -> None:
    pods.total = 768 * MIB
    pods.memory.on_event(None)
    assert pods.limit == 672 * MIB


def test_other_devices_are_no_news(pods: Pods) -> None:
    pods.total = 768 * MIB
    pods.memory.on_event(event("cpu"))
    assert pods.limit == 416 * MIB


def test_memory_that_goes_is_not_promised_any_more(pods: Pods) -> None:
    pods.total = 256 * MIB
    pods.memory.fit()
    assert pods.limit == 160 * MIB


def test_a_bound_below_what_is_in_use_would_end_containers(pods: Pods) -> None:
    pods.total = 256 * MIB
    pods.write("memory.current", 200 * MIB)
    pods.memory.fit()
    assert pods.limit == 200 * MIB


def test_without_the_controller_there_is_nothing_to_do(tmp_path: Path) -> None:
    PodMemory(Roots(cgroup=tmp_path), total=lambda: MIB).fit()
    assert list(tmp_path.iterdir()) == []

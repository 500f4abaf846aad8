"""The fake cpusets answer as Linux 6.12 did to the same writes in a guest with four CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.cpusets import HOTPLUG, LIST, PARENT, FakeCpusets

pytestmark = [pytest.mark.unit, pytest.mark.containers]

EXCLUSIVE, PARTITION = "cpuset.cpus.exclusive", "cpuset.cpus.partition"


class Kernel:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.online = frozenset(range(4))
        self.cpusets = FakeCpusets(top, lambda: self.online)
        self.a, self.b = (self.cpusets.container(name) for name in "ab")

    def write(self, group: str, name: str, text: str) -> None:
        self.cpusets.write(self.top / group.lstrip("/") / name, f"{text}\n")

    def give(self, group: str, text: str, above: str = "") -> None:
        for each, cpus in (("/pods", above or text), ("/pods/s", above or text), (group, text)):
            self.write(each, EXCLUSIVE, cpus)

    def set_online(self, *cpus: int) -> None:
        self.online = frozenset(cpus)
        self.cpusets.update()


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_a_remote_partition_takes_its_cpus_from_everybody(kernel: Kernel) -> None:
    kernel.give(kernel.a, "3")
    kernel.write(kernel.a, PARTITION, "root")
    assert kernel.cpusets.partition(kernel.a) == "root"
    assert kernel.cpusets.effective(kernel.a) == "3"
    assert kernel.cpusets.effective(kernel.b) == "0-2"


def test_groups_above_have_to_have_them_too(kernel: Kernel) -> None:
    kernel.write(kernel.a, EXCLUSIVE, "3")
    kernel.write(kernel.a, PARTITION, "root")
    assert kernel.cpusets.partition(kernel.a) == PARENT
    kernel.write(kernel.b, PARTITION, "root")
    assert kernel.cpusets.partition(kernel.b) == LIST


def test_a_partition_whose_last_cpu_went_is_invalid_and_stays_so(kernel: Kernel) -> None:
    kernel.give(kernel.a, "3")
    kernel.write(kernel.a, PARTITION, "root")
    kernel.set_online(0, 1, 2)
    assert kernel.cpusets.partition(kernel.a) == HOTPLUG
    assert kernel.cpusets.effective(kernel.a) == "0-2"
    kernel.set_online(0, 1, 2, 3)
    assert kernel.cpusets.partition(kernel.a) == HOTPLUG
    for word in ("member", "root"):
        kernel.write(kernel.a, PARTITION, word)
    assert kernel.cpusets.effective(kernel.a) == "3"


def test_one_of_two_that_went_leaves_a_smaller_partition(kernel: Kernel) -> None:
    kernel.give(kernel.a, "2-3")
    kernel.write(kernel.a, PARTITION, "root")
    kernel.set_online(0, 1, 2)
    assert kernel.cpusets.partition(kernel.a) == "root"
    assert kernel.cpusets.effective(kernel.a) == "2"


def test_sets_side_by_side_may_not_meet(kernel: Kernel) -> None:
    kernel.give(kernel.a, "3", above="2-3")
    kernel.write(kernel.b, EXCLUSIVE, "2")
    with pytest.raises(OSError, match="Invalid argument"):
        kernel.write(kernel.a, EXCLUSIVE, "2-3")


def test_nobody_may_have_all_that_another_is_bound_to(kernel: Kernel) -> None:
    kernel.cpusets.container("c", own="3")
    with pytest.raises(OSError, match="Invalid argument"):
        kernel.write(kernel.a, EXCLUSIVE, "2-3")
    kernel.write(kernel.a, EXCLUSIVE, "2")

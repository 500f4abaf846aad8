"""The survey of CPUs and memory, from sysfs trees as Linux 6.12 makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.hardware import Kind, Unit, is_online, siblings, survey, switch
from agent.core.roots import Roots
from tests.fakes.machine import BLOCK, FakeMachine
from tests.fakes.sysfs import FakeSysfs
from tests.fakes.uevents import FakeUevents

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


@pytest.fixture
def machine(sysfs: FakeSysfs) -> Iterator[FakeMachine]:
    kernel = FakeUevents()
    yield FakeMachine(sysfs, kernel, cpus=2)
    kernel.close()


def test_a_guest_as_it_booted(sysfs: FakeSysfs, machine: FakeMachine) -> None:
    found = survey(sysfs.tree)
    assert (sorted(found.possible), found.block_bytes) == ([0, 1, 2, 3], 128 << 20)
    assert (sorted(found.cpus.online), sorted(found.cpus.waiting)) == ([0, 1], [])
    assert (sorted(found.memory.online), found.memory_online) == ([0, 1, 2, 3], 512 << 20)


def test_cpu_0_does_not_go(sysfs: FakeSysfs, machine: FakeMachine) -> None:
    """An x86 has no switch for it; where there is one, interrupts may still need it."""
    assert survey(sysfs.tree).cpus.removable == {1}
    sysfs.write(sysfs.sys / "devices/system/cpu/cpu0/online", "1")
    assert survey(sysfs.tree).cpus.removable == {1}


def test_what_was_plugged_in_waits(sysfs: FakeSysfs, machine: FakeMachine) -> None:
    machine.add_cpu(3)
    machine.add_block(32)
    found = survey(sysfs.tree)
    assert found.cpus.waiting == {3}
    assert found.memory.waiting == {32}


def test_a_cpu_without_its_directory_is_not_there_yet(
    sysfs: FakeSysfs, machine: FakeMachine
) -> None:
    """The mask of present CPUs is set before the device is registered (acpi_processor_add)."""
    sysfs.write(sysfs.sys / "devices/system/cpu/present", "0-2")
    assert survey(sysfs.tree).cpus.waiting == frozenset()


def test_a_block_on_its_way_is_neither(sysfs: FakeSysfs, machine: FakeMachine) -> None:
    """The state going-offline is that of a write that has not come back."""
    machine.add_block(32, state="going-offline")
    memory = survey(sysfs.tree).memory
    assert 32 in memory.present
    assert 32 not in memory.online | memory.waiting


def test_without_hotplug_of_memory_there_are_no_blocks(tmp_path: Path) -> None:
    found = survey(FakeSysfs(tmp_path).tree)
    assert (found.block_bytes, found.memory_online, found.cpus.present) == (0, 0, frozenset())


def test_the_size_of_a_block_is_hexadecimal(sysfs: FakeSysfs, machine: FakeMachine) -> None:
    sysfs.write(sysfs.sys / "devices/system/memory/block_size_bytes", "80000000")
    assert survey(sysfs.tree).block_bytes == 2 << 30 != BLOCK


@pytest.mark.parametrize(
    ("unit", "online", "movable", "path", "text"),
    [
        (Unit(Kind.CPU, 3), True, False, "cpu/cpu3/online", "1"),
        (Unit(Kind.CPU, 3), False, False, "cpu/cpu3/online", "0"),
        (Unit(Kind.MEMORY, 32), True, False, "memory/memory32/state", "online"),
        (Unit(Kind.MEMORY, 32), True, True, "memory/memory32/state", "online_movable"),
        (Unit(Kind.MEMORY, 32), False, True, "memory/memory32/state", "offline"),
    ],
)
def test_each_switch_has_its_word(
    *, unit: Unit, online: bool, movable: bool, path: str, text: str
) -> None:
    assert switch(Roots(), unit, online=online, movable=movable) == (
        Path("/sys/devices/system") / path,
        text,
    )


def test_one_unit_by_itself(sysfs: FakeSysfs, machine: FakeMachine) -> None:
    machine.add_block(32)
    asked = (Unit(Kind.CPU, 1), Unit(Kind.CPU, 3), Unit(Kind.MEMORY, 3), Unit(Kind.MEMORY, 32))
    assert [is_online(sysfs.tree, unit) for unit in asked] == [True, False, True, False]


def test_threads_of_one_core(sysfs: FakeSysfs, machine: FakeMachine) -> None:
    machine.set_siblings("0,2", "1,3")
    assert siblings(sysfs.tree, 3) == {1, 3}
    assert siblings(sysfs.tree, 4) == {4}

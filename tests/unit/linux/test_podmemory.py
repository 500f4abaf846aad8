"""What all containers together may have of the guest's memory."""

from __future__ import annotations

import pytest

from agent.linux import podmemory

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.mark.parametrize(
    ("total", "left"),
    [(512 << 20, 416 << 20), (128 << 20, 64 << 20), (8 << 30, (8 << 30) - (96 << 20))],
)
def test_containers_never_get_all_memory(total: int, left: int) -> None:
    """A full tmpfs can't be freed by killing anybody: without a bound the kernel panics."""
    assert podmemory.bound(total) == left


def test_the_total_is_what_the_kernel_manages() -> None:
    """MemTotal of /proc/meminfo, in KiB, is the same number (fs/proc/meminfo.c)."""
    with open("/proc/meminfo") as meminfo:
        kib = int(meminfo.readline().split()[1])
    assert podmemory.total_memory() == kib << 10

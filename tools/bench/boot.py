"""Figures of one boot, as daemon and agent tell them, and of what is resident then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.figures import Sample, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innkeeper.v1 import host_pb2, sandbox_pb2

_MIB = 1 << 20

_PHASES = (
    ("pid1_to_mounts_ms", "pid1", "mounts", "PID 1's start to its mounts being done"),
    ("mounts_to_spawn_ms", "mounts", "agent_spawned", "mounts done to the agent being spawned"),
    ("agent_interpreter_ms", "agent_spawned", "agent_interpreter", "spawn to our first line"),
    ("agent_imports_ms", "agent_interpreter", "agent_imported", "the agent's imports"),
    ("agent_serving_ms", "agent_imported", "agent_serving", "imports done to serving"),
    ("pid1_to_agent_ready_ms", "pid1", "agent_serving", "PID 1's start to the agent serving"),
)


def boot_samples(
    vm: host_pb2.VmDescription, guest: sandbox_pb2.DescribeSandboxResponse
) -> Iterator[Sample]:
    """Phases that this guest does not tell are left out."""
    answer = vm.first_answer_micros / 1e6
    yield milliseconds("cold_first_answer_ms", answer, "QEMU's start to the agent's first answer")
    at = {phase.name: phase.at_micros / 1e6 for phase in guest.boot_phases}
    if "pid1" in at:
        yield milliseconds("kernel_to_pid1_ms", at["pid1"], "kernel's start to PID 1's first line")
    for name, first, last, what in _PHASES:
        if first in at and last in at:
            yield milliseconds(name, at[last] - at[first], what)
    if "agent_serving" in at:
        what = "first answer without the guest's part: QEMU, firmware, and the host noticing"
        yield milliseconds("outside_guest_ms", answer - at["agent_serving"], what)


def memory_samples(guest: sandbox_pb2.DescribeSandboxResponse) -> Iterator[Sample]:
    for process in guest.memory:
        values = (
            ("rss", "resident", process.resident),
            ("pss", "proportional", process.proportional),
        )
        for short, long, size in values:
            yield Sample(
                name=f"{process.name}_{short}_mib",
                value=size / _MIB,
                unit="MiB",
                what=f"{long} set size of {process.name} at the end of the run",
            )

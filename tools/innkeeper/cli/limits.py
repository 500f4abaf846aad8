"""What a container may use (`--cpus`, `--memory`, ...), and how large its own VM is for that."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import typer

from innkeeper.cli.options import parse_memory, parse_size
from innkeeper.shim.spec import MIB, MOST_CPUS

if TYPE_CHECKING:
    from collections.abc import Mapping

_PERIOD = 100_000
"""Microseconds; the kernel's own default (cgroup-v2.rst, cpu.max)."""
_LEAST_QUOTA = 1_000
"""The kernel's least (kernel/sched/core.c, min_cfs_quota_period)."""
LEAST_MEMORY = 6 * MIB
"""With less the runtime itself has too little to start a process."""
GUEST_NEEDS = 256 * MIB
"""What a VM of its own has beside its container's limit: kernel, agent and services take 150 MiB
or so when idle, and page tables, streams and a root's cache come on top."""
DEFAULT_VM = 512 * MIB
_MOST_BARE_MIB = 1 << 20
_CPU_LIST = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")
_UNLIMITED = "-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of a container; 0 and "" are not said, -1 is no limit."""

    cpus: Decimal = Decimal(0)
    memory: int = 0
    """Bytes."""
    reservation: int = 0
    """Bytes that the kernel tries to leave it (memory.low)."""
    memory_swap: int = 0
    """Bytes of memory and swap together."""
    pids: int = 0
    cpuset: str = ""
    shm: int = 0
    """Bytes of /dev/shm."""

    def to_oci(self) -> dict[str, Any]:
        """`linux.resources`; empty when nothing was said."""
        memory = _said(limit=self.memory, reservation=self.reservation, swap=self.memory_swap)
        cpu: dict[str, Any] = {"cpus": self.cpuset} if self.cpuset else {}
        if self.cpus:
            cpu |= {"quota": int(self.cpus * _PERIOD), "period": _PERIOD}
        return _said(memory=memory, cpu=cpu, pids={"limit": self.pids} if self.pids else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSize:
    """Of a VM of its own."""

    memory: int = DEFAULT_VM
    cpus: int = 1


def parse(words: Mapping[str, Any]) -> Limits:
    """Raises typer.BadParameter."""
    limits = Limits(
        cpus=_cpus(words.get("cpus") or ""),
        memory=_memory(words.get("memory") or ""),
        reservation=parse_bytes("--memory-reservation", words.get("memory_reservation") or ""),
        pids=_pids(words.get("pids_limit")),
        cpuset=parse_cpuset(words.get("cpuset_cpus") or ""),
        shm=parse_bytes("--shm-size", words.get("shm_size") or ""),
    )
    if limits.reservation and limits.memory and limits.reservation > limits.memory:
        raise typer.BadParameter("--memory-reservation: is more than --memory")
    return replace(limits, memory_swap=parse_swap(words.get("memory_swap") or "", limits.memory))


def vm_size(limits: Limits, memory: str = "", cpus: int = 0) -> VmSize:
    """`memory` and `cpus`: --vm-memory and --vm-cpus, where they were said; else the
    container fits in. Raises typer.BadParameter where it would not."""
    most = math.ceil(limits.cpus) or 1
    whole = (limits.memory + GUEST_NEEDS + MIB - 1) // MIB * MIB if limits.memory else DEFAULT_VM
    size = VmSize(
        memory=parse_memory(memory, "--vm-memory") if memory else max(whole, DEFAULT_VM),
        cpus=cpus or max(most, _highest(limits.cpuset) + 1),
    )
    if limits.cpus > size.cpus:
        raise typer.BadParameter(f"--cpus {limits.cpus}: is more than --vm-cpus {size.cpus}")
    if _highest(limits.cpuset) >= size.cpus:
        raise typer.BadParameter(
            f"--cpuset-cpus {limits.cpuset}: the VM has CPUs 0 to {size.cpus - 1}"
        )
    if limits.memory >= size.memory:
        raise typer.BadParameter(
            f"--memory: the container's limit is not less than --vm-memory {memory}, of which"
            " the guest itself takes a part"
        )
    return size


def _said(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value}


def _cpus(text: str) -> Decimal:
    if not text:
        return Decimal(0)
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal(-1)
    least = Decimal(_LEAST_QUOTA) / _PERIOD
    if not (number.is_finite() and least <= number <= MOST_CPUS):
        raise typer.BadParameter(
            f"--cpus {text}: write a number, {least} to {MOST_CPUS}, as in 1.5"
        )
    return number


def _memory(text: str) -> int:
    size = parse_bytes("--memory", text)
    if 0 < size < LEAST_MEMORY:
        raise typer.BadParameter(f"--memory {text}: at least {LEAST_MEMORY // MIB}M")
    return size


def parse_bytes(option: str, text: str) -> int:
    """0 when nothing was said. Raises typer.BadParameter."""
    if not text:
        return 0
    if match := re.fullmatch(r"([0-9]{1,18})b", text.lower()):
        size = int(match[1])
    elif text.isdecimal() and len(text) < 19 and int(text) >= _MOST_BARE_MIB:
        raise typer.BadParameter(
            f"{option} {text}: a bare number means MiB; write {text}b for bytes"
        )
    else:
        size = parse_size(text)
    if not size:
        raise typer.BadParameter(f"{option} {text}: is nothing at all; write a size, as in 64M")
    return size


def parse_swap(text: str, memory: int) -> int:
    """Bytes with those of `memory`, -1 for any, 0 when nothing was said. Raises
    typer.BadParameter."""
    if not text:
        return 0
    if not memory:
        raise typer.BadParameter("--memory-swap: is memory and swap together, and wants --memory")
    if text == _UNLIMITED:
        return -1
    if memory < 0:
        raise typer.BadParameter("--memory-swap: without a limit of memory it is -1")
    size = parse_bytes("--memory-swap", text)
    if size < memory:
        raise typer.BadParameter(
            f"--memory-swap {text}: is memory and swap together, and less than --memory"
        )
    return size


def _pids(number: int | None) -> int:
    if number is None:
        return 0
    if number in (0, -1):
        return -1
    if not 1 <= number <= 2**31:
        raise typer.BadParameter(f"--pids-limit {number}: write a number, or -1 for no limit")
    return number


def parse_cpuset(text: str) -> str:
    """cpuset(7), List format. Raises typer.BadParameter."""
    if text and not _CPU_LIST.fullmatch(text):
        raise typer.BadParameter(f"--cpuset-cpus {text}: write numbers of CPUs, as in 0-2,4")
    return text


def _highest(cpuset: str) -> int:
    """-1 when nothing was said."""
    return max((int(number) for number in re.findall(r"[0-9]+", cpuset)), default=-1)

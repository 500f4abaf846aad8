"""A container's figures, each from its file of the cgroup (cgroup-v2.rst)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from agent.core.usage import (
    CpuStats,
    HugetlbStats,
    InterfaceStats,
    IoStats,
    MemoryStats,
    PidsStats,
)
from agent.handlers.runtime.usage.cgroupfiles import count, number, pressure, table, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DEVICE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_HUGETLB = re.compile(r"hugetlb\.([0-9]{1,9})([KMG])B\.current")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Receive: bytes packets errs drop fifo frame compressed multicast; transmit the same from
# the ninth on (dev_seq_printf_stats in net/core/net-procfs.c).
_COLUMNS = 16


def cpu(group: Path) -> CpuStats:
    figures = table(group / "cpu.stat")
    quota, _, period = text(group / "cpu.max").strip().partition(" ")
    return CpuStats(
        usage_micros=figures["usage_usec"],
        user_micros=figures["user_usec"],
        system_micros=figures["system_usec"],
        periods=figures["nr_periods"],
        throttled_periods=figures["nr_throttled"],
        throttled_micros=figures["throttled_usec"],
        quota_micros=number(quota),
        period_micros=number(period),
        weight=count(group / "cpu.weight"),
        pressure=pressure(group / "cpu.pressure"),
    )


def memory(group: Path) -> MemoryStats:
    figures, events = table(group / "memory.stat"), table(group / "memory.events")
    return MemoryStats(
        current=count(group / "memory.current"),
        peak=count(group / "memory.peak"),
        limit=count(group / "memory.max"),
        swap_current=count(group / "memory.swap.current"),
        swap_limit=count(group / "memory.swap.max"),
        anon=figures["anon"],
        file=figures["file"],
        slab=figures["slab"],
        kernel=figures["kernel"],
        shmem=figures["shmem"],
        inactive_file=figures["inactive_file"],
        page_faults=figures["pgfault"],
        major_faults=figures["pgmajfault"],
        limit_reached=events["max"],
        out_of_memory=events["oom"],
        kills=events["oom_kill"],
        pressure=pressure(group / "memory.pressure"),
        low=count(group / "memory.low"),
        high=count(group / "memory.high"),
    )


def pids(group: Path) -> PidsStats:
    return PidsStats(
        current=count(group / "pids.current"),
        limit=count(group / "pids.max"),
        peak=count(group / "pids.peak"),
        refused=table(group / "pids.events")["max"],
    )


def io(group: Path, sys: Path) -> tuple[IoStats, ...]:
    """By device, as the kernel orders them."""
    content = text(group / "io.stat")
    return parse_io(content, lambda device: _name(sys, device)) if content else ()


def parse_io(content: str, name_of: Callable[[str], str]) -> tuple[IoStats, ...]:
    """Lines `254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6`, with more at their end.

    Kernels before 6.6 begin a line for a device without figures and put the next one's
    after it (blkcg_print_one_stat).
    """
    return tuple(
        stats
        for line in content.splitlines()
        if (stats := _device(line.split(), name_of)) is not None
    )


def hugetlb(group: Path) -> tuple[HugetlbStats, ...]:
    """By the size of the page."""
    try:
        names = os.listdir(group)  # noqa: PTH208 - names alone
    except OSError:
        return ()
    sizes = {match[0]: match for name in names if (match := _HUGETLB.fullmatch(name))}
    found = (_pages(group, name, match) for name, match in sizes.items())
    return tuple(sorted(found, key=lambda stats: stats.page_bytes))


def parse_interfaces(content: str) -> tuple[InterfaceStats, ...]:
    """The text of a `/proc/PID/net/dev`: two lines of heading, then one an interface."""
    lines = (line.rpartition(":") for line in content.splitlines()[2:])
    return tuple(
        _interface(name.strip(), [number(word) for word in words.split()])
        for name, _, words in lines
        if name and len(words.split()) >= _COLUMNS
    )


def _interface(name: str, figures: list[int]) -> InterfaceStats:
    return InterfaceStats(
        name=name,
        received_bytes=figures[0],
        received_packets=figures[1],
        receive_errors=figures[2],
        receive_drops=figures[3],
        sent_bytes=figures[8],
        sent_packets=figures[9],
        send_errors=figures[10],
        send_drops=figures[11],
    )


def _device(words: list[str], name_of: Callable[[str], str]) -> IoStats | None:
    devices = [word for word in words if _DEVICE.fullmatch(word)]
    if not devices:
        return None
    match = _DEVICE.fullmatch(devices[-1])
    pairs = (word.partition("=") for word in words if "=" in word)
    figures = {key: number(value) for key, _, value in pairs}
    major, minor = map(int, match.groups()) if match else (0, 0)
    return IoStats(
        major=major,
        minor=minor,
        name=name_of(devices[-1]),
        read_bytes=figures.get("rbytes", 0),
        write_bytes=figures.get("wbytes", 0),
        reads=figures.get("rios", 0),
        writes=figures.get("wios", 0),
        discarded_bytes=figures.get("dbytes", 0),
        discards=figures.get("dios", 0),
    )


def _name(sys: Path, device: str) -> str:
    """The device's name in sysfs, from its link there; empty when it is gone."""
    try:
        return (sys / "dev/block" / device).readlink().name
    except OSError:
        return ""


def _pages(group: Path, name: str, match: re.Match[str]) -> HugetlbStats:
    prefix = name.removesuffix("current")
    return HugetlbStats(
        page_bytes=int(match[1]) * _UNITS[match[2]],
        current=count(group / name),
        limit=count(group / f"{prefix}max"),
        refused=table(group / f"{prefix}events")["max"],
    )

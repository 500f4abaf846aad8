"""OCI's linux.resources, checked (config-linux.md, section Control groups).

What cgroup v2 has no place for is refused by name, also where crun would say so itself;
where crun says nothing (rdma) the container would have fewer limits than it was promised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from agent.handlers.runtime.spec.devices import check_rule
from agent.handlers.runtime.spec.members import (
    INT64,
    UINT16,
    UINT32,
    UINT64,
    Json,
    bad_spec,
    listed,
    not_supported,
    within,
)

Shape: TypeAlias = Mapping[str, Callable[[Json], object]]

_V1_ONLY = MappingProxyType(
    {
        "memory": ("kernel", "kernelTCP", "swappiness", "disableOOMKiller", "useHierarchy"),
        "cpu": ("realtimeRuntime", "realtimePeriod"),
        "blockIO": ("leafWeight",),
    }
)
"""What is left of them once checked asks for nothing."""

_NEVER = ("network", "rdma")

_CONTROLLERS = {"cpu", "cpuset", "hugetlb", "io", "memory", "misc", "pids", "rdma"}
_BOUNDS = {"cgroup.max.depth", "cgroup.max.descendants"}
"""Of the group itself what a specification may set; the agent does else (cgroup.py)."""

_CPU_LIST = re.compile(r"\s*(\d+(-\d+)?(:\d+/\d+)?)?(,\d+(-\d+)?(:\d+/\d+)?)*\s*")
_PAGE_SIZE = re.compile(r"[1-9]\d{0,8}[KMG]B")
_LATER_HINT = "the guest has cgroup v2"


_NO_LIMIT = "max"


def check_resources(resources: Json) -> None:
    """Raises BAD_SPEC for another shape, NOT_SUPPORTED for what cgroup v2 does not have."""
    resources.fits(_RESOURCES)


def without_nothing(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Checked resources without what cgroup v2 has no place for, and asks for nothing.

    crun refuses these members whatever they say, also "no limit".
    """
    kept = {name: value for name, value in resources.items() if value is not None}
    for part, names in _V1_ONLY.items():
        if part in kept:
            kept[part] = {name: value for name, value in kept[part].items() if name not in names}
    return {name: value for name, value in kept.items() if value or name not in _NEVER}


def check_cpu_list(cpus: Json) -> None:
    """A list as the kernel's cpulist_parse takes it, such as 0-3,8."""
    if not _CPU_LIST.fullmatch(cpus.text()):
        raise bad_spec(cpus.place, f"{cpus.text()[:60]!a} is no list of numbers, such as 0-3,8")


def _nowhere(value: Json) -> None:
    """A limit of cgroup v1. False and 0 ask for nothing."""
    if value.value not in (False, 0, -1, None):
        raise not_supported(value.place, "cgroup v2 has no such limit", hint=_LATER_HINT)


def _flag_nowhere(value: Json) -> None:
    value.flag()
    _nowhere(value)


def _number_nowhere(value: Json) -> None:
    value.number(INT64[0], UINT64[1])
    _nowhere(value)


def _never(value: Json) -> None:
    if value.members():
        raise not_supported(value.place, "the runtime does not do that", hint=_LATER_HINT)


def _check_swappiness(value: Json) -> None:
    value.number(*UINT64)
    raise not_supported(value.place, "cgroup v2 has no such setting", hint=_LATER_HINT)


def _check_memory(memory: Json) -> None:
    memory.fits(_MEMORY)
    limit, swap = memory.get("limit"), memory.get("swap")
    if limit is None or swap is None or _NO_LIMIT in (limit.value, swap.value):
        return
    if 0 < swap.value < limit.value:
        raise bad_spec(swap.place, "is less than the limit: it is memory and swap together")


def _check_block_device(device: Json) -> None:
    for name in ("major", "minor"):
        device.need(name).number(0, UINT32[1])


def _check_weight_device(device: Json) -> None:
    _check_block_device(device)
    device.fits({"weight": within(UINT16), "leafWeight": _number_nowhere})


def _check_throttle(device: Json) -> None:
    _check_block_device(device)
    device.need("rate").number(*UINT64)


def _limit(number: Json) -> None:
    """Also the kernel's own word for none (limits.py)."""
    if number.value != _NO_LIMIT:
        number.number(*INT64)


def _check_pids(pids: Json) -> None:
    pids.check("limit", _limit)


def _check_huge_pages(limit: Json) -> None:
    size = limit.need("pageSize")
    if not _PAGE_SIZE.fullmatch(size.text()):
        raise bad_spec(size.place, f"{size.text()[:40]!a} is no size of pages, such as 2MB")
    number = limit.need("limit")
    if number.value not in (_NO_LIMIT, -1):
        number.number(*UINT64)


def _check_unified(unified: Json) -> None:
    """Files of controllers only: `cgroup.procs` would move any process of the guest, PID 1 too."""
    for name in unified.members():
        controller, dot, _ = name.partition(".")
        if name in _BOUNDS:
            unified.need(name).text()
            continue
        if not dot or controller not in _CONTROLLERS or "/" in name:
            raise bad_spec(
                unified.below(name)[:200],
                "is no file of a controller",
                hint="known controllers: " + ", ".join(sorted(_CONTROLLERS)),
            )
        unified.need(name).text()


_MEMORY: Shape = MappingProxyType(
    {
        "limit": _limit,
        "reservation": _limit,
        "swap": _limit,
        "kernel": _number_nowhere,
        "kernelTCP": _number_nowhere,
        "swappiness": _check_swappiness,
        "disableOOMKiller": _flag_nowhere,
        "useHierarchy": _flag_nowhere,
        "checkBeforeUpdate": Json.flag,
    }
)

_CPU: Shape = MappingProxyType(
    {
        "shares": within(UINT64),
        "quota": _limit,
        "burst": within(UINT64),
        "period": within(UINT64),
        "realtimeRuntime": _number_nowhere,
        "realtimePeriod": _number_nowhere,
        "cpus": check_cpu_list,
        "mems": check_cpu_list,
        "idle": within(INT64),
    }
)

_BLOCK: Shape = MappingProxyType(
    {
        "weight": within(UINT16),
        "leafWeight": _number_nowhere,
        "weightDevice": listed(_check_weight_device),
        "throttleReadBpsDevice": listed(_check_throttle),
        "throttleWriteBpsDevice": listed(_check_throttle),
        "throttleReadIOPSDevice": listed(_check_throttle),
        "throttleWriteIOPSDevice": listed(_check_throttle),
    }
)

_RESOURCES: Shape = MappingProxyType(
    {
        "devices": listed(check_rule),
        "memory": _check_memory,
        "cpu": lambda cpu: cpu.fits(_CPU),
        "pids": _check_pids,
        "blockIO": lambda block: block.fits(_BLOCK),
        "hugepageLimits": listed(_check_huge_pages),
        "network": _never,
        "rdma": _never,
        "unified": _check_unified,
    }
)

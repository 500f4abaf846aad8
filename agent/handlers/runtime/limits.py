"""Limits as the specification says them, made whole for the runtime.

"No limit" is -1, or the kernel's word "max". A new group has no limits, so a creation need
not say that. An update must, and the runtime takes each update for all there is to say: of
two values that share one file of the kernel's it sets the one that is not named to its
default. So what an update does not name is filled in from what holds now, and what the
runtime has no word for is said as the kernel's own files (`unified`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.handlers.runtime.spec.members import bad_spec

_MAX = "max"
_PERIOD = "100000"
"""Microseconds; the kernel's own default (cgroup-v2.rst, cpu.max)."""

_LIMITS = {
    "memory": ("limit", "swap", "reservation"),
    "cpu": ("quota",),
    "pids": ("limit",),
}


def for_creation(resources: Mapping[str, Any]) -> dict[str, Any]:
    """`linux.resources` of a container to be made, without what is no limit.

    Raises BAD_SPEC with the place of what is no number.
    """
    whole = _present(resources)
    for part, names in _LIMITS.items():
        for name in names:
            if _number(whole, part, name) == -1:
                whole[part] = _without(whole[part], name)
    if not whole.get("pids"):
        # The specification's object must have a limit.
        whole.pop("pids", None)
    if pages := _pages(whole):
        whole["hugepageLimits"] = [each for each in pages if _size(each) != -1]
    return whole | _unified(whole)


def for_update(resources: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """`linux.resources` of an update, with what it does not name as it is now.

    `files` are the files of limits as they are (`Cgroup.limits`). Raises BAD_SPEC.
    """
    whole = _present(resources)
    said = _cpu(whole, files) | _pids(whole) | _huge_pages(whole)
    _memory(whole, files)
    unified = said | _unified(whole).get("unified", {})
    return whole | {"unified": unified} if unified else whole


def _memory(whole: dict[str, Any], files: Mapping[str, str]) -> None:
    """`swap` is memory and swap together, so it needs the limit that it goes on top of."""
    for name in _LIMITS["memory"]:
        if (number := _number(whole, "memory", name)) is not None:
            whole["memory"] = whole["memory"] | {name: number}
    memory = whole.get("memory") or {}
    if (memory.get("swap") or 0) <= 0 or memory.get("limit") is not None:
        return
    limit = files.get("memory.max", _MAX).strip()
    if limit == _MAX:
        raise bad_spec(
            "memory.swap",
            "is memory and swap together, and the memory has no limit",
            hint="say memory.limit as well",
        )
    whole["memory"] = memory | {"limit": int(limit)}


def _cpu(whole: dict[str, Any], files: Mapping[str, str]) -> dict[str, str]:
    """Quota and period are one file; a burst may never be above the quota, so which of
    the two files comes first depends on where the burst goes."""
    quota, period = _number(whole, "cpu", "quota"), _number(whole, "cpu", "period")
    burst = _number(whole, "cpu", "burst")
    if whole.get("cpu"):
        whole["cpu"] = _without(whole["cpu"], "quota", "period", "burst")
    times: dict[str, str] = {}
    # 0 is no time that the kernel takes: it says nothing.
    if quota or period:
        now = (files.get("cpu.max", "").split() or [_MAX]) + [_PERIOD]
        times["cpu.max"] = f"{_word(quota) if quota else now[0]} {period or now[1]}"
    if burst is None:
        return times
    bursts = {"cpu.max.burst": str(burst)}
    lower = burst < int(files.get("cpu.max.burst", "0"))
    return bursts | times if lower else times | bursts


def _pids(whole: dict[str, Any]) -> dict[str, str]:
    limit = _number(whole, "pids", "limit")
    if limit is None or limit > 0:
        return {}
    del whole["pids"]
    return {"pids.max": _word(limit)}


def _huge_pages(whole: dict[str, Any]) -> dict[str, str]:
    """The specification's type has no sign."""
    pages = _pages(whole)
    if pages:
        whole["hugepageLimits"] = [each for each in pages if _size(each) != -1]
    unlimited = [str(each.get("pageSize")) for each in pages if _size(each) == -1]
    for size in unlimited:
        if not size.isalnum():
            raise bad_spec("hugepageLimits", f'{size[:20]!a} is no size of pages, as "2MB" is')
    return {f"hugetlb.{size}.max": _MAX for size in unlimited}


def _unified(whole: Mapping[str, Any]) -> dict[str, Any]:
    """-1 is no word of the kernel's; it is taken for the one that it has."""
    unified = whole.get("unified")
    if not unified:
        return {}
    return {"unified": {k: _MAX if str(v).strip() == "-1" else v for k, v in unified.items()}}


def _present(resources: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in resources.items() if value is not None}


def _without(part: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in names}


def _word(number: int) -> str:
    """As the kernel's files have it; what is not above 0 is no limit."""
    return str(number) if number > 0 else _MAX


def _pages(whole: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    pages = whole.get("hugepageLimits") or []
    if not isinstance(pages, list):
        raise bad_spec("hugepageLimits", "is no list")
    return pages


def _size(page: Mapping[str, Any]) -> int | None:
    return _number({"hugepageLimits": page}, "hugepageLimits", "limit")


def _number(whole: Mapping[str, Any], part: str, name: str) -> int | None:
    """-1 for no limit, None when nothing is said."""
    members = whole.get(part)
    if members is None:
        return None
    if not isinstance(members, Mapping):
        raise bad_spec(part, "is no object")
    value = members.get(name)
    if value is None:
        return None
    if value == _MAX:
        return -1
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 64:
        raise bad_spec(f"{part}.{name}", 'is no whole number of 64 bits, nor "max"')
    return max(value, -1)

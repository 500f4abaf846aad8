"""An end as the details of an event: texts by name, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.life import EndCause, OutOfMemory
from agent.core.model import ProcessExit

if TYPE_CHECKING:
    from collections.abc import Mapping


def details_of(end: ProcessExit) -> dict[str, str]:
    """All of an end but its time; what is not known is left out."""
    found: dict[str, object] = {"code": end.code, "signal": end.signal}
    if end.core_dumped:
        found["core_dumped"] = "yes"
    if end.cause is not None:
        found["cause"] = end.cause.value
    if end.why:
        found["why"] = end.why
    for name, count in (("stdout_bytes", end.stdout_bytes), ("stderr_bytes", end.stderr_bytes)):
        if count is not None:
            found[name] = count
    if (kill := end.out_of_memory) is not None:
        found |= {
            "victim": kill.victim,
            "victim_pid": kill.pid,
            "limit": kill.limit,
            "cgroup": kill.cgroup,
        }
    return {name: str(value) for name, value in found.items()}


def end_of(details: Mapping[str, str], at: float) -> ProcessExit:
    """The end that such details tell; `at` is in seconds of the wall clock."""
    cause = details.get("cause")
    return ProcessExit(
        code=int(details.get("code", 0)),
        signal=int(details.get("signal", 0)),
        at=at,
        core_dumped=details.get("core_dumped") == "yes",
        cause=None if cause is None else EndCause(cause),
        why=details.get("why", ""),
        out_of_memory=_kill(details) if "victim" in details else None,
        stdout_bytes=_count(details, "stdout_bytes"),
        stderr_bytes=_count(details, "stderr_bytes"),
    )


def _kill(details: Mapping[str, str]) -> OutOfMemory:
    return OutOfMemory(
        victim=details["victim"],
        pid=int(details.get("victim_pid", 0)),
        limit=int(details.get("limit", 0)),
        cgroup=details.get("cgroup", ""),
    )


def _count(details: Mapping[str, str], name: str) -> int | None:
    return int(details[name]) if name in details else None

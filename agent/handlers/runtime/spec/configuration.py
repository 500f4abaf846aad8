"""The OCI specification: what the host sent, checked, and what crun gets.

The host's words are kept. Where it says nothing, a container gets what
container engines usually give. What belongs to the agent (root, cgroup, device
rules, mounts of storages) is always the agent's. What crun could not do, or
would do less of without saying, is refused; what only this guest's kernel lacks is
told by support.py.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError
from agent.core.sandbox import check_hostname
from agent.handlers.runtime.hooks import check_hooks
from agent.handlers.runtime.spec.linux import NET_DEVICES, check_linux
from agent.handlers.runtime.spec.members import Json, bad_spec, parse
from agent.handlers.runtime.spec.mounts import (
    check_mount,
    default_mounts,
    keep_propagation,
    storage_mount,
)
from agent.handlers.runtime.spec.process import check_process, container_defaults
from agent.handlers.runtime.spec.resources import check_resources, without_nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Surroundings",
    "complete",
    "parse_process",
    "parse_resources",
    "parse_spec",
    "storage_mount",
    "to_json",
]

_OCI_VERSION = "1.0.2"
_VERSION = re.compile(r"1\.[0-3]\.[0-9]+([-+].*)?", re.DOTALL)

_ANNOTATIONS = frozenset(
    {
        "run.oci.delegate-cgroup",
        "run.oci.keep_original_groups",
        "run.oci.seccomp_fail_unknown_syscall",
        "run.oci.timens_offset",
    }
)
"""Those of crun's annotations (crun.1) that stay inside the container. Others
start programs, write to files of the guest, or replace the seccomp profile."""

_OF_THE_RUNTIME = ("run.oci.", "module.wasm.")
"""Prefixes that crun acts on; the latter chooses another way to run the process."""

_FOREIGN = ("solaris", "windows", "vm", "zos", "freebsd")
_DEFAULT_NAMESPACES = ("pid", "ipc", "uts", "mount", "cgroup")

_MASKED = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the agent puts around the host's words."""

    root: str
    cgroup: str
    mounts: Sequence[dict[str, Any]]


def parse_spec(data: bytes) -> dict[str, Any]:
    """The host's specification; raises BAD_SPEC with the place of what is wrong.

    NOT_SUPPORTED, with the place, for what the runtime would leave out.
    """
    spec = parse(data)
    _check_top(spec)
    check_process(spec.need("process"))
    spec.check("root", _check_root)
    spec.check("mounts", lambda mounts: mounts.each(check_mount))
    spec.check("hooks", check_hooks)
    spec.check("linux", check_linux)
    spec.check("annotations", _check_annotations)
    return spec.members()


def parse_process(data: bytes) -> dict[str, Any]:
    """OCI's process object of an exec; raises BAD_SPEC with the place of what is wrong."""
    process = parse(data)
    check_process(process)
    return process.members()


def parse_resources(data: bytes) -> dict[str, Any]:
    """OCI's linux.resources of an update; raises BAD_SPEC with the place of what is wrong.

    Without rules for devices: those are the agent's to make, of the grants.
    """
    resources = parse(data)
    if resources.get("devices") is not None:
        raise bad_spec("devices", "the grants say which devices a container may use")
    check_resources(resources)
    return without_nothing(resources.members())


def complete(spec: dict[str, Any], around: Surroundings) -> dict[str, Any]:
    """What the runtime gets, but for devices (spec_devices.py)."""
    whole = {name: value for name, value in copy.deepcopy(spec).items() if value is not None}
    whole.setdefault("ociVersion", _OCI_VERSION)
    whole["process"] = container_defaults(whole["process"])
    whole["root"] = {**whole.get("root", {}), "path": around.root}
    given = whole.get("linux", {}).items()
    linux = whole["linux"] = {k: v for k, v in given if v is not None and k != NET_DEVICES}
    if "resources" in linux:
        linux["resources"] = without_nothing(linux["resources"])
    linux["namespaces"] = _namespaces(linux.get("namespaces"))
    linux.setdefault("maskedPaths", list(_MASKED))
    linux.setdefault("readonlyPaths", list(_READ_ONLY))
    linux["cgroupsPath"] = around.cgroup
    own_users = any(each["type"] == "user" for each in linux["namespaces"])
    whole.setdefault("mounts", default_mounts(own_users=own_users))
    whole["mounts"] = [*whole["mounts"], *around.mounts]
    keep_propagation(whole)
    return whole


def to_json(spec: dict[str, Any]) -> str:
    return json.dumps(spec, ensure_ascii=False)


def _check_top(spec: Json) -> None:
    version = spec.get("ociVersion")
    if version is not None and not _VERSION.fullmatch(version.text()):
        raise bad_spec(version.place, f"{version.text()[:20]!r} is not one of 1.0 to 1.3")
    for name in _FOREIGN:
        if spec.get(name) is not None:
            raise bad_spec(name, "is for another platform")
    spec.check("hostname", _check_hostname)
    spec.check("domainname", _check_hostname)


def _check_root(root: Json) -> None:
    root.check("path", Json.text)
    root.check("readonly", Json.flag)


def _check_hostname(name: Json) -> None:
    """It gets into files, where a line of its own would be worth a lie."""
    try:
        check_hostname(name.text())
    except AgentError as error:
        raise bad_spec(name.place, error.message) from error
    if not name.text():
        raise bad_spec(name.place, "is empty", hint="leave it out")


def _check_annotations(annotations: Json) -> None:
    for name in annotations.members():
        annotations.need(name).text()
        if name.startswith(_OF_THE_RUNTIME) and name not in _ANNOTATIONS:
            raise bad_spec(
                f"annotations.{name}",
                "is not let through to the runtime",
                hint="let through: " + ", ".join(sorted(_ANNOTATIONS)),
            )


def _namespaces(given: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Without a cgroup namespace a container would see the guest's whole tree of cgroups."""
    if given is None:
        return [{"type": name} for name in _DEFAULT_NAMESPACES]
    if any(each["type"] == "cgroup" for each in given):
        return given
    return [*given, {"type": "cgroup"}]

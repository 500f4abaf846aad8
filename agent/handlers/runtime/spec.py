"""The OCI specification: what the host sent, checked, and what crun gets.

The host's words are kept. Where it says nothing, a container gets what
container engines usually give. What belongs to the agent (root, cgroup, device
rules, mounts of storages) is always the agent's. What crun could not do, or
would do less of without saying, is refused.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.errors import invalid, wrong_state
from agent.handlers.runtime.spec_devices import check_entry, check_rule
from agent.handlers.runtime.spec_network import check_net_devices
from agent.handlers.runtime.spec_process import check_process, container_defaults
from agent.handlers.runtime.specjson import Json, bad_spec, parse

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from agent.core.model import MountedStorage, StorageMount

_OCI_VERSION = "1.0.2"

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
_NOT_DONE = ("memoryPolicy",)
_OURS = "netDevices"
"""Of `linux`, what the agent does instead of the runtime (spec_network.py)."""

_CONTROLLERS = {"cpu", "cpuset", "hugetlb", "io", "memory", "misc", "pids", "rdma"}

_NAMESPACES = {"pid", "network", "mount", "ipc", "uts", "user", "cgroup", "time"}
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

_BIND_OPTIONS = frozenset(
    [
        "ro",
        "rw",
        "nosuid",
        "suid",
        "nodev",
        "dev",
        "noexec",
        "exec",
        "noatime",
        "atime",
        "nodiratime",
        "diratime",
        "relatime",
        "norelatime",
        "strictatime",
        "private",
        "rprivate",
        "slave",
        "rslave",
        "shared",
        "rshared",
        "bind",
        "rbind",
    ]
)
_LONGEST_PATH = 4095
"""PATH_MAX without its NUL (include/uapi/linux/limits.h)."""

_STRICT = {"nosuid": "suid", "nodev": "dev", "noexec": "exec", "ro": "rw"}
"""Flags that a container doesn't take away from a storage, and the words that would."""

_PROPAGATION = {"private", "rprivate", "slave", "rslave", "shared", "rshared"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the agent puts around the host's words."""

    root: str
    cgroup: str
    mounts: Sequence[dict[str, Any]]


def parse_spec(data: bytes) -> dict[str, Any]:
    """The host's specification; raises BAD_SPEC with the place of what is wrong."""
    spec = parse(data)
    _check_top(spec)
    check_process(spec.need("process"))
    spec.check("root", lambda root: root.check("readonly", Json.flag))
    spec.check("mounts", lambda mounts: mounts.each(_check_mount))
    spec.check("linux", _check_linux)
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
    _check_resources(resources)
    return {name: value for name, value in resources.members().items() if value is not None}


def complete(spec: dict[str, Any], around: Surroundings) -> dict[str, Any]:
    """What the runtime gets, but for devices (spec_devices.py)."""
    whole = {name: value for name, value in copy.deepcopy(spec).items() if value is not None}
    whole.setdefault("ociVersion", _OCI_VERSION)
    whole["process"] = container_defaults(whole["process"])
    whole["root"] = {**whole.get("root", {}), "path": around.root}
    given = whole.get("linux", {}).items()
    linux = whole["linux"] = {k: v for k, v in given if v is not None and k != _OURS}
    linux["namespaces"] = _namespaces(linux.get("namespaces"))
    linux.setdefault("maskedPaths", list(_MASKED))
    linux.setdefault("readonlyPaths", list(_READ_ONLY))
    linux["cgroupsPath"] = around.cgroup
    own_users = any(each["type"] == "user" for each in linux["namespaces"])
    whole.setdefault("mounts", _default_mounts(own_users=own_users))
    whole["mounts"] = [*whole["mounts"], *around.mounts]
    return whole


def storage_mount(
    wanted: StorageMount, storage: MountedStorage, flags: Collection[str] = ()
) -> dict[str, Any]:
    """A storage as a bind mount; `flags`: those its own mount has. Raises BAD_FIELD, WRONG_STATE.

    The runtime sets the flags that it is told of and clears the others, so what the
    storage was attached with is said again, whatever the container asks for.
    The destination is resolved inside the container's root, links and all
    (targets.py), so it is only checked for its form here.
    """
    if (problem := _destination_problem(wanted.destination)) is not None:
        raise invalid(
            f"storage {wanted.storage_id}: the destination {wanted.destination[:200]!r} {problem}",
            field="destination",
        )
    if unknown := [option for option in wanted.options if option not in _BIND_OPTIONS]:
        raise invalid(
            f"storage {wanted.storage_id}: {', '.join(unknown)} is no option of a mount"
            " in a container",
            hint="known: " + ", ".join(sorted(_BIND_OPTIONS)),
            field="options",
        )
    if "nosymfollow" in flags:
        # crun 1.21 doesn't know the flag and takes it off.
        raise wrong_state(
            f"storage {wanted.storage_id} is mounted with nosymfollow, which the runtime would"
            " not keep in a container",
            hint="attach it without, or use it under other storages only",
            id=wanted.storage_id,
        )
    options = list(wanted.options)
    if not {"bind", "rbind"} & set(options):
        options.insert(0, "rbind")
    if not _PROPAGATION & set(options):
        options.append("rprivate")
    given = {*flags, "ro"} if storage.request.read_only else set(flags)
    kept = [flag for flag in _STRICT if flag in given]
    replaced = {*kept, *(_STRICT[flag] for flag in kept)}
    options = [option for option in options if option not in replaced] + kept
    return {
        "destination": wanted.destination,
        "type": "bind",
        "source": storage.mount_point,
        "options": options,
    }


def to_json(spec: dict[str, Any]) -> str:
    return json.dumps(spec, ensure_ascii=False)


def _check_top(spec: Json) -> None:
    version = spec.get("ociVersion")
    if version is not None and not version.text().startswith("1."):
        raise bad_spec(version.place, f"{version.text()[:20]!r} is not a version 1")
    for name in _FOREIGN:
        if spec.get(name) is not None:
            raise bad_spec(name, "is for another platform")
    spec.check("hostname", Json.text)
    spec.check("domainname", Json.text)


def _destination_problem(path: str) -> str | None:
    """What is wrong with the form of a mount's destination in a container."""
    names = path.split("/")
    if not path.startswith("/"):
        return "is not absolute"
    if "\0" in path or len(path) > _LONGEST_PATH:
        return "is no path: it has a NUL, or more than 4095 letters"
    if ".." in names:
        return "has '..' in it: name the place itself"
    if not set(names) - {"", "."}:
        return "is the root itself: that is what the container is made from"
    return None


def _check_mount(mount: Json) -> None:
    destination = mount.need("destination")
    if (problem := _destination_problem(destination.text())) is not None:
        raise bad_spec(destination.place, f"{destination.text()[:200]!r} {problem}")
    mount.check("type", Json.text)
    mount.check("source", Json.text)
    mount.check("options", Json.texts)


def _check_linux(linux: Json) -> None:
    for name in _NOT_DONE:
        if linux.get(name) is not None:
            raise bad_spec(f"linux.{name}", "the runtime can't do that")
    linux.check("namespaces", _check_namespaces)
    linux.check(_OURS, check_net_devices)
    linux.check("maskedPaths", Json.paths)
    linux.check("readonlyPaths", Json.paths)
    linux.check("devices", lambda devices: devices.each(check_entry))
    linux.check("resources", _check_resources)


def _check_resources(resources: Json) -> None:
    resources.check("devices", lambda rules: rules.each(check_rule))
    resources.check("unified", _check_unified)


def _check_unified(unified: Json) -> None:
    """Files of controllers only: `cgroup.procs` would move any process of the guest, PID 1 too."""
    for name in unified.members():
        controller, dot, _ = name.partition(".")
        if not dot or controller not in _CONTROLLERS or "/" in name:
            raise bad_spec(
                f"{unified.place}.{name}"[:200],
                "is no file of a controller",
                hint="known controllers: " + ", ".join(sorted(_CONTROLLERS)),
            )


def _check_namespaces(namespaces: Json) -> None:
    seen: set[str] = set()
    for each in namespaces.items():
        kind = each.need("type")
        if kind.text() not in _NAMESPACES:
            known = ", ".join(sorted(_NAMESPACES))
            raise bad_spec(kind.place, f"{kind.text()[:20]!a} is no namespace; known: {known}")
        if kind.text() in seen:
            raise bad_spec(kind.place, f"{kind.text()} is there twice")
        each.check("path", _check_namespace_path)
        seen.add(kind.text())
    if "mount" not in seen:
        raise bad_spec(namespaces.place, "without 'mount' a container would mount in the guest")


def _check_namespace_path(path: Json) -> None:
    if path.text():
        path.path()


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


def _default_mounts(*, own_users: bool) -> list[dict[str, Any]]:
    # Group 5 (tty) may have no number in a user namespace; the kernel refuses it then.
    tty = [] if own_users else ["gid=5"]
    rows: tuple[tuple[str, str, str, list[str]], ...] = (
        ("/proc", "proc", "proc", []),
        ("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        (
            "/dev/pts",
            "devpts",
            "devpts",
            ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", *tty],
        ),
        ("/dev/shm", "tmpfs", "shm", ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        ("/dev/mqueue", "mqueue", "mqueue", ["nosuid", "noexec", "nodev"]),
        ("/sys", "sysfs", "sysfs", ["nosuid", "noexec", "nodev", "ro"]),
        ("/sys/fs/cgroup", "cgroup", "cgroup", ["nosuid", "noexec", "nodev", "relatime", "ro"]),
    )
    return [
        {"destination": destination, "type": kind, "source": source, "options": options}
        for destination, kind, source, options in rows
    ]

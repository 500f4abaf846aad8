"""OCI's mounts: checked, and those of storages and of a silent specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.core.errors import invalid, wrong_state
from agent.handlers.runtime.sources import is_bind
from agent.handlers.runtime.spec.members import UINT32, Json, bad_spec

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.core.model import MountedStorage, StorageMount

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
_TRAVELS = {"shared", "rshared", "slave", "rslave", "unbindable", "runbindable"}
_KEPT_APART = _PROPAGATION | _TRAVELS


def check_mount(mount: Json) -> None:
    """Raises BAD_SPEC with the place of what is wrong."""
    destination = mount.need("destination")
    if (problem := _destination_problem(destination.text())) is not None:
        raise bad_spec(destination.place, f"{destination.text()[:200]!r} {problem}")
    mount.check("type", Json.text)
    mount.check("source", Json.text)
    mount.check("options", Json.texts)
    mappings = [mount.get(name) for name in ("uidMappings", "gidMappings")]
    for each in mappings:
        if each is not None:
            each.each(check_mapping)
    if (mappings[0] is None) != (mappings[1] is None):
        raise bad_spec(mount.place, "has mappings of users or of groups, and needs both or none")


def check_mapping(mapping: Json) -> None:
    """One of uidMappings or gidMappings. Raises BAD_SPEC."""
    for name in ("containerID", "hostID"):
        mapping.need(name).number(*UINT32)
    mapping.need("size").number(1, UINT32[1])


def keep_propagation(config: dict[str, Any]) -> None:
    """Have mounts stay shared, slave or unbindable where the specification wants them so.

    Where rootfsPropagation is silent crun makes all mounts private in the end, also those
    whose options say otherwise (tried with 1.21). With one that is for the root alone each
    mount keeps its own, so those that say nothing are told to be private.
    """
    wanted = any(_TRAVELS & set(mount.get("options") or ()) for mount in config["mounts"])
    if not wanted or config["linux"].get("rootfsPropagation"):
        return
    config["linux"]["rootfsPropagation"] = "private"
    for mount in config["mounts"]:
        options = mount.get("options") or []
        if is_bind(mount) and not _KEPT_APART & set(options):
            mount["options"] = [*options, "rprivate"]


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


def default_mounts(*, own_users: bool) -> list[dict[str, Any]]:
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

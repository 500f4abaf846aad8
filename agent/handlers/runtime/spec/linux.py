"""OCI's linux object (config-linux.md): checked, member by member."""

from __future__ import annotations

from types import MappingProxyType

from agent.handlers.runtime.spec.devices import check_entry
from agent.handlers.runtime.spec.members import INT64, Json, bad_spec, listed, not_supported
from agent.handlers.runtime.spec.mounts import check_mapping
from agent.handlers.runtime.spec.network import check_net_devices
from agent.handlers.runtime.spec.resources import check_resources
from agent.handlers.runtime.spec.seccomp import check_seccomp
from agent.handlers.runtime.spec.sysctls import check_sysctl, check_sysctls

NAMESPACES = frozenset({"pid", "network", "mount", "ipc", "uts", "user", "cgroup", "time"})

NET_DEVICES = "netDevices"
"""What the agent does instead of the runtime (spec_network.py)."""

_CLOCKS = ("monotonic", "boottime")
_NANOSECONDS = (0, 999_999_999)
_PROPAGATIONS = frozenset(
    f"{recursive}{word}"
    for word in ("shared", "slave", "private", "unbindable")
    for recursive in ("", "r")
)


def check_linux(linux: Json) -> None:
    """Raises BAD_SPEC with the place of what is wrong, NOT_SUPPORTED for what is not done."""
    linux.fits(_SHAPE)
    _check_mappings(linux)
    _check_offsets(linux)
    check_sysctls(linux.members())


def _not_done(member: Json) -> None:
    """crun 1.21 leaves it out without a word."""
    raise not_supported(member.place, "the runtime can't do that")


def _check_personality(personality: Json) -> None:
    personality.need("domain").one_of("LINUX", "LINUX32")
    flags = personality.get("flags")
    if flags is not None and flags.texts():
        # The specification has none yet (config-linux.md), and crun does none.
        raise not_supported(flags.place, "the runtime knows no flags of a personality")


def _check_propagation(value: Json) -> None:
    """crun takes any other word for none."""
    if value.text() and value.text() not in _PROPAGATIONS:
        value.one_of(*sorted(_PROPAGATIONS))


def _check_resctrl(rdt: Json) -> None:
    for name in ("closID", "l3CacheSchema", "memBwSchema"):
        rdt.check(name, Json.text)
    rdt.check("schemata", Json.texts)
    for name in ("enableCMT", "enableMBM", "enableMonitoring"):
        rdt.check(name, Json.flag)


def _check_mappings(linux: Json) -> None:
    user = _namespace(linux, "user")
    for name in ("uidMappings", "gidMappings"):
        mappings = linux.get(name)
        given = mappings is not None and bool(mappings.value)
        if user is None and given:
            raise bad_spec(
                linux.below(name),
                "the container has no user namespace",
                hint='linux.namespaces needs {"type": "user"}',
            )
        if user is not None and not given and not _path_of(user):
            # crun would map root alone, and to the guest's root.
            raise bad_spec(linux.below(name), "a user namespace needs it")


def _check_offsets(linux: Json) -> None:
    offsets = linux.get("timeOffsets")
    if offsets is None or not offsets.members():
        return
    time = _namespace(linux, "time")
    if time is None or _path_of(time):
        raise bad_spec(
            offsets.place,
            "the container has no time namespace of its own",
            hint='linux.namespaces needs {"type": "time"}',
        )
    for clock in offsets.members():
        offset = offsets.need(clock)
        if clock not in _CLOCKS:
            raise bad_spec(offset.place[:200], "has no offset; clocks: " + ", ".join(_CLOCKS))
        offset.check("secs", lambda secs: secs.number(*INT64))
        offset.check("nanosecs", lambda nanosecs: nanosecs.number(*_NANOSECONDS))
    _check_offsets_are_set(linux, offsets)


def _check_offsets_are_set(linux: Json, offsets: Json) -> None:
    """crun 1.21 writes them as the user that it has become: EACCES, unless that is the guest's."""
    mappings = linux.get("uidMappings")
    if _namespace(linux, "user") is None or mappings is None:
        return
    as_root = {"containerID": 0, "hostID": 0}
    if not any(each.members().items() >= as_root.items() for each in mappings.items()):
        raise not_supported(
            offsets.place, "the runtime can't set clocks of a container with users of its own"
        )


def _namespace(linux: Json, kind: str) -> Json | None:
    namespaces = linux.get("namespaces")
    found = namespaces.items() if namespaces is not None else ()
    return next((each for each in found if each.need("type").text() == kind), None)


def _path_of(namespace: Json) -> str:
    path = namespace.get("path")
    return path.text() if path is not None else ""


def _check_namespaces(namespaces: Json) -> None:
    seen: set[str] = set()
    for each in namespaces.items():
        kind = each.need("type")
        if kind.text() not in NAMESPACES:
            known = ", ".join(sorted(NAMESPACES))
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


_SHAPE = MappingProxyType(
    {
        "namespaces": _check_namespaces,
        "uidMappings": listed(check_mapping),
        "gidMappings": listed(check_mapping),
        "timeOffsets": lambda offsets: offsets.each_member(Json.members),
        "devices": listed(check_entry),
        NET_DEVICES: check_net_devices,
        "cgroupsPath": Json.text,
        "resources": check_resources,
        "rootfsPropagation": _check_propagation,
        "seccomp": check_seccomp,
        "sysctl": check_sysctl,
        "maskedPaths": Json.paths,
        "readonlyPaths": Json.paths,
        "mountLabel": Json.text,
        "intelRdt": _check_resctrl,
        "memoryPolicy": _not_done,
        "personality": _check_personality,
    }
)

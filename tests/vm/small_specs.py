"""Sixty small specifications, each with one thing in it that a process can see.

Every one is whole: a runtime that fills in nothing makes the same container of it as one
that fills in what is usual. What differs between the two is what the agent adds or changes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.vm.guest import EVERYTHING, PATH

Spec = dict[str, Any]

_CAPABILITIES = ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]

# As `crun spec` writes it, less what the default root has no use for.
BASE: Spec = {
    "ociVersion": "1.0.2",
    "process": {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": ["/witness"],
        "env": [PATH],
        "cwd": "/",
        "capabilities": {
            "bounding": _CAPABILITIES,
            "effective": _CAPABILITIES,
            "permitted": _CAPABILITIES,
        },
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
        "oomScoreAdj": 0,
        "noNewPrivileges": True,
    },
    "root": {"path": "rootfs", "readonly": False},
    "hostname": "small",
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": [
                *("nosuid", "noexec", "newinstance"),
                *("ptmxmode=0666", "mode=0620", "gid=5"),
            ],
        },
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "shm",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
        },
        {
            "destination": "/sys",
            "type": "sysfs",
            "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", "ro"],
        },
        {
            "destination": "/sys/fs/cgroup",
            "type": "cgroup",
            "source": "cgroup",
            "options": ["nosuid", "noexec", "nodev", "relatime", "ro"],
        },
        {
            "destination": "/witness",
            "type": "bind",
            "source": "/tmp/witness",
            "options": ["bind", "ro"],
        },
    ],
    "linux": {
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "namespaces": [
            {"type": kind} for kind in ("pid", "ipc", "uts", "cgroup", "network", "mount")
        ],
        "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
        "readonlyPaths": ["/proc/bus", "/proc/sys", "/proc/sysrq-trigger"],
    },
}


def specs() -> dict[str, Spec]:
    """By name; each is the base with one thing changed."""
    found: dict[str, Spec] = {"as it is": copy.deepcopy(BASE)}
    for source in (_processes, _mounts, _namespaces, _resources, _rest):
        for name, change in source():
            assert name not in found, name
            found[name] = _merged(BASE, change)
    return found


def _merged(base: Any, change: Any) -> Any:
    """The base with the change's members; a member that is None goes."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return copy.deepcopy(change)
    whole = {name: copy.deepcopy(value) for name, value in base.items() if name not in change}
    for name, value in change.items():
        if value is not None:
            whole[name] = _merged(base.get(name), value)
    return whole


def _process(**members: Any) -> Spec:
    return {"process": members}


def _processes() -> Iterator[tuple[str, Spec]]:
    yield "user 1000", _process(user={"uid": 1000, "gid": 1000})
    yield "more groups", _process(user={"uid": 1000, "gid": 100, "additionalGids": [5, 4000]})
    yield "umask", _process(user={"uid": 0, "gid": 0, "umask": 0o27})
    yield "another directory", _process(cwd="/tmp")
    yield "a directory to be made", _process(cwd="/made/for/it")
    yield "arguments as they are", _process(args=["/witness", "a b", "", "$HOME", "é", "\n"])
    yield "environment", _process(env=[PATH, "EMPTY=", "A=b=c", "LINE=a\nb", "É=ü", "HOME=/x"])
    yield "many variables", _process(env=[PATH, *(f"N{number}={number}" for number in range(300))])
    yield (
        "no capabilities",
        _process(capabilities={key: [] for key in ("bounding", "effective", "permitted")}),
    )
    yield "no member for capabilities", _process(capabilities=None)
    yield "all capabilities", _process(capabilities=EVERYTHING)
    ambient = dict.fromkeys(
        ("bounding", "effective", "permitted", "inheritable", "ambient"), _CAPABILITIES
    )
    yield "ambient capabilities", _process(capabilities=ambient, user={"uid": 7, "gid": 7})
    yield (
        "more limits",
        _process(
            rlimits=[
                {"type": "RLIMIT_NOFILE", "hard": 512, "soft": 256},
                {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
                {"type": "RLIMIT_NPROC", "hard": 300, "soft": 200},
                {"type": "RLIMIT_STACK", "hard": 8 << 20, "soft": 4 << 20},
            ]
        ),
    )
    yield "no limits", _process(rlimits=None)
    yield "privileges may grow", _process(noNewPrivileges=False)
    yield "likely to be killed", _process(oomScoreAdj=500)
    yield "no word on being killed", _process(oomScoreAdj=None)
    yield "nice scheduler", _process(scheduler={"policy": "SCHED_BATCH", "nice": 5})
    yield "nice io", _process(ioPriority={"class": "IOPRIO_CLASS_BE", "priority": 6})


def _mount(destination: str, kind: str, *options: str, source: str = "") -> Spec:
    more = {
        "destination": destination,
        "type": kind,
        "source": source or kind,
        "options": list(options),
    }
    return {"mounts": [*BASE["mounts"], more]}


def _without_sysfs() -> list[Spec]:
    return [each for each in BASE["mounts"] if not each["destination"].startswith("/sys")]


def _mounts() -> Iterator[tuple[str, Spec]]:
    yield "root for reading", {"root": {"path": "rootfs", "readonly": True}}
    yield "a tmpfs", _mount("/t", "tmpfs", "size=1m", "mode=0700", "noexec")
    yield "a tmpfs for reading", _mount("/t", "tmpfs", "ro")
    yield "a bind", _mount("/b", "bind", "rbind", "rw", source="/var")
    yield "a bind for reading", _mount("/b", "bind", "bind", "ro", source="/usr")
    yield "a bind all for reading", _mount("/b", "bind", "rbind", "rro", source="/var")
    yield "a bind of a file", _mount("/f", "bind", "bind", "ro", source="/etc/os-release")
    yield "a bind without programs", _mount("/b", "bind", "bind", "noexec", "nosuid", source="/var")
    yield "a slave", _mount("/b", "bind", "rbind", "rslave", source="/var")
    yield "message queues", _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev")
    yield "cgroups to write to", _mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev")
    yield "nothing of sysfs", {"mounts": _without_sysfs()}
    yield "nothing masked", {"linux": {"maskedPaths": [], "readonlyPaths": []}}
    yield "a directory masked", {"linux": {"maskedPaths": ["/bin/none", "/home", "/etc"]}}
    yield "a file for reading", {"linux": {"readonlyPaths": ["/etc/passwd"]}}
    yield "private root", {"linux": {"rootfsPropagation": "private"}}
    yield "slave root", {"linux": {"rootfsPropagation": "slave"}}


def _without(*kinds: str) -> Spec:
    kept = [each for each in BASE["linux"]["namespaces"] if each["type"] not in kinds]
    return {"linux": {"namespaces": kept}}


def _with(kind: str, **members: Any) -> Spec:
    namespaces = [*BASE["linux"]["namespaces"], {"type": kind}]
    return {"linux": {"namespaces": namespaces, **members}}


def _namespaces() -> Iterator[tuple[str, Spec]]:
    yield "the guest's ipc", _without("ipc")
    yield "the guest's name", {**_without("uts"), "hostname": None}
    yield (
        "the guest's network",
        {
            **_without("network"),
            "mounts": _without_sysfs(),
        },
    )
    yield "the guest's processes", _without("pid")
    yield "the guest's cgroups", _without("cgroup")
    ids = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    yield "users of its own", _with("user", uidMappings=ids, gidMappings=ids)
    yield (
        "its own time",
        _with("time", timeOffsets={"boottime": {"secs": 3600}, "monotonic": {"secs": 7200}}),
    )
    yield "a domain", {"domainname": "example.org"}
    yield "another host name", {"hostname": "larger-than-small"}


def _resource(**members: Any) -> Spec:
    return {"linux": {"resources": members}}


def _resources() -> Iterator[tuple[str, Spec]]:
    yield "memory", _resource(memory={"limit": 64 << 20, "reservation": 32 << 20})
    yield "memory and swap", _resource(memory={"limit": 64 << 20, "swap": 96 << 20})
    yield "cpu quota", _resource(cpu={"quota": 20000, "period": 50000})
    yield "cpu shares", _resource(cpu={"shares": 512})
    yield "cpu set", _resource(cpu={"cpus": "0", "mems": "0"})
    yield "pids", _resource(pids={"limit": 50})
    yield "no limit at all", _resource(pids={"limit": -1}, memory={"limit": -1, "swap": -1})
    yield "unified", _resource(unified={"memory.high": "50000000", "pids.max": "60"})
    yield "huge pages", _resource(hugepageLimits=[{"pageSize": "2MB", "limit": 4 << 20}])
    yield (
        "a device",
        {
            "linux": {
                "devices": [
                    {"path": "/dev/mine", "type": "c", "major": 1, "minor": 3, "fileMode": 0o640}
                ],
                "resources": {
                    "devices": [
                        {"allow": False, "access": "rwm"},
                        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "r"},
                    ]
                },
            }
        },
    )


def _rest() -> Iterator[tuple[str, Spec]]:
    deny = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [deny]}
    yield "no directories", {"linux": {"seccomp": profile}}
    numbered = {**profile, "syscalls": [{**deny, "errnoRet": 28}]}
    yield "no directories, for want of space", {"linux": {"seccomp": numbered}}
    yield "a network's sysctl", {"linux": {"sysctl": {"net.ipv4.ip_forward": "1"}}}
    yield "sysctls of ipc", {"linux": {"sysctl": {"kernel.msgmax": "4096"}}}
    yield "32 bits", {"linux": {"personality": {"domain": "LINUX32"}}}
    yield "annotated", {"annotations": {"org.example.key": "value"}}
    yield "an older version", {"ociVersion": "1.0.0"}
    yield "a newer version", {"ociVersion": "1.2.0"}


WITNESS = r"""#!/bin/sh
# What this process sees, one fact a line: SECTION, a tab, the fact. Programs are slow to start
# under emulation, so each says as much as it can.
say() { while IFS= read -r line; do printf '%s\t%s\n' "$1" "$line"; done; }
said() { printf '%s\t%s\n' "$1" "$2"; }
self=/proc/self
cd /proc/$$/fd && set -- * && said descriptors "$*"
cd "$OLDPWD"
say mount < $self/mountinfo
say limit < $self/limits
tr '\0\n' '\n~' < /proc/$$/environ | say environment
tr '\0\n' '\n~' < /proc/$$/cmdline | say argument
said directory "$PWD"
grep -Es '^(Umask|Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:|Cpus_allowed_list|Mems_allowed_list)' \
    $self/status | say status
grep -s '' $self/cgroup $self/oom_score_adj $self/uid_map $self/gid_map $self/timens_offsets \
    $self/coredump_filter $self/personality /proc/sys/kernel/domainname \
    /proc/sys/kernel/hostname /proc/sys/kernel/msgmax /proc/sys/kernel/msgmni \
    /proc/sys/kernel/shmmax /proc/sys/net/ipv4/ip_forward | say file
(cd /sys/fs/cgroup 2> /dev/null && grep -s '' cpu.max cpu.weight memory.max memory.low memory.high \
    memory.swap.max pids.max cpuset.cpus cpuset.mems hugetlb.2MB.max) | say group
stat -c '%A %u %g %t:%T %N' /dev/* | say device
stat -c '%A %u %g %N' / /tmp /proc /sys /dev/pts /dev/shm | say place
for path in /dev/mine /dev/null /dev/zero /dev/full; do
    (: < $path) 2> /dev/null && said open "$path r"
    (: > $path) 2> /dev/null && said open "$path w"
done
stat -c %N $self/ns/* | say namespace
read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ priority nice _ < $self/stat
said schedule "$priority $nice"
ionice | say io
mkdir /tmp/new 2>&1 | say refusal
for path in /proc/kcore /proc/keys /etc/passwd; do
    read -r _ 2> /dev/null < $path && said readable $path
done
ls -d /sys/firmware/* /home/* /etc/* 2> /dev/null | say masked
uname -m | say machine
"""

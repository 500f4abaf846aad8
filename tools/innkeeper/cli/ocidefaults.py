"""What the guest gives a container of which nothing is said, in OCI's words.

A member of a specification is the host's or the guest's, as a whole: who wants one
capability less, or one mount more, has to send all of them. The agent's own lists are in
agent/handlers/runtime (spec.py, spec_process.py); a test compares the two.
"""

from __future__ import annotations

from typing import Any

CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)

NAMESPACES = ("pid", "ipc", "uts", "mount", "cgroup")
"""Not the network: a container has the guest's."""

_ROWS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("/proc", "proc", "proc", ()),
    ("/dev", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
    (
        "/dev/pts",
        "devpts",
        "devpts",
        ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
    ),
    ("/dev/shm", "tmpfs", "shm", ("nosuid", "noexec", "nodev", "mode=1777", "size=65536k")),
    ("/dev/mqueue", "mqueue", "mqueue", ("nosuid", "noexec", "nodev")),
    ("/sys", "sysfs", "sysfs", ("nosuid", "noexec", "nodev", "ro")),
    ("/sys/fs/cgroup", "cgroup", "cgroup", ("nosuid", "noexec", "nodev", "relatime", "ro")),
)


def mounts(*, writable_kernel: bool = False, shm_size: int = 0) -> list[dict[str, Any]]:
    """Those of every container; `writable_kernel`: /sys may be written to; `shm_size`:
    bytes of /dev/shm, 0 for the usual 64 MiB."""
    found: list[dict[str, Any]] = []
    for destination, kind, source, options in _ROWS:
        kept = [word for word in options if not (writable_kernel and word == "ro")]
        if shm_size and destination == "/dev/shm":
            kept[-1] = f"size={shm_size}"
        found.append({"destination": destination, "type": kind, "source": source, "options": kept})
    return found

"""The guest's mounts, as values, and the links in /dev that programs expect."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NamedTuple

from agent.linux import mounting, pseudo
from agent.linux.mounting import MountFlag

_SAFE = MountFlag.NOSUID | MountFlag.NODEV
_STRICT = _SAFE | MountFlag.NOEXEC

_LOGS_SIZE = 64 << 20


class Mount(NamedTuple):
    """One file system. `data` are alternatives: the first that the kernel knows is taken."""

    fs_type: str
    target: str
    flags: MountFlag
    data: tuple[str, ...] = ("",)
    required: bool = True
    mode: int = 0o755


# First of all: without it there is no console to complain on.
DEVICES = Mount("devtmpfs", "/dev", MountFlag.NOSUID, ("mode=755",))

# These tell what is mounted already and how we are configured.
KERNEL = (
    Mount("proc", "/proc", _STRICT),
    Mount("sysfs", "/sys", _STRICT),
)


def others(*, run: str, spool_size: int) -> tuple[Mount, ...]:
    """What follows, in order; `run` is our own directory below /run."""
    return (
        # gid 5 is Debian's tty group; containers get a devpts of their own.
        Mount(
            "devpts",
            "/dev/pts",
            MountFlag.NOSUID | MountFlag.NOEXEC,
            ("gid=5,mode=620,ptmxmode=666",),
        ),
        Mount("tmpfs", "/dev/shm", _SAFE, ("mode=1777",)),
        Mount("mqueue", "/dev/mqueue", _STRICT, required=False),
        Mount("tmpfs", "/run", _SAFE, ("mode=755",)),
        Mount("tmpfs", "/tmp", _SAFE, ("mode=1777",)),
        Mount("tmpfs", "/var", _SAFE, ("mode=755",)),
        # Streams of containers fill it; being its own it leaves room for state in /run.
        Mount("tmpfs", f"{run}/spools", _STRICT, (f"mode=700,size={spool_size}",), mode=0o700),
        # What processes have written, to be read later; when it is full the oldest goes.
        Mount("tmpfs", f"{run}/logs", _STRICT, (f"mode=700,size={_LOGS_SIZE}",), mode=0o700),
        Mount(
            "cgroup2",
            "/sys/fs/cgroup",
            _STRICT | MountFlag.RELATIME,
            # memory_recursiveprot is younger (5.7) than nsdelegate.
            ("nsdelegate,memory_recursiveprot", "nsdelegate", ""),
        ),
        Mount("securityfs", "/sys/kernel/security", _STRICT, required=False),
        Mount("bpf", "/sys/fs/bpf", _STRICT, ("mode=700",), required=False),
    )


# What programs expect to find in the empty /var.
VAR_DIRECTORIES = (
    ("/var/tmp", 0o1777),
    ("/var/log", 0o755),
    ("/var/lib", 0o755),
    ("/var/cache", 0o755),
)
VAR_LINKS = (("/run", "/var/run"),)

DEV_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("/proc/kcore", "/dev/core"),
    # devtmpfs makes a node for ptmx; ours must be that of the devpts below.
    ("pts/ptmx", "/dev/ptmx"),
)


def mount_one(mount: Mount, *, root: str = "") -> None:
    """Mount it unless the same type is there already; `root` comes before its target.

    Raises OSError.
    """
    target = root + mount.target
    if mounted_type(target) == mount.fs_type:
        return
    os.makedirs(target, mount.mode, exist_ok=True)
    for number, data in enumerate(mount.data, start=1):
        try:
            mounting.mount(mount.fs_type, target, mount.fs_type, mount.flags, data)
        except OSError as error:
            if error.errno == errno.EBUSY:
                # The very same file system is there; without /proc we could not see it.
                return
            if error.errno != errno.EINVAL or number == len(mount.data):
                raise
        else:
            return


def mount_all(mounts: tuple[Mount, ...], *, root: str = "") -> list[str]:
    """Mount them in order; what was wrong with the optional ones, as texts.

    Raises OSError for a required one.
    """
    warnings: list[str] = []
    for mount in mounts:
        try:
            mount_one(mount, root=root)
        except OSError as error:
            if mount.required:
                raise
            warnings.append(f"{mount.fs_type} on {mount.target}: {error.strerror}")
    return warnings


def mounted_type(target: str) -> str | None:
    """The type of the topmost mount at `target`; None where there is none or no /proc yet."""
    text = pseudo.read_optional("/proc/self/mountinfo") or ""
    types = [
        entry.fs_type for entry in mounting.parse_mountinfo(text) if entry.mount_point == target
    ]
    return types[-1] if types else None


def make_links(links: tuple[tuple[str, str], ...], *, root: str = "") -> list[str]:
    """Make each (text, path) a symbolic link, in place of whatever is there; failures as texts."""
    warnings: list[str] = []
    for text, path in links:
        try:
            _replace_by_link(text, root + path)
        except OSError as error:
            warnings.append(f"link {path}: {error}")
    return warnings


def make_directories(directories: tuple[tuple[str, int], ...], *, root: str = "") -> None:
    """Make each (path, mode) where it is missing. Raises OSError."""
    for path, mode in directories:
        os.makedirs(root + path, exist_ok=True)
        os.chmod(root + path, mode)


def _replace_by_link(text: str, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.path.islink(path) and os.readlink(path) == text:
            return
        os.unlink(path)
    os.symlink(text, path)

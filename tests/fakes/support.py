"""What Debian 13's crun and kernel can do, as far as tests of specifications need it."""

from __future__ import annotations

from agent.handlers.runtime.spec.support import Support

FEATURES = {
    "ociVersionMin": "1.0.0",
    "ociVersionMax": "1.1.0+dev",
    "mountOptions": [
        *("rw", "rrw", "ro", "rro", "rdirsync", "rdiratime", "rnodev", "rnorelatime"),
        *("nodiratime", "rnodiratime", "diratime", "rnoatime", "rnomand", "ratime", "rmand"),
        *("rprivate", "mand", "idmap", "noatime", "nomand", "dirsync", "rnosuid", "atime"),
        *("rnoexec", "nodev", "rbind", "norelatime", "bind", "rnostrictatime", "strictatime"),
        *("rstrictatime", "defaults", "rsuid", "remount", "suid", "nostrictatime"),
        *("rrelatime", "nosuid", "noexec", "rslave", "private", "rsync", "relatime", "dev"),
        *("rdev", "tmpcopyup", "unbindable", "runbindable", "async", "rasync", "sync"),
        *("rexec", "shared", "rshared", "copy-symlink", "slave", "exec"),
    ],
    "linux": {
        "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "user", "uts"],
        "capabilities": sorted(Support().capabilities),
        "seccomp": {"enabled": True, "actions": sorted(Support().seccomp)},
        "apparmor": {"enabled": True},
        "selinux": {"enabled": True},
        "intelRdt": {"enabled": True},
    },
}
"""The parts of `crun features` (1.21) that the agent reads."""

SUPPORT = Support(mount_options=frozenset(map(str, FEATURES["mountOptions"])))
"""Of a guest without AppArmor, SELinux and resctrl."""


async def support() -> Support:
    """For `RuntimeContext.support`."""
    return SUPPORT

"""PID 1 in the guest: its boot, step by step, and its services."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING

from agent.linux import cmdline, power, pseudo
from agent.linux.loopback import raise_loopback
from agent.pid1 import cgroups, entropy, hostname, leaving, modules, mounts
from agent.pid1.layout import Layout, PowerAction, Role, ServiceSpec, Step
from agent.pid1.services import read_specs

if TYPE_CHECKING:
    from agent.pid1.console import Console, Voice
    from agent.pid1.modules import Loading

_CODE = "/usr/lib/innkeeper"
_RUN = "/run/innkeeper"
_KEPT = (("state", 0o700), ("storages", 0o700), ("bundles", 0o711))
_CGROUP = "/sys/fs/cgroup"
_MODPROBE = "/usr/sbin/modprobe"
_BUSYBOX = "/usr/bin/busybox"
_LAUNCH = ("/usr/bin/python3", "-IS", f"{_CODE}/run")
# Read-only first: a process that hangs elsewhere keeps its own view of the mounts,
# and with it the file system, which would not be clean otherwise.
_UNMOUNT = f'{_BUSYBOX} mount -o remount,ro "$1" 2>/dev/null; exec {_BUSYBOX} umount -r "$1"'
_SPOOL_SIZE = 64 << 20
# For all of them; under emulation one with firmware takes its time.
_MODULES_WITHIN = 30.0
# The store's descriptors, and room for all else; children inherit the soft limit.
_DESCRIPTORS = (65536, 524288)


# Who is root only in a user namespace goes through to its own root, and sees nothing else.
_OWN_DIRECTORIES = ((_RUN, 0o711), *((f"{_RUN}/{name}", mode) for name, mode in _KEPT))


class GuestBoot:
    """The steps of the boot, in order; what one finds out and a later one needs is kept here."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._words: list[tuple[str, str | None]] = []
        self._cold = modules.ColdDevices("/sys")
        self._loading: Loading | None = None
        self._credited = 0

    def steps(self) -> tuple[Step, ...]:
        return (
            Step("console", self._open_console, required=False),
            Step("mounts_done", self._mount),
            Step("entropy", self._credit_entropy, required=False),
            Step("modules_started", self._start_modules, required=False),
            Step("descriptors", _raise_descriptor_limit, required=False),
            Step("ctrl_alt_del", _take_ctrl_alt_del, required=False),
            Step("loopback", _raise_loopback, required=False),
            Step("host_name", self._set_host_name, required=False),
            Step("cgroups_done", _prepare_cgroups),
            Step("modules_done", self._finish_modules, required=False),
        )

    def _open_console(self, _say: Voice) -> None:
        try:
            mounts.mount_one(mounts.DEVICES)
        finally:
            # An initrd may have left a /dev that will do.
            self._console.open("/dev")

    def _mount(self, say: Voice) -> None:
        mounts.mount_all(mounts.KERNEL)
        self._words = cmdline.parse(pseudo.read_text("/proc/cmdline"))
        _warn(say, mounts.mount_all(mounts.others(run=_RUN, spool_size=self._spool_size(say))))
        mounts.make_directories((*_OWN_DIRECTORIES, *mounts.VAR_DIRECTORIES))
        _warn(say, mounts.make_links((*mounts.DEV_LINKS, *mounts.VAR_LINKS)))

    def _credit_entropy(self, _say: Voice) -> None:
        self._credited = entropy.credit("/dev")

    def _start_modules(self, say: Voice) -> None:
        listed = pseudo.read_optional(f"{_CODE}/modules") or ""
        added = cmdline.last_value(self._words, "innkeeper.modules") or ""
        names, strange = modules.wanted(listed, added)
        _warn(say, [f"{word!r} is not the name of a module" for word in strange])
        self._load([*names, *self._cold.new_aliases()])

    def _load(self, names: list[str]) -> None:
        self._loading = modules.start(_MODPROBE, names) if names else None

    def _set_host_name(self, _say: Voice) -> None:
        chosen = cmdline.last_value(self._words, "innkeeper.hostname")
        hostname.set_host_name(hostname.choose(chosen, "/etc/hostname"))

    def _finish_modules(self, say: Voice) -> None:
        deadline = time.monotonic() + _MODULES_WITHIN
        while self._loading is not None:
            _warn(say, modules.finish(self._loading, deadline - time.monotonic()))
            # A driver may have brought devices with it, as a controller does its disks.
            self._load(self._cold.new_aliases() if time.monotonic() < deadline else [])
        if not self._credited:
            # The driver of virtio-rng may have been among them.
            entropy.credit("/dev")

    def _spool_size(self, say: Voice) -> int:
        text = cmdline.last_value(self._words, "agent.spool_size")
        try:
            return cmdline.parse_size(text) if text else _SPOOL_SIZE
        except ValueError as error:
            say(f"warning: agent.spool_size: {error}; the default is used")
            return _SPOOL_SIZE


def _raise_descriptor_limit(_say: Voice) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, _DESCRIPTORS)


def _take_ctrl_alt_del(_say: Voice) -> None:
    power.ctrl_alt_del_to_init()


def _raise_loopback(_say: Voice) -> None:
    raise_loopback()


def _prepare_cgroups(say: Voice) -> None:
    _warn(say, cgroups.prepare(_CGROUP))


def layout(console: Console) -> Layout:
    """The guest as PID 1 sees it."""
    return Layout(
        run=_RUN,
        proc="/proc",
        cgroup=_CGROUP,
        steps=GuestBoot(console).steps(),
        services=_services,
        sync=(_BUSYBOX, "sync", "-f"),
        unmount=(_BUSYBOX, "sh", "-c", _UNMOUNT, "unmount"),
        detach=(_BUSYBOX, "umount", "-l"),
        leaving=lambda: leaving.plan(pseudo.read_text("/proc/self/mountinfo")),
        end=_end,
    )


def _services(say: Voice) -> tuple[ServiceSpec, ...]:
    extra, warnings = read_specs(f"{_CODE}/services.d")
    _warn(say, warnings)
    return (
        ServiceSpec("relay", (*_LAUNCH, "agent.relay"), role=Role.RELAY),
        ServiceSpec(
            "agent",
            (*_LAUNCH, "--cgroup", "/agent", "agent"),
            role=Role.AGENT,
            cgroup="/agent",
            status=f"{_RUN}/agent.status",
        ),
        *extra,
    )


def _end(action: PowerAction) -> None:
    if action is PowerAction.REBOOT:
        power.restart()
    power.power_off()


def _warn(say: Voice, warnings: list[str] | tuple[str, ...]) -> None:
    for warning in warnings:
        say(f"warning: {warning}")

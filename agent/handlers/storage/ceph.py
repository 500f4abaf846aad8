"""A directory of a CephFS, mounted without mount.ceph.

https://docs.kernel.org/filesystems/ceph.html. The monitors are part of the source, as
addresses (`ADDRESS,ADDRESS:/PATH`): the form that needs no id of the cluster, and which every
kernel takes. The kernel asks one monitor after the other by itself.
"""

from __future__ import annotations

import errno
import logging
import re
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Reason, invalid
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import CephSource
from agent.handlers.storage import doubled, resolving
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.handlers.storage.job import Job

log = logging.getLogger(__name__)

MONITOR_LIMIT = 31
"""CEPH_MAX_MON of include/linux/ceph/ceph_fs.h."""

_FIELD = "source.ceph"
_SECRETS = ("secret", "secretfile", "key")
_NAME = ("name",)
_FILE_SYSTEM = ("mds_namespace", "fs")
# The two generations of the protocol have a port each; the kernel's default is the first.
_PORT, _PORT_2 = 6789, 3300
_MODE = "ms_mode"
_MONITOR = re.compile(r"(?P<host>\[[^]]+\]|[^:]+)(:(?P<port>[1-9][0-9]{0,4}))?")


class CephStorage(StorageClass[CephSource]):
    """Some of the monitors may be unknown to the resolver, but not all."""

    name = "ceph"
    source = CephSource

    async def prepare(self, job: Job[CephSource]) -> MountPlan:
        source, request = job.source, job.request
        doubled.refuse_secrets(request.options, _SECRETS, f"{_FIELD}.secret")
        if not source.path.startswith("/"):
            raise invalid(f"{_FIELD}.path: {source.path!r} is not absolute", field=f"{_FIELD}.path")
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux
        )
        doubled.refuse_both(words.options, _NAME, source.user, f"{_FIELD}.user")
        doubled.refuse_both(
            words.options, _FILE_SYSTEM, source.file_system, f"{_FIELD}.file_system"
        )
        monitors = await _monitors(job, words.options)
        options = (*_login(source, words.options), *words.options, *_patience(job, words.options))
        return MountPlan(
            call=FsMount(
                fs_type="ceph",
                source=f"{','.join(monitors)}:{source.path}",
                options=options,
                flags=words.flags,
            ),
            hints=_HINTS,
        )


async def _monitors(job: Job[CephSource], options: Sequence[MountOption]) -> tuple[str, ...]:
    """ADDRESS:PORT of all monitors that can be resolved. Raises NAME_NOT_RESOLVED."""
    mode = doubled.named(options, (_MODE,))
    usual = _PORT if mode in (None, "legacy") else _PORT_2
    places = [_place(monitor) for monitor in job.source.monitors]
    found: dict[str, None] = {}
    refusals: list[AgentError] = []
    for host, port in places:
        try:
            addresses = await resolving.addresses_of(job.tools.files, host, job.deadline)
        except AgentError as error:
            if error.reason is not Reason.NAME_NOT_RESOLVED:
                raise
            log.warning("monitor %s left out: %s", host, error)
            refusals.append(error)
            continue
        found.update(dict.fromkeys(f"{resolving.bracketed(a)}:{port or usual}" for a in addresses))
    if not found:
        raise refusals[0]
    return tuple(found)[:MONITOR_LIMIT]


def _place(monitor: str) -> tuple[str, int]:
    """Host and port, 0 for none; BAD_FIELD."""
    if resolving.is_address(monitor):
        return monitor, 0
    match = _MONITOR.fullmatch(monitor)
    port = int(match["port"] or 0) if match else 0
    if match is None or port >= 1 << 16:
        raise invalid(
            f"{_FIELD}.monitors: {monitor!r} is not HOST or HOST:PORT, nor an address",
            field=f"{_FIELD}.monitors",
        )
    return resolving.host_of(match["host"], f"{_FIELD}.monitors"), port


def _login(source: CephSource, options: Sequence[MountOption]) -> tuple[MountOption, ...]:
    told = []
    if source.user and doubled.named(options, _NAME) is None:
        told.append(MountOption(key="name", value=source.user))
    if source.password:
        told.append(MountOption(key="secret", value=source.password, secret=True))
    if source.file_system and doubled.named(options, _FILE_SYSTEM) is None:
        told.append(MountOption(key="mds_namespace", value=source.file_system))
    return tuple(told)


def _patience(job: Job[CephSource], options: Sequence[MountOption]) -> tuple[MountOption, ...]:
    """The kernel gives up when the request does, not after its usual minute."""
    if doubled.named(options, ("mount_timeout",)) is not None:
        return ()
    return (MountOption(key="mount_timeout", value=str(max(1, int(job.deadline.left())))),)


_SILENT = "no monitor or no metadata server has answered: see source.ceph.monitors and the network"
_HINTS = {
    errno.EACCES: "the cluster refuses this user or secret, or the path to them",
    errno.ENOENT: "the cluster has no such file system or path",
    errno.ENODEV: "this kernel has no CephFS and no module of that name",
    errno.EHOSTUNREACH: _SILENT,
    errno.EIO: _SILENT,
    errno.ETIMEDOUT: _SILENT,
    errno.EINVAL: "an option is not one of CephFS, or the secret is not one (base64)",
}

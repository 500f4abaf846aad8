"""An export of an NFS server, mounted without mount.nfs.

fs/nfs/fs_context.c of Linux: the kernel wants the address (`addr=`) and the version, which
fsconfig(2) has no default for; a version 4 mount finds its own address for callbacks.
nfs(5) has all options. Mounts are hard, as everywhere: a program waits for its server. What
the agent does about such a mount is bounded all the same, and Detach goes lazily.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import NfsSource
from agent.handlers.storage import doubled, resolving
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.handlers.storage.job import Job

VERSIONS = ("3", "4", "4.0", "4.1", "4.2")
"""Those that Linux 6.12 may have; 2 is gone from most kernels."""

TRIED = ("4.2", "4.1", "4.0", "3")
"""In this order, as nfs(5) has it, where nobody asks for one."""

_FIELD = "source.nfs"
_PORT = 2049
_PORTMAPPER = 111
_VERSION_KEYS = ("vers", "nfsvers")
_VERSION_WORDS = tuple(f"v{version}" for version in VERSIONS)
_MINOR = "minorversion"
_ALL_VERSION_KEYS = (*_VERSION_KEYS, *_VERSION_WORDS, _MINOR)
_LOCK_WORDS = ("lock", "nolock")
# Nothing listens by TCP for these.
_OTHER_TRANSPORTS = ("udp", "udp6", "rdma", "rdma6")


class NfsStorage(StorageClass[NfsSource]):
    """Without a version the newest that both sides know, as mount.nfs has it.

    Version 3 is mounted with `nolock` unless `lock` is asked for: the guest runs no statd.
    """

    name = "nfs"
    source = NfsSource

    async def prepare(self, job: Job[NfsSource]) -> MountPlan:
        source, request = job.source, job.request
        host = resolving.host_of(source.server, f"{_FIELD}.server")
        if not source.path.startswith("/"):
            raise invalid(f"{_FIELD}.path: {source.path!r} is not absolute", field=f"{_FIELD}.path")
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux
        )
        version = _version(source.version, words.options)
        told = doubled.without(words.options, _ALL_VERSION_KEYS)
        address = await _address(job, host, version, told)
        calls = [
            FsMount(
                fs_type="nfs" if each == "3" else "nfs4",
                source=f"{resolving.bracketed(host)}:{source.path}",
                options=(*_versioned(each, told), *told, *address),
                flags=words.flags,
            )
            for each in ((version,) if version else TRIED)
        ]
        return MountPlan(call=calls[0], others=tuple(calls[1:]), hints=_hints(version, source))


def _version(asked: str, options: Sequence[MountOption]) -> str | None:
    """The version that field or options say, None where they leave it open; BAD_FIELD."""
    if asked and asked not in VERSIONS:
        raise invalid(
            f"{_FIELD}.version: {asked!r} is not one of {', '.join(VERSIONS)}",
            field=f"{_FIELD}.version",
        )
    told = _told_version(options)
    if asked and told and told != asked:
        raise invalid(
            f"{_FIELD}.version says {asked}, the options say {told}",
            hint="say it once",
            field=f"{_FIELD}.version",
        )
    return asked or told


def _told_version(options: Sequence[MountOption]) -> str | None:
    words = [each.key.removeprefix("v") for each in options if each.key in _VERSION_WORDS]
    told = doubled.named(options, _VERSION_KEYS) or (words[-1] if words else None)
    minor = doubled.named(options, (_MINOR,))
    if minor is not None:
        # The old way to say it: vers=4,minorversion=1.
        told = f"{(told or '4').partition('.')[0]}.{minor}"
    if told is not None and told not in VERSIONS:
        raise invalid(
            f"the options ask for NFS {told!r}: known are {', '.join(VERSIONS)}", field="options"
        )
    return told


def _versioned(version: str, options: Sequence[MountOption]) -> tuple[MountOption, ...]:
    told = MountOption(key="vers", value=version)
    if version != "3" or any(option.key in _LOCK_WORDS for option in options):
        return (told,)
    return (told, MountOption(key="nolock"))


async def _address(
    job: Job[NfsSource], host: str, version: str | None, options: Sequence[MountOption]
) -> tuple[MountOption, ...]:
    """The option `addr=`; none where somebody has given it."""
    if doubled.named(options, ("addr",)) is not None:
        return ()
    found = await resolving.addresses_of(job.tools.files, host, job.deadline)
    proto = doubled.named(options, ("proto",))
    # `proto=tcp` is IPv4 for the kernel, it refuses the other family then.
    family = None if proto is None else 6 if proto.endswith("6") else 4
    fitting = resolving.of_family(found, family)
    if not fitting:
        raise resolving.unresolved(host, f"{', '.join(found)} does not fit proto={proto}")
    chosen = fitting[0]
    if _by_tcp(options, proto):
        service = resolving.Service(what=f"NFS server {host}", port=_port(version, options))
        chosen = await service.first(fitting, job.deadline)
    return (MountOption(key="addr", value=chosen),)


def _by_tcp(options: Sequence[MountOption], proto: str | None) -> bool:
    others = doubled.named(options, _OTHER_TRANSPORTS)
    return others is None and proto not in _OTHER_TRANSPORTS


def _port(version: str | None, options: Sequence[MountOption]) -> int:
    """Where the kernel will ask first: without `port=`, version 3 asks the portmapper."""
    port = doubled.named(options, ("port",))
    if port and port.isdecimal() and 0 < int(port) < 1 << 16:
        return int(port)
    return _PORTMAPPER if version == "3" else _PORT


def _hints(version: str | None, source: NfsSource) -> dict[int, str]:
    told = f"NFS {version}: set {_FIELD}.version" if version else f"any of NFS {', '.join(TRIED)}"
    return {
        errno.EPROTONOSUPPORT: f"the server does not speak {told}",
        errno.ENODEV: "this kernel has no NFS and no module of that name",
        errno.EACCES: f"does the server export {source.path} to this guest's address?",
        errno.EPERM: f"does the server export {source.path} to this guest's address?",
        errno.ENOENT: f"the server has no {source.path}",
        errno.EINVAL: "an option is not one of NFS, or its value is not possible",
    }

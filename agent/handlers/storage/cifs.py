"""A share of an SMB server, mounted without mount.cifs, which has a manual of all options.

fs/smb/client/fs_context.c of Linux: the kernel wants the address (`ip=`) and either a user
or `sec=none`. The password is an option that nobody shows, and is kept nowhere.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import CifsSource
from agent.handlers.storage import doubled, resolving
from agent.handlers.storage.base import MountPlan, StorageClass
from agent.handlers.storage.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.handlers.storage.job import Job

_FIELD = "source.cifs"
_PORT = 445
# Files of credentials are read by mount.cifs, which is not here: the kernel ignores them.
_SECRETS = ("pass", "password", "pass2", "password2", "cred", "credentials")
_ADDRESS = ("ip", "addr")
_USER = ("user", "username")
_DOMAIN = ("domain", "dom")
_VERSION = ("vers", "ver")


class CifsStorage(StorageClass[CifsSource]):
    """Without a user the share is mounted as a guest."""

    name = "cifs"
    source = CifsSource

    async def prepare(self, job: Job[CifsSource]) -> MountPlan:
        source, request = job.source, job.request
        doubled.refuse_secrets(request.options, _SECRETS, f"{_FIELD}.password")
        host = resolving.host_of(source.server, f"{_FIELD}.server")
        words = parse_options(
            request.options, read_only=request.read_only, selinux=job.tools.selinux
        )
        _check(source, words.options)
        address = await _address(job, host, words.options)
        return MountPlan(
            call=FsMount(
                fs_type="cifs",
                source=f"//{host}/{_share(source.share)}",
                options=(*_login(source, words.options), *words.options, *address),
                flags=words.flags,
            ),
            hints=_hints(source),
        )


def _check(source: CifsSource, options: Sequence[MountOption]) -> None:
    doubled.refuse_both(options, _USER, source.user, f"{_FIELD}.user")
    doubled.refuse_both(options, _DOMAIN, source.domain, f"{_FIELD}.domain")
    doubled.refuse_both(options, _VERSION, source.version, f"{_FIELD}.version")
    if source.password and not source.user and not doubled.named(options, _USER):
        raise invalid(f"{_FIELD}.password is of no use without a user", field=f"{_FIELD}.user")


def _share(share: str) -> str:
    """The share, maybe with a directory in it; BAD_FIELD where UNC would read another one."""
    if not share or share.startswith("/") or "\\" in share:
        raise invalid(
            f"{_FIELD}.share: {share!r} is not a share's name, or NAME/DIRECTORY",
            field=f"{_FIELD}.share",
        )
    return share


def _login(source: CifsSource, options: Sequence[MountOption]) -> tuple[MountOption, ...]:
    """What the source's fields say; an option that says it as well says the same."""
    fields = {"username": source.user, "domain": source.domain, "vers": source.version}
    keys = {"username": _USER, "domain": _DOMAIN, "vers": _VERSION}
    told = [
        MountOption(key=key, value=value)
        for key, value in fields.items()
        if value and doubled.named(options, keys[key]) is None
    ]
    if source.password:
        told.append(MountOption(key="password", value=source.password, secret=True))
    if doubled.named(options, ("sec",)) is None and not (
        source.user or doubled.named(options, _USER)
    ):
        told.append(MountOption(key="sec", value="none"))
    return tuple(told)


async def _address(
    job: Job[CifsSource], host: str, options: Sequence[MountOption]
) -> tuple[MountOption, ...]:
    """The option `ip=`; none where somebody has given it."""
    if doubled.named(options, _ADDRESS) is not None:
        return ()
    found = await resolving.addresses_of(job.tools.files, host, job.deadline)
    chosen = found[0]
    if doubled.named(options, ("rdma",)) is None:
        service = resolving.Service(what=f"SMB server {host}", port=_port(options))
        chosen = await service.first(found, job.deadline)
    return (MountOption(key="ip", value=chosen),)


def _port(options: Sequence[MountOption]) -> int:
    port = doubled.named(options, ("port",))
    return int(port) if port and port.isdecimal() and 0 < int(port) < 1 << 16 else _PORT


def _hints(source: CifsSource) -> dict[int, str]:
    return {
        errno.EACCES: "the server refuses this user, password or domain",
        errno.EKEYREJECTED: "the password has expired, or the server refuses it",
        errno.ENOENT: f"the server has no share {source.share}, or no such directory in it",
        errno.ENODEV: "this kernel has no SMB client and no module of that name",
        errno.EHOSTDOWN: "the server does not speak a version that this client may use: "
        f"set {_FIELD}.version",
        errno.EOPNOTSUPP: f"the server does not speak this version: set {_FIELD}.version",
        errno.EINVAL: "an option is not one of SMB, or its value is not possible",
    }

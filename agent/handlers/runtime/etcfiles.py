"""resolv.conf, hosts and hostname of the sandbox in its containers.

A container that mounts nothing of its own there gets a copy of each, once the sandbox has
them at all. Copies, because containers' entry points write to /etc/hosts; on a small tmpfs
for each, because one that writes without end must fill nothing else. What a container
wrote is replaced with the next change of the sandbox's.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from agent.core.errors import AgentError, Reason, kernel_refused
from agent.handlers.network import inplace
from agent.handlers.runtime.targets import make_targets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.network import DnsState
    from agent.handlers.runtime.context import RuntimeContext
    from agent.handlers.runtime.table import Container

log = logging.getLogger(__name__)

_LEAST_ROOM: Final = 256 << 10
_TIMES_ROOM: Final = 4
"""Room for the container's own words, and for what the sandbox's may become."""

_LARGEST_KEPT: Final = 1 << 20
"""Bytes of a container's own text that are read; a longer one (it may be one big hole) goes
before it is written over."""

ETC_FILES: Final = ("resolv.conf", "hosts", "hostname")

_ROOT: Final = (0, 0)

_OPTIONS: Final = ("bind", "rprivate", "nosuid", "nodev", "noexec")


async def add_etc_files(
    context: RuntimeContext,
    container: Container,
    config: dict[str, Any],
    root: str,
    deadline: Deadline,
) -> None:
    """Make the targets of all mounts, with those of the files where they can be made.

    A root that is read-only and has no such file does without, with a line in the log.
    Raises what `make_targets` does of the container's own mounts, and NO_SPACE,
    MOUNT_REFUSED, KERNEL_REFUSED.
    """
    files, dns = context.files, context.network.dns
    names = _wanted(config) if dns is not None else ()
    if dns is None or not names:
        await make_targets(files, root, config, deadline)
        return
    container.save(replace(container.record, etc=names))
    texts = _texts(dns)
    await container.bundle.mount_etc(files, _room(texts), deadline)
    mounts = [_mount(container.bundle.etc / name) for name in names]
    _make(container, texts, _root_user(config))
    whole = {**config, "mounts": [*config["mounts"], *mounts]}
    try:
        await make_targets(files, root, whole, deadline)
    except AgentError as error:
        if error.reason is Reason.OPERATION_TIMED_OUT:
            raise
        await make_targets(files, root, config, deadline)
        mounts = [each for each in mounts if await _can_be(context, config, each, root, deadline)]
    config["mounts"] += mounts


def refresh(container: Container, dns: DnsState | None) -> None:
    """Make the copies say what the sandbox's files say. Raises AgentError, naming the container.

    The stamp is beside them: an agent that dies in between leaves it as it was.
    """
    if dns is None or not container.record.etc:
        return
    texts = _texts(dns)
    stamp = _stamp(texts)
    if container.bundle.etc_stamp == stamp:
        return
    paths = {container.bundle.etc / name: texts[name] for name in container.record.etc}
    try:
        try:
            _write(paths)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            for path in paths:
                os.truncate(path, 0)
            _write(paths)
    except OSError as error:
        raise kernel_refused(
            error, doing=f"change the DNS files of container {container.id}"
        ) from error
    container.bundle.etc_stamp = stamp


def _wanted(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Those at whose place the container mounts nothing, nor above it."""
    places = {posixpath.normpath(mount["destination"]) for mount in config["mounts"]}
    taken = "/etc" in places
    return () if taken else tuple(name for name in ETC_FILES if f"/etc/{name}" not in places)


async def _can_be(
    context: RuntimeContext,
    config: dict[str, Any],
    mount: dict[str, Any],
    root: str,
    deadline: Deadline,
) -> bool:
    with_it = {**config, "mounts": [*config["mounts"], mount]}
    try:
        await make_targets(context.files, root, with_it, deadline)
    except AgentError as error:
        log.warning("%s is left as the image has it: %s", mount["destination"], error.message)
        return False
    return True


def _mount(source: Path) -> dict[str, Any]:
    return {
        "destination": f"/etc/{source.name}",
        "type": "bind",
        "source": str(source),
        "options": list(_OPTIONS),
    }


def _texts(dns: DnsState) -> dict[str, str]:
    return {
        "resolv.conf": dns.resolv_conf,
        "hosts": dns.hosts,
        "hostname": f"{dns.hostname}\n",
    }


def _room(texts: Mapping[str, str]) -> int:
    return _LEAST_ROOM + _TIMES_ROOM * sum(len(text.encode()) for text in texts.values())


def _stamp(texts: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()


def _make(container: Container, texts: Mapping[str, str], owner: tuple[int, int]) -> None:
    try:
        for name in container.record.etc:
            path = container.bundle.etc / name
            inplace.rewrite(path, texts[name])
            if owner != _ROOT:
                os.chown(path, *owner, follow_symlinks=False)
    except OSError as error:
        raise kernel_refused(
            error, doing=f"make the DNS files of container {container.id}"
        ) from error
    container.bundle.etc_stamp = _stamp(texts)


def _write(paths: Mapping[Path, str]) -> None:
    for path, text in paths.items():
        # A lease of the container's would make the opening wait (fcntl(2), F_SETLEASE);
        # with the file open for writing it can get no new one.
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size > _LARGEST_KEPT:
                os.ftruncate(fd, 0)
            inplace.rewrite(path, text)
        finally:
            os.close(fd)


def _root_user(config: Mapping[str, Any]) -> tuple[int, int]:
    """Who is root in the container, by numbers of the guest."""
    linux = config.get("linux") or {}
    return _mapped(linux.get("uidMappings")), _mapped(linux.get("gidMappings"))


def _mapped(mappings: Any) -> int:
    """Where number 0 of a user namespace is; 0 without one."""
    for each in mappings or ():
        if each.get("containerID") == 0 and each.get("size"):
            return int(each.get("hostID") or 0)
    return 0

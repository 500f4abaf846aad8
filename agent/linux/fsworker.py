"""A process that makes file-system calls for the agent, and can be given up.

A call on a served file system (virtiofs, NFS, a disk whose host side hangs) may
never come back, and a thread in such a call could not be ended. So the agent
keeps this small process: it reads one request at a time from the SOCK_SEQPACKET
socket on descriptor 0, answers, and ends when the agent closes its side. A call
that is late costs this process and nothing else.

    request  {"call": "mount", "arguments": {...}}
    answer   {"ok": RESULT} | {"errno": N, "call": NAME, "object": PATH}

A mount that was refused adds "text" (which call said no) and "log" (why).
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.linux import mounting, mountmaking, mountplaces, parcels, pidfd, pseudo
from agent.linux.libc import failure
from agent.linux.mountcalls import FileRefusal, Location, from_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.linux.fdpass import Message

# struct ucred of unix(7): pid, uid, gid.
_UCRED = struct.Struct("3i")

# Python takes the kernel's unsigned 64 bits for signed ones.
_ALL_ONES = (1 << 64) - 1


def main() -> None:
    with socket.socket(fileno=0) as channel:
        if _ends_with_agent(channel):
            serve(channel)


def _ends_with_agent(channel: socket.socket) -> bool:
    """Otherwise a call of an agent that died could take effect after the next one has swept.

    False when it is dead already, which sends no signal any more: it has made the socket.
    """
    pidfd.set_parent_death_signal(signal.SIGKILL)
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    agent, _, _ = _UCRED.unpack(credentials)
    return os.getppid() == int(agent)


def serve(channel: socket.socket) -> None:
    """Answer requests until the other side closes."""
    while True:
        try:
            request = parcels.receive(channel)
        except EOFError:
            return
        parcels.send(channel, answer(request))


def answer(request: Message) -> Message:
    """Make the call that a request asks for."""
    name, arguments = request["call"], request["arguments"]
    try:
        return {"ok": _function(name)(**arguments)}
    except FileRefusal as refusal:
        return {
            "errno": refusal.errno or errno.EIO,
            "call": name,
            "object": str(refusal.filename),
            "text": refusal.strerror,
            "log": refusal.log,
        }
    except OSError as error:
        obj = arguments.get("target") or arguments.get("path") or ""
        return {
            "errno": error.errno or errno.EIO,
            "call": name,
            "object": str(error.filename or obj),
        }


def mount(*, plan: dict[str, Any], target: str) -> None:
    mountmaking.make(from_message(plan), target)


def unmount(*, target: str, flags: int) -> None:
    mounting.unmount(target, mounting.UnmountFlag(flags))


def statfs(*, path: str) -> dict[str, int]:
    """Sizes of the file system that holds `path`, in bytes and in files."""
    found = os.statvfs(path)
    files, free = found.f_files & _ALL_ONES, found.f_ffree & _ALL_ONES
    if files == _ALL_ONES:
        # "No limit" (fs/erofs/super.c): those that are there are all.
        files, free = files - free, 0
    return {
        "size": found.f_blocks * found.f_frsize,
        "free": found.f_bfree * found.f_frsize,
        "available": found.f_bavail * found.f_frsize,
        "files": files,
        "files_free": free,
    }


def mkdir(*, path: str, mode: int) -> None:
    Path(path).mkdir(mode)


def rmdir(*, path: str) -> None:
    Path(path).rmdir()


def is_mount(*, path: str) -> bool:
    return os.path.ismount(path)


def is_directory(*, location: dict[str, Any]) -> bool:
    return mountplaces.is_directory(Location(**location))


def check_directory(*, path: str) -> None:
    """Raises ENOTDIR, or ELOOP for a symbolic link on the way: in a storage a container
    may have made it, and it would lead to any directory of the guest."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.path.realpath(path) != path:
            raise failure(errno.ELOOP, "check_directory", path)
    finally:
        os.close(fd)


def check_empty_directory(*, path: str) -> None:
    """Raises ENOTDIR, ELOOP (a symbolic link on the way) or ENOTEMPTY."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.path.realpath(path) != path:
            raise failure(errno.ELOOP, "check_empty_directory", path)
        if os.listdir(fd):  # noqa: PTH208 - of a descriptor
            raise failure(errno.ENOTEMPTY, "readdir", path)
    finally:
        os.close(fd)


def check_regular_file(*, path: str) -> None:
    """Raises ELOOP (a symbolic link on the way or at the end), or EINVAL for no regular file."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.path.realpath(path) != path:
            raise failure(errno.ELOOP, "check_regular_file", path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise failure(errno.EINVAL, "check_regular_file", path)
    finally:
        os.close(fd)


def read_text(*, path: str) -> str:
    """A pseudo file whose text the driver asks its hardware for."""
    return pseudo.read_text(path)


def write_text(*, path: str, text: str) -> None:
    """A pseudo file that makes the kernel work before write(2) returns."""
    pseudo.write(path, text)


CALLS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        mount,
        unmount,
        statfs,
        mkdir,
        rmdir,
        is_mount,
        is_directory,
        check_directory,
        check_empty_directory,
        check_regular_file,
        read_text,
        write_text,
    )
}

# Loaded at the first call: a worker is started for each of several calls at once, and most
# never make these.
_MODULES: dict[str, tuple[str, ...]] = {
    "accounts": ("find_account", "find_home"),
    "devicemapper": (
        "create_mapping",
        "load_mapping",
        "resume_mapping",
        "mapping_status",
        "remove_mapping",
    ),
    "fsctl": ("trim", "freeze", "thaw", "grow"),
    "fsgroup": ("apply_fs_group",),
    "fstypes": ("know_fs_type",),
    "guesthooks": ("programs",),
    "hugepages": ("add_huge_pages", "drop_huge_pages"),
    "mounttargets": ("make_targets",),
    "placing": ("kind_of", "make_directory", "remove_directory"),
    "processlist": ("list_processes",),
    "rawdisk": ("read_disk", "written_sector", "clear_disk"),
    "resolver": ("resolve",),
    "treeremoval": ("remove_tree",),
    "users": ("device_users",),
    "watchedcopy": ("refresh_copy",),
}


def _function(name: str) -> Callable[..., Any]:
    found = CALLS.get(name)
    if found is None:
        module = next(module for module, names in _MODULES.items() if name in names)
        found = getattr(importlib.import_module(f"agent.linux.{module}"), name)
        CALLS[name] = found
    return found

"""A process that makes file-system calls for the agent, and can be given up.

A call on a served file system (virtiofs, NFS, a disk whose host side hangs) may
never come back, and a thread in such a call could not be ended. So the agent
keeps this small process: it reads one request at a time from the SOCK_SEQPACKET
socket on descriptor 0, answers, and ends when the agent closes its side. A call
that is late costs this process and nothing else.

    request  {"call": "mount", "arguments": {...}}
    answer   {"ok": RESULT} | {"errno": N, "call": NAME, "object": PATH}
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.linux import fdpass, mounting, pseudo, rootlinks, users
from agent.linux.libc import failure

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    with socket.socket(fileno=0) as channel:
        serve(channel)


def serve(channel: socket.socket) -> None:
    """Answer requests until the other side closes."""
    while True:
        try:
            request, _ = fdpass.receive(channel)
        except EOFError:
            return
        fdpass.send(channel, answer(request))


def answer(request: fdpass.Message) -> fdpass.Message:
    """Make the call that a request asks for."""
    name, arguments = request["call"], request["arguments"]
    try:
        return {"ok": CALLS[name](**arguments)}
    except OSError as error:
        obj = arguments.get("target") or arguments.get("path") or ""
        return {
            "errno": error.errno or errno.EIO,
            "call": name,
            "object": str(error.filename or obj),
        }


def mount(*, source: str, target: str, fs_type: str, flags: int, data: str) -> None:
    mounting.mount(source, target, fs_type, mounting.MountFlag(flags), data)


def unmount(*, target: str, flags: int) -> None:
    mounting.unmount(target, mounting.UnmountFlag(flags))


def statfs(*, path: str) -> dict[str, int]:
    """Sizes of the file system that holds `path`, in bytes and in files."""
    found = os.statvfs(path)
    return {
        "size": found.f_blocks * found.f_frsize,
        "free": found.f_bfree * found.f_frsize,
        "available": found.f_bavail * found.f_frsize,
        "files": found.f_files,
        "files_free": found.f_ffree,
    }


def mkdir(*, path: str, mode: int) -> None:
    Path(path).mkdir(mode)


def rmdir(*, path: str) -> None:
    Path(path).rmdir()


def is_mount(*, path: str) -> bool:
    return os.path.ismount(path)


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


def make_link_targets(*, path: str, below: list[str]) -> None:
    rootlinks.make_link_targets(path, below)


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
        check_directory,
        check_empty_directory,
        make_link_targets,
        read_text,
        write_text,
        users.device_users,
    )
}

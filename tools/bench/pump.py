"""PID 1 of a VM without agent and relay: `dd` on the bare port, at the host's word.

    python3 -I -S -c PROGRAM serial|vsock NAME_OR_PORT

It runs in the guest and has nothing but the standard library. The host says a line,
`out PIECES` or `in PIECES`, and gets so many pieces; or gets the line `go`, sends them,
and gets the line `done` when they are read. One after the other on one connection.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path

READY = "bench pump: listening"
"""What the console says when the host may speak."""

PIECE = 32 << 10
"""Bytes that are read and written at once: what a serial port takes, and the most of which
vhost-device-vsock 0.3 loses nothing (the driver puts more into several descriptors)."""

_BUSYBOX = "/usr/bin/busybox"
_MODPROBE = "/usr/sbin/modprobe"
_MODULES = ("vsock", "vmw_vsock_virtio_transport", "virtio_console")
_PORTS = Path("/sys/class/virtio-ports")
# netlink(7), and the group of the kernel's own events; Python has no names for them.
_UEVENTS = 15
_KERNEL_GROUP = 1


def main(kind: str, name: str) -> None:
    # A module that is built in, or is not there, is nothing wrong: the port will tell.
    os.waitpid(_spawn((_MODPROBE, "-a", "-b", "--", *_MODULES), {}), 0)
    fd = _serial(name) if kind == "serial" else _vsock(int(name))
    serve(fd)


def serve(fd: int) -> None:
    """Until the host says no more."""
    while words := _line(fd).split():
        way, pieces = words
        transfer(fd, way, pieces)


def transfer(fd: int, way: str, pieces: str) -> None:
    """Raises SystemExit when dd failed: the kernel's panic then tells the host."""
    dd = (_BUSYBOX, "dd", f"bs={PIECE}", f"count={pieces}")
    if way == "out":
        pid = _spawn((*dd, "if=/dev/zero"), {1: fd})
    else:
        pid = _spawn((*dd, "of=/dev/null", "iflag=fullblock"), {0: fd})
        os.write(fd, b"go\n")
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"dd {way}: wait status {status}")
    if way == "in":
        os.write(fd, b"done\n")


def _spawn(argv: tuple[str, ...], ends: dict[int, int]) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in ends.items()]
    return os.posix_spawn(argv[0], argv, {}, file_actions=actions)


def _line(fd: int) -> str:
    """Byte by byte: what follows the line is for others."""
    said = b""
    while not said.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            break
        said += byte
    return said.decode()


def _vsock(port: int) -> int:
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as listener:
        listener.bind((socket.VMADDR_CID_ANY, port))
        listener.listen(1)
        print(READY, flush=True)
        connection, _ = listener.accept()
    return connection.detach()


def _serial(name: str) -> int:
    fd = os.open(_node(name), os.O_RDWR)
    print(READY, flush=True)
    # While the host is away a read ends at once, as at the end of a file; and only an edge
    # tells that it came, for the level is that it is away.
    with select.epoll() as poll:
        poll.register(fd, select.EPOLLIN | select.EPOLLET)
        while not any(events & select.EPOLLIN for _, events in poll.poll()):
            pass
    return fd


def _node(name: str) -> Path:
    """Listens before it looks, so that a port which comes meanwhile is not missed."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _UEVENTS) as news:
        news.bind((0, _KERNEL_GROUP))
        while True:
            for port in _PORTS.glob("*/name"):
                if port.read_text().strip() == name:
                    return Path("/dev") / port.parent.name
            news.recv(PIECE)


if __name__ == "__main__":
    main(*sys.argv[1:])

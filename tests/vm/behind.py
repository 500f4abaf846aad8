"""The host's hand behind the daemon's back: one command on the monitor that is the daemon's.

QEMU has one monitor, and the daemon holds its other end. A copy of that descriptor
sends the command; the daemon reads the answer, which is to nothing that it asked for.
"""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

from agent.linux.libc import check, libc
from tests.vm.guest import Guest

# The same number on every machine but alpha (asm-generic/unistd.h).
_SYS_PIDFD_GETFD = 438


async def taken_away(guest: Guest, device_id: str) -> None:
    """QEMU is told to take a device of the daemon's; returns when that was sent."""
    await tell(guest, "device_del", id=f"dev-{device_id}")


async def tell(guest: Guest, command: str, **arguments: object) -> None:
    """Sends one command to QEMU, without waiting for what it says."""
    vm = await guest.vm.describe()
    words = {"execute": command, "arguments": arguments, "id": "not the daemon's"}
    with _monitor(vm.qemu_pid, vm.daemon_pid) as monitor:
        monitor.sendall(json.dumps(words).encode() + b"\n")


def _monitor(qemu: int, daemon: int) -> socket.socket:
    words = Path(f"/proc/{qemu}/cmdline").read_bytes()
    found = re.search(rb"socket,id=monitor,fd=(\d+)", words)
    assert found is not None
    theirs = int(found[1])
    # Both ends come from one socketpair(2): they have neighbouring descriptors and inodes.
    ours = theirs - 1
    assert _inode(qemu, theirs) - _inode(daemon, ours) == 1
    pidfd = os.pidfd_open(daemon)
    try:
        copy = check(libc.syscall(_SYS_PIDFD_GETFD, pidfd, ours, 0), "pidfd_getfd", ours)
    except PermissionError:
        pytest.skip("this user may not look into the daemon (kernel.yama.ptrace_scope)")
    finally:
        os.close(pidfd)
    return socket.socket(fileno=copy)


def _inode(pid: int, fd: int) -> int:
    target = os.readlink(f"/proc/{pid}/fd/{fd}")
    found = re.fullmatch(r"socket:\[(\d+)\]", target)
    assert found is not None, target
    return int(found[1])

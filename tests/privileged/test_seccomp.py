"""The vsock filter in a process of its own, as root and with the kernel's answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.privileged, pytest.mark.containers]

REPOSITORY = Path(__file__).parents[2]

# A raw system call, because Python's socket() would cut the family to an int itself.
PRELUDE = """
import ctypes, errno, os, socket, subprocess, sys, threading
from agent.linux.seccomp import MACHINES, refuse_vsock
libc = ctypes.CDLL(None, use_errno=True)
NR = MACHINES[os.uname().machine].socket

def family(number):
    fd = libc.syscall(ctypes.c_long(NR), ctypes.c_ulong(number), socket.SOCK_STREAM, 0)
    if fd < 0:
        return errno.errorcode[ctypes.get_errno()]
    os.close(fd)
    return "ok"
"""


@pytest.fixture(autouse=True)
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: the filter is loaded without no_new_privs")


def in_child(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_vsock_is_refused_and_unix_sockets_are_not() -> None:
    script = "refuse_vsock(); print(family(40), family(0x100000028), family(1), family(2))"
    assert in_child(script) == "EAFNOSUPPORT EAFNOSUPPORT ok ok"


def test_children_inherit_it() -> None:
    script = """
refuse_vsock()
code = "import socket; socket.socket(40, 1)"
done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
print(done.returncode, "Address family not supported" in done.stderr)
"""
    assert in_child(script) == "1 True"


def test_threads_that_run_already_get_it_too() -> None:
    script = """
go, answer = threading.Event(), []
thread = threading.Thread(target=lambda: (go.wait(), answer.append(family(40))))
thread.start()
refuse_vsock()
go.set()
thread.join()
print(*answer)
"""
    assert in_child(script) == "EAFNOSUPPORT"


def test_it_gives_no_new_privileges_away() -> None:
    """Containers would inherit the bit, and their set-user-id programs would fail."""
    script = """
refuse_vsock()
print([line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")][0].split()[1])
"""
    assert in_child(script) == "0"

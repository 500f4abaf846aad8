"""A filter that takes vsock sockets away from this process and all it starts.

AF_VSOCK has no namespaces, so a container could otherwise talk to the host's
services. A filter loaded here is inherited by every child, and no filter that
is loaded later can loosen it: the strictest answer wins (seccomp(2)).

What owns the kernel is outside its promise, and so is io_uring, which makes
sockets without a system call: `handlers/guest/hardening.py` closes that.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
from typing import NamedTuple

from agent.linux.libc import check, failure, libc

_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1

_RET_KILL_PROCESS = 0x80000000
_RET_ERRNO = 0x00050000
_RET_ALLOW = 0x7FFF0000

# Offsets in struct seccomp_data; the argument's low half comes first (little endian).
_NR = 0
_ARCH = 4
_FIRST_ARGUMENT_LOW = 16

# Opcodes of classic BPF (linux/bpf_common.h).
_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_BITS = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_X32_BIT = 0x40000000


class Machine(NamedTuple):
    """What differs between machines: AUDIT_ARCH_*, and numbers of two system calls."""

    audit_arch: int
    socket: int
    seccomp: int


MACHINES = {
    "x86_64": Machine(audit_arch=0xC000003E, socket=41, seccomp=317),
    "aarch64": Machine(audit_arch=0xC00000B7, socket=198, seccomp=277),
}


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_vsock() -> None:
    """Load the filter for all threads of this process, now and for good.

    `socket(AF_VSOCK)` fails with EAFNOSUPPORT from here on, also when the
    family has bits above the low 32, which the kernel ignores. Needs
    CAP_SYS_ADMIN rather than no_new_privs, which containers would inherit and
    which would break their set-user-id programs. Raises OSError.
    """
    machine = _this_machine()
    code = program(machine)
    fprog = _Program(len(code) // 8, code)
    number = ctypes.c_long(machine.seccomp)
    flags = ctypes.c_ulong(_SECCOMP_FILTER_FLAG_TSYNC)
    result = libc.syscall(number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(fprog))
    if check(result, "seccomp(SET_MODE_FILTER)") > 0:
        raise failure(errno.EBUSY, f"seccomp(TSYNC), thread {result} has another filter")


def program(machine: Machine) -> bytes:
    """The filter in struct sock_filter form, eight bytes an instruction."""
    refused = _RET_ERRNO | errno.EAFNOSUPPORT
    # A jump counts the instructions that it skips, when true and when false.
    return b"".join(
        (
            _instruction(_LOAD, _ARCH),
            _instruction(_IF_EQUAL, machine.audit_arch, true=1),
            # The numbers below mean other calls there (int 0x80 can be used from 64-bit code).
            _instruction(_RETURN, _RET_KILL_PROCESS),
            _instruction(_LOAD, _NR),
            # x32 has the same AUDIT_ARCH as x86-64; no other machine uses that bit.
            _instruction(_IF_BITS, _X32_BIT, true=4),
            _instruction(_IF_EQUAL, machine.socket, false=2),
            _instruction(_LOAD, _FIRST_ARGUMENT_LOW),
            _instruction(_IF_EQUAL, socket.AF_VSOCK, true=2),
            _instruction(_RETURN, _RET_ALLOW),
            _instruction(_RETURN, _RET_ERRNO | errno.ENOSYS),
            _instruction(_RETURN, refused),
        )
    )


def _instruction(code: int, operand: int, *, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("HBBI", code, true, false, operand)


def _this_machine() -> Machine:
    name = platform.machine()
    if name not in MACHINES:
        # A guessed number would be another system call.
        raise failure(errno.ENOSYS, f"seccomp on {name}, known are {', '.join(MACHINES)}")
    return MACHINES[name]

"""The filter as a program: run on the kernel's input by a tiny interpreter of classic BPF."""

from __future__ import annotations

import struct

import pytest

from agent.linux.seccomp import MACHINES, program

pytestmark = [pytest.mark.unit, pytest.mark.containers]

ALLOW = 0x7FFF0000
KILL = 0x80000000
EAFNOSUPPORT = 0x00050000 | 97
ENOSYS = 0x00050000 | 38
I386 = 0x40000003
ARM = 0x40000028


def run(machine: str, nr: int, argument: int, arch: int | None = None) -> int:
    """The filter's answer to one system call."""
    known = MACHINES[machine]
    data = struct.pack("<IIQQ", nr, known.audit_arch if arch is None else arch, 0, argument)
    code = list(struct.iter_unpack("HBBI", program(known)))
    at, accumulator = 0, 0
    while True:
        opcode, true, false, operand = code[at]
        at += 1
        match opcode:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                at += true if accumulator == operand else false
            case 0x45:
                at += true if accumulator & operand else false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"an instruction that the filter has no need of: {opcode:#x}")


SOCKET = {"x86_64": 41, "aarch64": 198}
"""From arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h."""


@pytest.mark.parametrize("machine", sorted(SOCKET))
@pytest.mark.parametrize("family", [40, 0x100000028, 0xFFFFFFFF00000028])
def test_vsock_is_refused_whatever_the_upper_half(machine: str, family: int) -> None:
    """The kernel takes an int: bits above the low 32 don't make another family."""
    assert run(machine, SOCKET[machine], family) == EAFNOSUPPORT


@pytest.mark.parametrize("machine", sorted(SOCKET))
@pytest.mark.parametrize("family", [1, 2, 10, 16, 41, 0x2800000000, 0x40028])
def test_other_families_pass(machine: str, family: int) -> None:
    assert run(machine, SOCKET[machine], family) == ALLOW


@pytest.mark.parametrize("machine", sorted(SOCKET))
def test_other_calls_with_the_same_argument_pass(machine: str) -> None:
    assert run(machine, 0, 40) == ALLOW
    assert run(machine, 291, 40) == ALLOW


@pytest.mark.parametrize(("machine", "foreign"), [("x86_64", I386), ("aarch64", ARM)])
def test_a_foreign_architecture_ends_the_process(machine: str, foreign: int) -> None:
    assert run(machine, SOCKET[machine], 1, arch=foreign) == KILL


def test_x32_calls_do_not_exist() -> None:
    assert run("x86_64", 0x40000000 | 41, 40) == ENOSYS

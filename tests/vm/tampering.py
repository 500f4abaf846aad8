"""What goes wrong below the agent: programs of its whose system calls fail, and disks that do.

The programs are run by strace, which injects the errors (strace(1), `-e inject`); the disks are
device-mapper's `error` and `flakey` (Documentation/admin-guide/device-mapper).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.vm.inline import python
from tests.vm.observer import Observer

_PLACE = "/run/tampering"
_WRAPPER = """#!/usr/bin/busybox sh
words="$(busybox cat {place}/words)"
case "$*" in
*"{argument}"*) [ -z "$words" ] || exec strace -f -qq -o /dev/null $words {real} "$@" ;;
esac
exec {real} "$@"
"""

_DM = """
import fcntl, os, struct, sys
HEAD, SPEC = struct.Struct("=3I2IIiIII Q128s129s7x"), struct.Struct("=QQiI16s")
CREATE, REMOVE, SUSPEND, LOAD = 3, 4, 6, 9
SUSPENDS, WITHOUT_SYNC = 1 << 1, 1 << 10 | 1 << 11  # skip_lockfs, noflush

def ask(command, name, flags=0, data=b""):
    size = HEAD.size + len(data)
    head = HEAD.pack(4, 0, 0, size, HEAD.size, bool(data), 0, flags, 0, 0, 0, name.encode(), b"")
    buffer = bytearray(head + data)
    with open("/dev/mapper/control", "r+b", buffering=0) as control:
        fcntl.ioctl(control, 3 << 30 | HEAD.size << 16 | 0xFD << 8 | command, buffer)
    return HEAD.unpack_from(buffer)[10]

def load(name, sectors, target, words):
    text = words.encode() + b"\\0"
    text += b"\\0" * (-len(text) % 8)
    spec = SPEC.pack(0, int(sectors), 0, SPEC.size + len(text), target.encode())
    ask(LOAD, name, 0, spec + text)

what, name, *rest = sys.argv[1:]
if what == "make":
    number = ask(CREATE, name)
    load(name, *rest)
    ask(SUSPEND, name)
    print("/dev/dm-%d" % os.minor(number))
elif what == "change":
    load(name, *rest)
    ask(SUSPEND, name, SUSPENDS | WITHOUT_SYNC)
    ask(SUSPEND, name)
else:
    ask(REMOVE, name)
"""


class Program:
    """One of the guest's programs; strace runs it while it has something to inject."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def fails(self, inject: str) -> None:
        """As strace's -e inject has it: `mount:error=EIO:when=3`."""
        await shell(self._observer, f"echo -e inject={inject} >{_PLACE}/words")

    async def works(self) -> None:
        await shell(self._observer, f"true >{_PLACE}/words")


async def shell(observer: Observer, script: str) -> str:
    """Of the guest itself, in its own mount namespace; without single quotes."""
    return await observer.ask(f"busybox nsenter -t 1 -m -- busybox sh -c '{script}'")


@asynccontextmanager
async def tampered(observer: Observer, path: str, argument: str = "") -> AsyncIterator[Program]:
    """The program can be made to fail where one of its arguments has this text."""
    real = f"{_PLACE}/real/{path.rpartition('/')[2]}"
    text = _WRAPPER.format(place=_PLACE, argument=argument, real=real)
    said = await shell(
        observer,
        f"mkdir -p {_PLACE}/real && true >{_PLACE}/words && cp -L {path} {real}"
        f" && echo {text.encode().hex()} | xxd -r -p >{_PLACE}/wrapper"
        f" && chmod 755 {_PLACE}/wrapper && mount --bind {_PLACE}/wrapper {path}",
    )
    assert said == ""
    try:
        yield Program(observer)
    finally:
        assert await shell(observer, f"umount {path} && rm -r {_PLACE}") == ""


async def device_mapper(observer: Observer, *words: str) -> str:
    quoted = " ".join(f'"{word}"' for word in words)
    return (await observer.ask(python(_DM, quoted))).strip()


@asynccontextmanager
async def mapping(
    observer: Observer, name: str, sectors: int, target: str, words: str = ""
) -> AsyncIterator[str]:
    """A device; the path of its node."""
    node = await device_mapper(observer, "make", name, str(sectors), target, words)
    assert node.startswith("/dev/dm-"), node
    try:
        yield node
    finally:
        assert await device_mapper(observer, "remove", name) == ""


async def remap(observer: Observer, name: str, sectors: int, target: str, words: str = "") -> None:
    """Another table, at once, without writing back what is under way."""
    said = await device_mapper(observer, "change", name, str(sectors), target, words)
    assert said == ""

r"""The kernel's log, /dev/kmsg (Documentation/ABI/testing/dev-kmsg).

One read(2) gives one record: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT`, then
lines ` KEY=VALUE` (SUBSYSTEM, DEVICE) that say which device it is about. Whatever is
not printable ASCII, and the backslash, is written as `\xNN`. A new reader starts at
the oldest record that is kept. A line that was logged without its newline shows only
when the next one comes, as it might go on (prb_commit in kernel/printk).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

# CONSOLE_EXT_LOG_MAX is 8 KiB (include/linux/printk.h); a record that does not fit is EINVAL.
RECORD_SIZE = 16 * 1024

_HEADER = re.compile(r"([0-9]+),([0-9]+),([0-9]+),[^;]*")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One record. `micros` is the time since boot; `facility` 0 is the kernel itself,
    which nobody who writes to /dev/kmsg can get (devkmsg_write).

    `device` is as the kernel writes it: "+pci:0000:01:00.0" (subsystem and name),
    "b254:16" and "c226:0" (numbers of a node), "n3" (a network interface's index); empty
    where the record is about none.
    """

    sequence: int
    micros: int
    level: int
    text: str
    facility: int = 0
    subsystem: str = ""
    device: str = ""

    def __str__(self) -> str:
        seconds, micros = divmod(self.micros, 1_000_000)
        return f"[{seconds:5d}.{micros:06d}] {self.text}"


class KmsgSource(Protocol):
    """Where records come from; tests stand a socket pair in for the kernel."""

    def fileno(self) -> int: ...
    def receive(self) -> bytes: ...
    def close(self) -> None: ...


class Kmsg:
    """/dev/kmsg, opened for reading. Raises OSError where that is not allowed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def receive(self) -> bytes:
        """The next record. Raises BlockingIOError when there is none, BrokenPipeError when
        records were overwritten before they were read: the next call goes on after them."""
        return os.read(self._fd, RECORD_SIZE)

    def close(self) -> None:
        os.close(self._fd)


def parse(data: bytes) -> KernelRecord | None:
    """The record in one read; None for something else."""
    head, separator, rest = data.decode(errors="replace").partition(";")
    header = _HEADER.fullmatch(head)
    if not separator or header is None:
        return None
    text, *lines = rest.removesuffix("\n").split("\n")
    pairs = (line[1:].partition("=") for line in lines if line.startswith(" "))
    keys = {key: value for key, _, value in pairs}
    priority, sequence, micros = map(int, header.groups())
    return KernelRecord(
        sequence=sequence,
        micros=micros,
        level=priority & 7,
        facility=priority >> 3,
        text=unescape(text),
        subsystem=unescape(keys.get("SUBSYSTEM", "")),
        device=unescape(keys.get("DEVICE", "")),
    )


def unescape(text: str) -> str:
    r"""Undo `\xNN`, which stand for the bytes of UTF-8 text."""
    if "\\" not in text:
        return text
    data = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    return data.encode("latin-1", errors="replace").decode(errors="replace")

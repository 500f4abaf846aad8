"""console.log: all that the guest's console says, within bounds.

A guest can print for ever, and the host's disk is not its own. What it said
first (how it booted) and what it said last are what is looked for:

    console.log.boot   the first part, once there is more
    console.log.1      the part before the newest, once there is more
    console.log        the newest part
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

PART = 2 << 20
BOOT, BEFORE = ".boot", ".1"

_log = logging.getLogger(__name__)


class ConsoleLog:
    """At most three parts of `part` bytes each. Nothing is buffered: what was written
    is in the file, whatever becomes of this process."""

    def __init__(self, path: Path, part: int = PART) -> None:
        self._path = path
        self._part = part
        self._file: FileIO | None = _open(path)
        self._size = path.stat().st_size

    def write(self, data: bytes) -> None:
        """Never fails: a host whose disk is full loses the log, and not the VM."""
        rest = memoryview(data)
        try:
            while rest and self._file is not None:
                if self._size >= self._part:
                    self._turn(self._file)
                    continue
                written = self._file.write(rest[: self._part - self._size])
                self._size += written
                rest = rest[written:]
        except OSError as error:
            _log.warning("the console is not logged any more: %s", error)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _turn(self, full: FileIO) -> None:
        full.close()
        boot = self._named(BOOT)
        self._path.rename(self._named(BEFORE) if boot.exists() else boot)
        self._file = _open(self._path)
        self._size = 0

    def _named(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)


def _open(path: Path) -> FileIO:
    return path.open("ab", buffering=0)

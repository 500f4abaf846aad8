"""The last lines of log files, for errors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from innkeeper.shim.errors import printable

if TYPE_CHECKING:
    from pathlib import Path

_LINES = 10
_BYTES = 8192


def tail(log: Path, start: int = 0) -> tuple[str, ...]:
    """The last lines of a log from `start` on, empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - _BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    lines = (printable(line).strip() for line in text.splitlines())
    return tuple(line for line in lines if line)[-_LINES:]

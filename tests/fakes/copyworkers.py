"""Copy workers that are not as they should be, as programs to start."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

_CODE = Path(__file__).resolve().parents[2]


def _program(code: str) -> tuple[str, ...]:
    boot = f"import sys; sys.path.insert(0, sys.argv[1]); {code}"
    return (sys.executable, "-IS", "-c", boot, str(_CODE))


STUCK = _program(
    "import os, socket; s = socket.socket(fileno=0); s.recv(1 << 16);"
    "s.sendall(b'\\0\\0\\0\\0\\4'); os.read(os.pipe()[0], 1)"
)
"""Opens the root, and then does nothing any more, as one that a server keeps waiting."""

DEAD = _program("import sys; sys.exit(3)")
"""Ends at once."""

NAMED = _program("import tests.fakes.copyworkers as w; w.without_unnamed_files()")
"""The real one on a file system that has no O_TMPFILE, as NFS and 9p."""


def without_unnamed_files() -> None:
    from agent.linux import copyworker

    refuse_unnamed_files()
    copyworker.main()


def refuse_unnamed_files() -> None:
    """In this process, from now on."""
    real = os.open

    def open_(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "open", path)
        return real(path, flags, *rest, **more)

    os.open = open_

"""A program that passes for passt: says to its client how it was called, and ends with it."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python} -S
import socket, sys
{before}
fd = int(sys.argv[sys.argv.index("--fd") + 1])
client = socket.socket(fileno=fd)
client.sendall(" ".join(sys.argv[1:]).encode())
client.recv(1)
"""


def fake_passt(directory: Path, *, fails: str = "") -> Path:
    """The directory, for PATH. `fails`: what it says, and ends with status 1, instead."""
    directory.mkdir()
    before = f"sys.exit({fails!r})" if fails else ""
    program = directory / "passt"
    program.write_text(_PROGRAM.format(before=before, python=sys.executable))
    program.chmod(0o755)
    return directory

"""A program that passes for virtiofsd: holds its socket until its client hangs up."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python} -S
import socket, sys
if "--help" in sys.argv:
    print("--shared-dir <SHARED_DIR> --readonly")
    sys.exit()
{before}
fd = int(next(word for word in sys.argv if word.startswith("--fd=")).removeprefix("--fd="))
listener = socket.socket(fileno=fd)
client, _ = listener.accept()
client.recv(1)
"""


def fake_virtiofsd(path: Path, *, fails: str = "") -> Path:
    """`fails`: what it says, and ends with status 3, instead."""
    before = f"sys.exit(print({fails!r}, file=sys.stderr) or 3)" if fails else ""
    path.write_text(_PROGRAM.format(before=before, python=sys.executable))
    path.chmod(0o755)
    return path

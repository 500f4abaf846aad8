"""Drivers that are modules on some kernels, and may not be loaded yet."""

from __future__ import annotations

import contextlib
import subprocess


def load(name: str) -> None:
    """Quietly: whether the driver is there shows by its node."""
    with contextlib.suppress(OSError):
        subprocess.run(["modprobe", "-q", name], check=False)

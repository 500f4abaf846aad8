"""Who keeps a mount busy, as far as proc tells without touching the file system.

Only links in proc are read, which the kernel writes from its own memory: nothing
here can hang on the file system in question.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.roots import Roots
    from agent.linux.mounting import MountEntry

SHOWN = 8


def holders(roots: Roots, mounts: tuple[MountEntry, ...], point: str) -> list[str]:
    """The first few mounts and processes below `point`, for an error text."""
    below = [
        f"the mount on {entry.mount_point}"
        for entry in mounts
        if Path(point) in Path(entry.mount_point).parents
    ]
    found = below[:SHOWN]
    for text in _processes(roots, point):
        if len(found) >= SHOWN:
            break
        found.append(text)
    return found


def _processes(roots: Roots, point: str) -> Iterator[str]:
    for process in sorted(roots.proc.glob("[0-9]*")):
        link = next((name for name in _links(process) if _is_inside(name, point)), None)
        if link is not None:
            yield f"process {process.name} ({_name(process)}) with {link}"


def _links(process: Path) -> Iterator[str]:
    descriptors = process / "fd"
    try:
        names = [process / "cwd", process / "root", process / "exe", *descriptors.iterdir()]
    except OSError:
        return
    for name in names:
        try:
            yield os.fspath(name.readlink())
        except OSError:
            continue


def _is_inside(path: str, point: str) -> bool:
    return path == point or path.startswith(f"{point}/")


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"

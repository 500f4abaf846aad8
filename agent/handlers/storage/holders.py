"""Who keeps a mount busy, as far as proc tells without touching the file system.

Only links in proc are read, which the kernel writes from its own memory: nothing
here can hang on the file system in question.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.roots import Roots
    from agent.linux.mounting import MountEntry

SHOWN = 8

LOOKED_AT = 10_000
"""Links that are read: the agent does nothing else meanwhile, and a container may have a
million files open."""


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
    left = LOOKED_AT
    for process in sorted(roots.proc.glob("[0-9]*")):
        for link in islice(_links(process), left):
            left -= 1
            if _is_inside(link, point):
                yield f"process {process.name} ({_name(process)}) with {link}"
                break
        if not left:
            yield "maybe others: too many files are open to look at them all"
            return


def _links(process: Path) -> Iterator[str]:
    for name in _names(process):
        try:
            yield os.readlink(name)  # noqa: PTH115 - a Path for each would cost more
        except OSError:
            continue


def _names(process: Path) -> Iterator[str]:
    yield from (f"{process}/{name}" for name in ("cwd", "root", "exe"))
    with suppress(OSError), os.scandir(process / "fd") as descriptors:
        yield from (entry.path for entry in descriptors)


def _is_inside(path: str, point: str) -> bool:
    return path == point or path.startswith(f"{point}/")


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"

"""Where a storage may be mounted.

Either below the agent's own directory of storages (one name, made and removed by
the agent), or on a directory that exists already, is empty, and lies below /mnt or
beside the agent's run directory in /run; never inside another of the agent's own
directories, nor inside another storage, whose content is not to be trusted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.names import check_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.roots import Roots

MNT = Path("/mnt")

_PATH_LIMIT = 4095


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPoint:
    """`own`: the agent makes the directory and removes it."""

    path: str
    own: bool


def choose_mount_point(roots: Roots, storage_id: str, wanted: str | None) -> MountPoint:
    """The mount point of a request; raises BAD_FIELD, saying the rule."""
    if wanted is None:
        return MountPoint(path=str(roots.storages / storage_id), own=True)
    path = Path(wanted)
    if len(wanted) > _PATH_LIMIT or "\0" in wanted or not _is_plain(wanted):
        raise _refused(roots, wanted, "it is not an absolute path without . and .. and //")
    if path.parent == roots.storages:
        return MountPoint(path=str(roots.storages / check_id("mount point", path.name)), own=True)
    if path.is_relative_to(roots.run):
        raise _refused(roots, wanted, f"{roots.run} is the agent's own")
    if not any(base in path.parents for base in (MNT, roots.run.parent)):
        raise _refused(roots, wanted, f"it lies neither below {MNT} nor below {roots.run.parent}")
    return MountPoint(path=wanted, own=False)


def refuse_nested(roots: Roots, point: MountPoint, others: Iterable[str]) -> None:
    """A mount point inside another storage would be reached through what a container wrote."""
    for other in others:
        if Path(other) in Path(point.path).parents:
            raise _refused(roots, point.path, f"it lies inside the storage mounted on {other}")


def _is_plain(text: str) -> bool:
    return text.startswith("/") and not text.startswith("//") and os.path.normpath(text) == text


def _refused(roots: Roots, path: str, why: str) -> Exception:
    return invalid(
        f"{path!r} cannot be a mount point: {why}",
        hint=f"leave it out, name {roots.storages}/NAME, or an existing empty directory "
        f"below {MNT} or {roots.run.parent}",
        field="mount_point",
    )

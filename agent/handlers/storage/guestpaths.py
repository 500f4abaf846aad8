"""Files and directories of the guest, or of another storage, that a storage shows.

What is the agent's own is not to be had: its state, its sockets, the roots of containers.
Another storage is named by its id, so that it is kept while something shows it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from agent.core.errors import AgentError, Code, Reason, invalid, kernel_refused, not_found
from agent.core.fileops import Location
from agent.linux.mounting import parse_mountinfo
from agent.linux.pseudo import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.roots import Roots
    from agent.core.sources import StorageDirectory


def guest_location(roots: Roots, path: str, field: str, *, recursive: bool = False) -> Location:
    """An absolute path of the guest without links. Raises BAD_FIELD, LEADS_OUTSIDE."""
    if not path.startswith("/") or path.startswith("//") or os.path.normpath(path) != path:
        raise invalid(f"{path!r} is not an absolute path without . and .. and //", field=field)
    _refuse_private(roots, Path(path), field, recursive=recursive)
    return Location(root="/", path=path.lstrip("/"), links=False)


def storage_location(points: Mapping[str, str], directory: StorageDirectory) -> Location:
    """Below the root of a storage, resolved inside it; raises UNKNOWN_STORAGE."""
    point = points.get(directory.storage_id)
    if point is None:
        raise not_found(
            f"no storage {directory.storage_id!r} is attached", reason=Reason.UNKNOWN_STORAGE
        )
    return Location(root=point, path=directory.path)


def not_opened(error: OSError, where: Location, field: str) -> AgentError:
    """What it means that a location can't be opened."""
    if error.errno == errno.ELOOP:
        return leads_outside(f"{where} has a symbolic link in it, which may lead anywhere", field)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "it must be there before it can be shown"
        doing = f"{field}: {where}"
        return kernel_refused(error, doing=doing, reason=Reason.MOUNT_REFUSED, hint=hint)
    return kernel_refused(error, doing=f"{field}: {where}", reason=Reason.MOUNT_REFUSED)


def leads_outside(message: str, field: str) -> AgentError:
    return AgentError(
        message,
        code=Code.PERMISSION_DENIED,
        reason=Reason.LEADS_OUTSIDE,
        fields={"field": field},
        hint="name what the link leads to",
    )


def _refuse_private(roots: Roots, path: Path, field: str, *, recursive: bool) -> None:
    if path.is_relative_to(roots.storages) or path.is_relative_to(roots.local):
        raise _private(f"{path} lies in a storage, or holds them all", "name it by its id", field)
    if path.is_relative_to(roots.run):
        raise _private(f"{path} is the agent's own", None, field)
    if path in roots.run.parents and (recursive or not _mounted_between(roots, path)):
        raise _private(f"{roots.run}, the agent's own, lies in {path}", None, field)


def _mounted_between(roots: Roots, above: Path) -> bool:
    """Whether a mount hides the agent's directory from a bind mount of `above` alone."""
    entries = parse_mountinfo(read_text(roots.proc / "self/mountinfo"))
    points = {Path(entry.mount_point) for entry in entries}
    return any(each in points for each in (roots.run, *roots.run.parents) if above in each.parents)


def _private(message: str, hint: str | None, field: str) -> AgentError:
    return AgentError(
        f"{field}: {message}",
        code=Code.PERMISSION_DENIED,
        reason=Reason.LEADS_OUTSIDE,
        fields={"field": field},
        hint=hint,
    )

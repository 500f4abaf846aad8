"""Sources of bind mounts that lie in a storage.

Other containers may write there, and could put a link to anywhere in the guest where a
source was a moment ago; the runtime would follow it. So the source is resolved inside its
storage, once, and the runtime gets a mount of what was found, in the bundle.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from agent.core.fileops import Location

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots
    from agent.handlers.runtime.bundle import Bundle, Files

_BINDS = {"bind", "rbind"}


def is_bind(mount: dict[str, Any]) -> bool:
    return mount.get("type") == "bind" or bool(_BINDS & set(mount.get("options") or ()))


async def pin_sources(
    files: Files, bundle: Bundle, roots: Roots, config: dict[str, Any], deadline: Deadline
) -> None:
    """Put the bundle's mounts in the place of such sources. Raises MOUNT_REFUSED."""
    for number, mount in enumerate(config["mounts"]):
        if not is_bind(mount):
            continue
        location = _in_storage(roots, mount.get("source") or "")
        if location is not None:
            mount["source"] = await bundle.mount_source(files, str(number), location, deadline)


def _in_storage(roots: Roots, source: str) -> Location | None:
    """None for what is elsewhere, and for a storage itself, whose path is the agent's own."""
    path, base = os.path.normpath(source), f"{roots.storages}/"
    if not path.startswith(base):
        return None
    name, _, below = path.removeprefix(base).partition("/")
    return Location(root=base + name, path=below) if below else None

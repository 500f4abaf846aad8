"""The targets of a container's mounts: made in its root before the runtime mounts on them.

The runtime resolves every target again, inside the root too; what is made here is there
by then, and what can't be made is refused in one way, whichever runtime it is.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError, Code, Reason, wrong_state
from agent.core.fileops import ContainerMount
from agent.handlers.runtime.sources import is_bind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.deadlines import Deadline
    from agent.handlers.runtime.bundle import Files

_LINKS_MEANT = {"copy-symlink", "src-nofollow", "dest-nofollow"}
"""crun's options (crun.1) that are about a link itself: there is nothing to make."""

_WHY: Mapping[int, tuple[str, str]] = {
    errno.ELOOP: (
        "links in the root lead in a circle, or there are more than 40",
        "choose another destination, or mend the image",
    ),
    errno.EROFS: (
        "it is missing in the root, and the root is read-only",
        "make it in the image, or ask for a writable layer",
    ),
    errno.ENOTDIR: (
        "on the way or at the end is a file in place of a directory, or the reverse",
        "choose another destination, or mend the image",
    ),
    errno.EBUSY: ("links lead to the root itself", "choose another destination"),
}


async def make_targets(files: Files, root: str, config: dict[str, Any], deadline: Deadline) -> None:
    """Raises LEADS_OUTSIDE (through a link into /proc), MOUNT_REFUSED naming the destination."""
    mounts = [_mount(each) for each in config["mounts"] if _has_target(each)]
    try:
        await files.make_targets(root, mounts, deadline)
    except OSError as error:
        raise _refused(error) from error


def _has_target(mount: dict[str, Any]) -> bool:
    """False where there is nothing to make, or the runtime alone knows what."""
    from_here = str(mount.get("source") or "").startswith("/") or not is_bind(mount)
    return from_here and not _LINKS_MEANT & set(mount.get("options") or ())


def _mount(mount: dict[str, Any]) -> ContainerMount:
    source = mount["source"] if is_bind(mount) else None
    return ContainerMount(
        destination=mount["destination"], fs_type=mount.get("type") or "", source=source
    )


def _refused(error: OSError) -> AgentError:
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    target = str(error.filename)
    if error.errno == errno.EXDEV:
        return AgentError(
            f"mount target {target} of the container: a link in the root leads into /proc",
            code=Code.PERMISSION_DENIED,
            reason=Reason.LEADS_OUTSIDE,
            fields={"target": target, "errno": name},
            hint="name the place in /proc itself, or mend the image",
        )
    why, hint = _WHY.get(error.errno or 0, (os.strerror(error.errno or errno.EIO), None))
    return wrong_state(
        f"mount target {target} of the container can't be made: {why} [{name}]",
        reason=Reason.MOUNT_REFUSED,
        hint=hint,
        target=target,
        errno=name,
    )

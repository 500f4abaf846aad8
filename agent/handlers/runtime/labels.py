"""SELinux labels in a specification: they mean nothing in a guest without SELinux."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.core.roots import Roots

log = logging.getLogger(__name__)

_PLACES = (("process", "selinuxLabel"), ("linux", "mountLabel"))


def drop_labels(roots: Roots, container_id: str, config: dict[str, Any]) -> None:
    """Take the labels out and say so, where the guest has no SELinux; else they are kept.

    Hosts send them for every container; a runtime may refuse what its kernel can't do.
    """
    if (roots.sys / "fs/selinux/enforce").exists():
        return
    for part, name in _PLACES:
        if config[part].pop(name, None):
            log.warning(
                "container %s: %s.%s is dropped: this guest has no SELinux",
                container_id,
                part,
                name,
            )

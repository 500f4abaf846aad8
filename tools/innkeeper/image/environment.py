"""The environment that programs of a build get: the host's, without what changes a result."""

from __future__ import annotations

import os
import re

from innkeeper.image.model import EPOCH

_DROPPED = re.compile(r"LC_|LANG|PYTHON|LD_LIBRARY_PATH|TAR_OPTIONS|E2FSPROGS_|MKE2FS_|APT_CONFIG")


def fixed_environment(**more: str) -> dict[str, str]:
    """Proxies, PATH, TMPDIR and the like stay; language, time zone and time do not."""
    kept = {name: value for name, value in os.environ.items() if not _DROPPED.match(name)}
    # debugfs and e2fsck lie in sbin, which a user of Debian has not in PATH.
    path = f"{kept.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    fixed = {"PATH": path, "LC_ALL": "C.UTF-8", "TZ": "UTC", "SOURCE_DATE_EPOCH": str(EPOCH)}
    return kept | fixed | more

"""Programs in a directory of hooks: DIRECTORY/KIND/PROGRAM."""

from __future__ import annotations

import errno
import os
import stat

KINDS = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)
"""In the order in which they run (runtime-spec, config.md, POSIX-platform Hooks)."""


def programs(*, directory: str) -> dict[str, list[str]]:
    """Paths of the regular files that may be executed, by kind and sorted by name; links are
    left out, and so are links to whole kinds. Raises OSError for the directory itself."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return {kind: _of_kind(top, directory, kind) for kind in KINDS}
    finally:
        os.close(top)


def _of_kind(top: int, directory: str, kind: str) -> list[str]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(kind, flags, dir_fd=top)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno == errno.ELOOP:
            return []
        raise
    try:
        with os.scandir(fd) as entries:
            names = sorted(each.name for each in entries if _is_program(each))
    finally:
        os.close(fd)
    return [f"{directory.rstrip('/')}/{kind}/{name}" for name in names]


def _is_program(entry: os.DirEntry[str]) -> bool:
    mode = entry.stat(follow_symlinks=False).st_mode
    # A name that is no UTF-8 can't be written into a specification.
    return stat.S_ISREG(mode) and bool(mode & 0o111) and _is_text(entry.name)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True

"""Processes as proc shows them: who they are, what they have open, where they live.

Processes come and go meanwhile, so whatever is not there any more is left out. What
they say of themselves (names, paths) is the workload's text: see `clean`.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT_LIMIT = 256


class Process(NamedTuple):
    """`directory` shows it: its own, or where the first thread has ended (which leaves
    nothing to see of it) that of a thread which goes on."""

    pid: int
    directory: str


class OpenFile(NamedTuple):
    """`link` is the link in proc that leads to the file."""

    process: Process
    link: str


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """Somebody's text as printable ASCII, so that it cannot spoil a log or a terminal; cut
    at `limit`."""
    shown = "".join(char if " " <= char <= "~" else "?" for char in text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def processes(proc: str) -> list[Process]:
    """Those that there are now, by number."""
    pids = sorted(int(name) for name in _names(proc) if name.isdecimal())
    return [_visible(proc, pid) for pid in pids]


def command(process: Process) -> str:
    """The command name (at most 15 bytes); empty for one that is gone."""
    try:
        with open(f"{process.directory}/comm", errors="surrogateescape") as file:
            return clean(file.read().removesuffix("\n"))
    except OSError:
        return ""


def namespace(process: Process, kind: str) -> str | None:
    """The namespace as the kernel names it, like "mnt:[4026531841]"; None for a dead process."""
    return target_of(f"{process.directory}/ns/{kind}") or None


def is_kernel_thread(process: Process) -> bool:
    """A thread of the kernel has no program."""
    return not target_of(f"{process.directory}/exe")


def open_files(process: Process, limit: int) -> Iterator[OpenFile]:
    """The descriptors, then the mapped files; at most `limit`."""
    return itertools.islice(_open_files(process), limit)


def target_of(link: str) -> str:
    """What a link in proc leads to, as the kernel writes it; empty when it is gone."""
    try:
        return os.readlink(link)  # noqa: PTH115 - one call for each of many
    except OSError:
        return ""


def _open_files(process: Process) -> Iterator[OpenFile]:
    # A mapped file stays in use after its descriptor is closed.
    for table in ("fd", "map_files"):
        directory = f"{process.directory}/{table}"
        for name in _names(directory):
            yield OpenFile(process, f"{directory}/{name}")


def _visible(proc: str, pid: int) -> Process:
    own = f"{proc}/{pid}"
    if target_of(f"{own}/ns/mnt"):
        return Process(pid, own)
    threads = (f"{own}/task/{name}" for name in _names(f"{own}/task"))
    return Process(pid, next((path for path in threads if target_of(f"{path}/ns/mnt")), own))


def _names(directory: str) -> Iterator[str]:
    """Lazily: a process may have a million descriptors."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name
    except OSError:
        return

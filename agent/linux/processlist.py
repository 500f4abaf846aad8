"""What proc says of some processes (proc_pid_stat(5), proc_pid_status(5)).

It runs in a process that can be given up (`fsworker`): a process's arguments are in its own
memory, so reading them waits for whatever holds that, a file system that does not answer for
one.

Everything of a process is read below one descriptor of its directory. So it is all of one
process, whoever has the number afterwards.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# More than any of the files has, but for a path of a cgroup.
_CHUNK = 16 * 1024


class Row(NamedTuple):
    """One process. `numbers` are its pids from the guest's namespace inwards; times are in
    clock ticks (`started` since the boot), `resident` is in KiB."""

    pid: int
    numbers: list[int]
    parent: int
    user: int
    name: str
    arguments: list[str]
    state: str
    cpu: int
    resident: int
    threads: int
    started: int
    terminal: int


def list_processes(
    *, proc: str, pids: list[int], cgroup: str, argument_bytes: int
) -> list[dict[str, Any]]:
    """Those of `pids` that are (still) in the cgroup or below; of each at most so many bytes
    of its arguments, with 0 none of them is asked for."""
    return [row._asdict() for row in _rows(proc, pids, cgroup, argument_bytes)]


def printable(text: str) -> str:
    """Somebody's text, so that it cannot spoil a log or a terminal: what is no character is
    shown as its bytes, what has no shape as "?"."""
    whole = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(char if char.isprintable() else "?" for char in whole)


def parse_stat(text: str) -> tuple[str, list[str]]:
    """Name and the fields after it, of which the third of the manual is the first.

    The name may have anything in it, brackets too: it ends at the last one.
    """
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def _rows(proc: str, pids: list[int], cgroup: str, argument_bytes: int) -> Iterator[Row]:
    for pid in pids:
        try:
            directory = os.open(f"{proc}/{pid}", _DIRECTORY)
        except OSError:
            continue
        try:
            row = _row(directory, pid, cgroup, argument_bytes)
        except (OSError, ValueError, LookupError):
            # It ended while we looked: files are gone, or have less in them.
            row = None
        finally:
            os.close(directory)
        if row is not None:
            yield row


def _row(directory: int, pid: int, cgroup: str, argument_bytes: int) -> Row | None:
    if not _is_within(_read(directory, "cgroup"), cgroup):
        return None
    name, fields = parse_stat(_read(directory, "stat"))
    status = _status(_read(directory, "status"))
    return Row(
        pid=pid,
        numbers=[int(each) for each in status.get("NSpid", str(pid)).split()],
        parent=int(fields[1]),
        # Real, effective, saved, file system.
        user=int(status["Uid"].split()[1]),
        name=printable(name),
        arguments=_arguments(directory, argument_bytes),
        state=fields[0],
        cpu=int(fields[11]) + int(fields[12]),
        resident=int(status.get("VmRSS", "0").split()[0]),
        threads=int(fields[17]),
        started=int(fields[19]),
        terminal=int(fields[4]),
    )


def _arguments(directory: int, limit: int) -> list[str]:
    text = _read(directory, "cmdline", limit) if limit else ""
    return [printable(each) for each in text.removesuffix("\0").split("\0")] if text else []


def _is_within(text: str, cgroup: str) -> bool:
    """Whether a `/proc/PID/cgroup` has that group, or one below."""
    paths = (line[3:] for line in text.split("\n") if line.startswith("0::"))
    return any(path == cgroup or path.startswith(f"{cgroup}/") for path in paths)


def _status(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.split("\n"))
    return {key: value.strip() for key, _, value in pairs}


def _read(directory: int, name: str, limit: int = 0) -> str:
    """The whole file, or its first `limit` bytes."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        data = os.read(fd, limit or _CHUNK)
        while not limit and (more := os.read(fd, _CHUNK)):
            data += more
    finally:
        os.close(fd)
    return data.decode(errors="surrogateescape")

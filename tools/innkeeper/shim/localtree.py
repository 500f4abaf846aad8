"""A file or tree of this host as parts of a copy into a guest.

Links are copied as links, never followed, but for the first path if that is asked for.
Many small files go in one batch, holes stay holes. Files are read in a plain blocking way:
a batch at a time, in a thread of the caller's.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from innkeeper.v1 import files_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCH_BYTES = 256 << 10
"""About what a message carries."""

_HEADER = 100
"""About what an entry costs on the wire beside its path and bytes."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK = 512
_OTHERS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


@dataclass(slots=True, kw_only=True)
class Sending:
    """What to read, and how far it is. `left_out` gets a line for what is not copied."""

    source: Path
    keep_owner: bool = False
    """Numbers of owners and groups as they are here; otherwise all is root's there."""
    follow: bool = False
    """If the source is a link, what it leads to."""
    only_content: bool = False
    """What is in a directory, without the directory itself."""
    files: int = 0
    size: int = 0
    left_out: list[str] = field(default_factory=list)


def batches(sending: Sending) -> Iterator[list[pb.FilePart]]:
    """All parts in order, a directory before what is in it. Raises OSError."""
    batch = _Batch()
    for part in _parts(sending):
        if batch.add(part):
            yield batch.take()
    yield batch.take()


class _Batch:
    def __init__(self) -> None:
        self._parts: list[pb.FilePart] = []
        self._size = 0

    def add(self, part: pb.FilePart) -> bool:
        """True when it is full."""
        self._parts.append(part)
        self._size += len(part.data)
        if part.HasField("header"):
            self._size += _HEADER + len(part.header.path)
        return self._size >= BATCH_BYTES

    def take(self) -> list[pb.FilePart]:
        parts, self._parts, self._size = self._parts, [], 0
        return parts


def _parts(sending: Sending) -> Iterator[pb.FilePart]:
    source = sending.source
    found = source.stat() if sending.follow else source.lstat()
    top = os.path.realpath(source) if sending.follow else str(source)
    if not sending.only_content:
        yield from _one(sending, "", top, found)
    if stat.S_ISDIR(found.st_mode):
        yield from _below(sending, top)


def _below(sending: Sending, top: str) -> Iterator[pb.FilePart]:
    """Depth first, by names: without recursion, however deep."""
    waiting = [("", top)]
    while waiting:
        path, folder = waiting.pop()
        if path:
            # Told when it is entered: the guest is done with one before the next.
            yield from _child(sending, path, folder)
        inner = []
        for name, is_folder in _names(sending, path, folder):
            below = f"{path}/{name}" if path else name
            if is_folder:
                inner.append((below, f"{folder}/{name}"))
            else:
                yield from _child(sending, below, f"{folder}/{name}")
        waiting += reversed(inner)


def _names(sending: Sending, path: str, folder: str) -> list[tuple[str, bool]]:
    """What is in a directory, by name, and whether it is one itself."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
    except FileNotFoundError:
        sending.left_out.append(f"{path}: it vanished meanwhile")
        return []


def _child(sending: Sending, path: str, name: str) -> Iterator[pb.FilePart]:
    try:
        yield from _one(sending, path, name, os.lstat(name))
    except FileNotFoundError:
        sending.left_out.append(f"{path}: it vanished meanwhile")


def _one(sending: Sending, path: str, name: str, found: os.stat_result) -> Iterator[pb.FilePart]:
    kind = stat.S_IFMT(found.st_mode)
    if kind in _OTHERS:
        sending.left_out.append(f"{path or name}: {_OTHERS[kind]}")
        return
    if not _is_text(path):
        sending.left_out.append(f"{os.fsencode(path)!r}: it is not in UTF-8")
        return
    header = _header(sending, path, found)
    if kind == stat.S_IFREG:
        yield from _file(sending, header, name)
        return
    if kind == stat.S_IFLNK:
        header.type = pb.FILE_TYPE_LINK
        target = os.readlink(name)  # noqa: PTH115 - a Path would change "a//b"
        if not _is_text(target):
            sending.left_out.append(f"{path or name}: its target is not in UTF-8")
            return
        header.link_target = target
    else:
        header.type = pb.FILE_TYPE_DIRECTORY
    yield pb.FilePart(header=header)


def _header(sending: Sending, path: str, found: os.stat_result) -> pb.FileHeader:
    seconds, nanoseconds = divmod(found.st_mtime_ns, 1_000_000_000)
    return pb.FileHeader(
        path=path,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid if sending.keep_owner else 0,
        gid=found.st_gid if sending.keep_owner else 0,
        modified=pb.FileTime(seconds=seconds, nanoseconds=nanoseconds),
    )


def _file(sending: Sending, header: pb.FileHeader, name: str) -> Iterator[pb.FilePart]:
    """As many bytes as its size was, whatever becomes of it meanwhile."""
    fd = os.open(name, _READ)
    try:
        found = os.fstat(fd)
        header.type, header.size = pb.FILE_TYPE_FILE, found.st_size
        begun: pb.FileHeader | None = header
        for hole, data in _content(fd, found):
            yield pb.FilePart(header=begun, hole=hole, data=data)
            begun = None
            sending.size += hole + len(data)
        if begun is not None:
            yield pb.FilePart(header=begun)
        changed = os.fstat(fd)
    finally:
        os.close(fd)
    sending.files += 1
    if (changed.st_size, changed.st_mtime_ns) != (found.st_size, found.st_mtime_ns):
        sending.left_out.append(f"{header.path or name}: it changed while it was read")


def _content(fd: int, found: os.stat_result) -> Iterator[tuple[int, bytes]]:
    """Holes, each with the bytes behind it."""
    at, size = 0, found.st_size
    while at < size:
        start, end = _next_data(fd, found, at)
        hole, at = start - at, start
        if at >= end:
            yield hole, b""
        while at < end:
            data = os.pread(fd, min(end - at, BATCH_BYTES), at)
            if not data:
                yield hole + size - at, b""
                return
            yield hole, data
            hole = 0
            at += len(data)


def _next_data(fd: int, found: os.stat_result, at: int) -> tuple[int, int]:
    """Where the next bytes begin and end that are no hole (lseek(2))."""
    size = found.st_size
    if found.st_blocks * _BLOCK >= size:
        return at, size
    try:
        start = os.lseek(fd, at, os.SEEK_DATA)
        return min(start, size), min(os.lseek(fd, start, os.SEEK_HOLE), size)
    except OSError as error:
        return (size, size) if error.errno == errno.ENXIO else (at, size)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True

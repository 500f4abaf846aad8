"""Parts of a copy out of a guest become files of this host.

The guest is not trusted: it chooses names, types, modes, targets and bytes. So each
name is one name in a directory that is held by descriptor, no link is ever followed
below where the copy lands, a file replaces a name and never opens one, and set-id bits
and owners are taken only when they were asked for.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from innkeeper.shim.errors import Reason, ShimError, printable
from innkeeper.v1 import files_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TEMPORARY = ".innkeeper-"
"""How names of files begin that are not whole yet."""

_LONGEST_PATH = 4095
_SECOND = 1_000_000_000
_LARGEST = (1 << 63) - 1
_NO_NAMES = frozenset({"", ".", ".."})
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_UNNAMED = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a copy lands: a name in a directory of this host's user.

    With `into` the name is that of a directory that is there: what comes is merged into
    it, and it stays as it is.
    """

    folder: Path
    name: str
    into: bool = False
    keep_owner: bool = False
    """Owners, groups and set-id bits as the guest has them (needs root)."""


class Landing:
    """Writes one copy; `with Landing(place) as landing:`. Raises ShimError, OSError."""

    def __init__(self, place: Place) -> None:
        self.files = 0
        self.size = 0
        self._place = place
        self._umask = _umask()
        self._base = -1
        # The directories on the way to where entries go now, each held by descriptor.
        self._way: list[_Folder] = []
        self._file: _File | None = None
        self._begun = False

    def __enter__(self) -> Landing:
        self._base = os.open(self._place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing of a file that did not become whole."""
        if self._file is not None:
            self._file.abandon()
        while self._way:
            os.close(self._way.pop().fd)
        os.close(self._base)

    def parts(self, parts: Iterable[pb.FilePart]) -> None:
        """The next parts in order."""
        for part in parts:
            if part.HasField("header"):
                self._begin(part.header)
            if part.hole or part.data:
                self._bytes(part.hole, part.data)
            if self._file is not None and self._file.complete:
                self._file.publish()
                self.files += 1
                self._file = None

    def finish(self) -> None:
        """All has come; raises ShimError when something is missing."""
        if self._file is not None or not self._begun:
            raise _misled("its copy ends in the middle")
        self._leave_to(0)

    def _begin(self, header: pb.FileHeader) -> None:
        if self._file is not None:
            raise _misled(f"{_shown(header.path)} begins before the file before is whole")
        _check(header, first=not self._begun)
        self._begun = True
        if header.path:
            names = header.path.split("/")
            folder, name = self._enter(names[:-1], header.path), names[-1]
        else:
            folder, name = self._base, self._place.name
        match header.type:
            case pb.FILE_TYPE_DIRECTORY:
                self._directory(folder, name, header)
            case pb.FILE_TYPE_LINK:
                self._link(folder, name, header)
            case _:
                owner = (header.uid, header.gid) if self._place.keep_owner else None
                self._file = _File(folder, name, header, _Rights(self._mode(header), owner))

    def _bytes(self, hole: int, data: bytes) -> None:
        if self._file is None:
            raise _misled("there are bytes that belong to no file")
        self._file.add(hole, data)
        self.size += hole + len(data)

    def _enter(self, names: list[str], path: str) -> int:
        """The directory of an entry, which a copy has told of before."""
        if not self._way:
            raise _misled(f"{_shown(path)} is in something that is no directory")
        kept = 0
        while kept < len(names) and kept + 1 < len(self._way):
            if self._way[kept + 1].name != names[kept]:
                break
            kept += 1
        self._leave_to(kept + 1)
        for name in names[kept:]:
            self._way.append(_Folder(name=name, fd=_open_folder(self._way[-1].fd, name, path)))
        return self._way[-1].fd

    def _leave_to(self, count: int) -> None:
        """Settle directories that the copy has left: a read-only one could not be
        written to before, and what is written into one changes its time."""
        while len(self._way) > count:
            folder = self._way.pop()
            try:
                if folder.header is not None:
                    self._settle(folder.fd, folder.header)
            finally:
                os.close(folder.fd)

    def _settle(self, fd: int, header: pb.FileHeader) -> None:
        if self._place.keep_owner:
            os.fchown(fd, header.uid, header.gid)
        os.fchmod(fd, self._mode(header))
        _set_time(fd, header)

    def _directory(self, folder: int, name: str, header: pb.FileHeader) -> None:
        merged = self._place.into and not header.path
        if not merged:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
        fd = _open_folder(folder, name, header.path or name)
        self._way.append(_Folder(name=name, fd=fd, header=None if merged else header))

    def _link(self, folder: int, name: str, header: pb.FileHeader) -> None:
        temporary = _temporary()
        os.symlink(header.link_target, temporary, dir_fd=folder)
        try:
            if self._place.keep_owner:
                os.chown(temporary, header.uid, header.gid, dir_fd=folder, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        self.files += 1

    def _mode(self, header: pb.FileHeader) -> int:
        return header.mode if self._place.keep_owner else header.mode & 0o777 & ~self._umask


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """A directory on the way; with a header it is to be settled when it is left."""

    name: str
    fd: int
    header: pb.FileHeader | None = None


class _Rights(NamedTuple):
    """What a file gets; without an owner it is its writer's."""

    mode: int
    owner: tuple[int, int] | None


class _File:
    """A regular file that has no name yet, or a temporary one."""

    def __init__(self, folder: int, name: str, header: pb.FileHeader, rights: _Rights) -> None:
        self._folder, self._name = folder, name
        self._header = header
        self._rights = rights
        self._offset = self._written = 0
        self._temporary = ""
        self._fd = self._open()

    @property
    def complete(self) -> bool:
        return self._offset == self._header.size

    def add(self, hole: int, data: bytes) -> None:
        if self._offset + hole + len(data) > self._header.size:
            raise _misled(f"{_shown(self._header.path)} has more bytes than its size")
        self._offset += hole
        view = memoryview(data)
        while view:
            count = os.pwrite(self._fd, view, self._offset)
            view = view[count:]
            self._offset += count
            self._written = self._offset

    def publish(self) -> None:
        header = self._header
        if self._written < header.size:
            os.ftruncate(self._fd, header.size)
        # In this order: chown(2) takes set-id bits away.
        if self._rights.owner is not None:
            os.fchown(self._fd, *self._rights.owner)
        os.fchmod(self._fd, self._rights.mode)
        _set_time(self._fd, header)
        if not self._temporary and not self._try_link(self._name):
            self._temporary = _temporary()
            self._try_link(self._temporary)
        if self._temporary:
            os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._temporary = ""
        fd, self._fd = self._fd, -1
        os.close(fd)

    def abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        if self._temporary:
            with suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._folder)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            return os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=self._folder)
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
        self._temporary = _temporary()
        flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.open(self._temporary, flags, 0o600, dir_fd=self._folder)

    def _try_link(self, name: str) -> bool:
        try:
            os.link(
                f"/proc/self/fd/{self._fd}", name, dst_dir_fd=self._folder, follow_symlinks=True
            )
        except FileExistsError:
            return False
        return True


def _check(header: pb.FileHeader, *, first: bool) -> None:
    """Raises ShimError for what an honest guest would not send."""
    path = header.path
    if first != (not path):
        raise _misled("its copy does not begin with the path itself, or comes to it again")
    names = path.split("/") if path else []
    if "\0" in path or len(path.encode()) > _LONGEST_PATH or not _NO_NAMES.isdisjoint(names):
        raise _misled(f"{_shown(path)} is no path below the one that was asked for")
    link = header.type == pb.FILE_TYPE_LINK
    if header.type not in (pb.FILE_TYPE_FILE, pb.FILE_TYPE_DIRECTORY, pb.FILE_TYPE_LINK):
        raise _misled(f"{_shown(path)} is of an unknown type")
    if link and (not header.link_target or "\0" in header.link_target):
        raise _misled(f"{_shown(path)} is a link to nothing")
    odd_time = header.modified.nanoseconds >= _SECOND
    if header.size > _LARGEST or header.mode > 0o7777 or odd_time:
        raise _misled(f"{_shown(path)} has an impossible size, mode or time")


def _open_folder(above: int, name: str, path: str) -> int:
    try:
        return os.open(name, _ENTER, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            # It may be a link of this host's own; to follow it is not ours to decide.
            text = f"{_shown(path)}: {_shown(name)} is no directory, or a link to one"
            raise ShimError(Reason.BAD_FIELD, text, hint="remove it, or copy elsewhere") from error
        raise


def _set_time(fd: int, header: pb.FileHeader) -> None:
    if header.HasField("modified"):
        when = header.modified.seconds * _SECOND + header.modified.nanoseconds
        os.utime(fd, ns=(when, when))


def _temporary() -> str:
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _misled(what: str) -> ShimError:
    return ShimError(
        Reason.BAD_FIELD, f"the guest sent what no copy is made of, which was not written: {what}"
    )


def _shown(path: str) -> str:
    return repr(printable(path[:200]))

"""Wires between two VMs of one user: who has which end.

A wire is two sockets for datagrams in a directory of its own; what one QEMU sends to
the other's socket is one frame (`-netdev dgram`, QEMU 7.2). Neither serves the other:
with nobody at the other end frames are lost, as on a real wire.

    ROOT/.wires/NAME/   0, 1: the sockets; 0.lock, 1.lock: each holds its user's name

An end is its lock's holder's: the lock, flock(2), goes with the process, so the end of
a daemon that died is free. An end that is given back takes its files along.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.shim.errors import Reason, ShimError

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = ".wires"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ENDS = ("0", "1")

# sizeof(sockaddr_un.sun_path) is 108 with the final zero, unix(7).
_SOCKET_PATH_LIMIT = 107


def check_name(name: str) -> str:
    """Raises BAD_FIELD."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ShimError(
            Reason.BAD_FIELD,
            f"wire {name!r}: not a name",
            hint="1 to 64 letters, digits, '_', '.', '-'; both VMs name the same",
            fields={"field": "wire"},
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An end that is ours until `give_back`, or until this process ends."""

    local: Path
    remote: Path
    lock: int
    """Descriptor."""

    def give_back(self) -> None:
        """Once QEMU has closed the socket."""
        for file in (self.local, _lock_of(self.local)):
            file.unlink(missing_ok=True)
        os.close(self.lock)
        with contextlib.suppress(OSError):
            # Not while the other end is somebody's.
            self.local.parent.rmdir()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One wire of one user."""

    name: str
    directory: Path

    @classmethod
    def of(cls, state: Path, name: str) -> Wire:
        """`state`: the directory of all VMs. Raises BAD_FIELD."""
        wire = cls(name=check_name(name), directory=state / _FOLDER / name)
        over = len(os.fsencode(wire.directory / _ENDS[0])) - _SOCKET_PATH_LIMIT
        if over > 0:
            raise ShimError(
                Reason.BAD_FIELD,
                f"wire {name}: {wire.directory} is too long for its sockets, by {over} bytes",
                hint="choose a shorter name, or set INNKEEPER_STATE_DIR to a shorter path",
                fields={"field": "wire"},
            )
        return wire

    def take(self, user: str) -> End:
        """The first end that is free; `user` is told to whoever comes when both are taken.

        Raises ADDRESS_IN_USE, which says who has them, and HOST_LACKS.
        """
        try:
            self.directory.parent.mkdir(mode=0o700, exist_ok=True)
            while (end := self._try_take(user)) is None:
                pass
        except OSError as error:
            text = f"wire {self.name}: {error.strerror}: {error.filename}"
            raise ShimError(Reason.HOST_LACKS, text, fields={"wire": self.name}) from error
        return end

    def _try_take(self, user: str) -> End | None:
        """None to try again: one who had it gave it back, and removed it, meanwhile."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for mine, other in (_ENDS, _ENDS[::-1]):
            local = self.directory / mine
            with contextlib.suppress(BlockingIOError):
                lock = _lock(_lock_of(local))
                if lock is None:
                    return None
                os.ftruncate(lock, 0)
                os.pwrite(lock, user.encode(), 0)
                return End(local=local, remote=self.directory / other, lock=lock)
        raise self._taken([self._user(end) for end in _ENDS])

    def _user(self, end: str) -> str:
        try:
            return _lock_of(self.directory / end).read_text() or "another VM"
        except FileNotFoundError:
            return "another VM"

    def _taken(self, users: list[str]) -> ShimError:
        return ShimError(
            Reason.ADDRESS_IN_USE,
            f"wire {self.name}: has two ends, which {' and '.join(users)} have",
            hint="take another wire's name; for more than two VMs let one of them bridge wires",
            fields={"wire": self.name, "by": ", ".join(users)},
        )


def _lock_of(socket: Path) -> Path:
    return socket.with_name(f"{socket.name}.lock")


def _lock(file: Path) -> int | None:
    """None when it was removed before we had it. Raises BlockingIOError while it is
    somebody's."""
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), file.stat()):
            return fd
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None

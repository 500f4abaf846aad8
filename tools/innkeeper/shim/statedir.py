"""Where running VMs are: one directory per VM, locked by its daemon.

    ROOT/NAME/   lock, spec.json, vm.json, sockets, console.log, qemu.log, daemon.log
    ROOT/.failed/NAME/   logs of the last failed boot of that name

The lock on `lock` is held from before the daemon starts until after it ended,
so a directory whose lock is free belongs to nobody and may be removed, and one
name never has two daemons. It is an open file description lock, fcntl(2): the
daemon inherits it from its starter with the descriptor, and who only asks
(F_OFD_GETLK) does not have to take it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.shim.errors import Reason, ShimError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

# "..", hidden names (ours are hidden) and options must not pass.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}")

# sizeof(sockaddr_un.sun_path) is 108 with the final zero, unix(7).
_SOCKET_PATH_LIMIT = 107
_LONGEST_FILE = "channel.sock"

# What gRPC gives a meaning in the text of an address.
_NOT_IN_TARGETS = frozenset(",%?#")

# struct flock: l_type, l_whence, l_start, l_len (0: to the end), l_pid.
_FLOCK = "hhqqi"
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)

_FAILED = ".failed"
_KEPT_FAILURES = 10
_KEPT_LOGS = ("daemon.log", "qemu.log", "console.log", "console.log.boot", "console.log.1")


def check_name(name: str) -> str:
    """Raises BAD_FIELD for what can't be the name of a VM."""
    if not _NAME.fullmatch(name):
        raise ShimError(
            Reason.BAD_FIELD,
            f"VM name {name!r}: not a name",
            hint="1 to 48 letters, digits, '_', '.', '-', the first a letter or digit",
            fields={"field": "name"},
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class VmPaths:
    """The files of one VM."""

    directory: Path

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    @property
    def spec(self) -> Path:
        """What was asked for, as JSON; written by the starter."""
        return self.directory / "spec.json"

    @property
    def record(self) -> Path:
        """What runs, as JSON; written by the daemon."""
        return self.directory / "vm.json"

    @property
    def api(self) -> Path:
        """Where the daemon serves gRPC."""
        return self.directory / "api.sock"

    @property
    def guest(self) -> Path:
        """QEMU's end of the virtio-serial port."""
        return self.directory / "guest.sock"

    @property
    def channel(self) -> Path:
        """The bridge's end of the way to the agent, whatever the transport."""
        return self.directory / "channel.sock"

    @property
    def console_log(self) -> Path:
        return self.directory / "console.log"

    @property
    def qemu_log(self) -> Path:
        """What QEMU and its helpers say themselves."""
        return self.directory / "qemu.log"

    @property
    def daemon_log(self) -> Path:
        return self.directory / "daemon.log"


class Claim:
    """A name that is ours, with its empty directory, until `release` or the
    end of every process that holds `fd`."""

    def __init__(self, paths: VmPaths, fd: int) -> None:
        self.paths = paths
        self.fd = fd

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives up this process's hold; a daemon that inherited `fd` keeps its own."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def remove(self) -> None:
        """Removes the directory while the lock is still held."""
        shutil.rmtree(self.paths.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDir:
    """All VMs of one user."""

    root: Path

    @classmethod
    def default(cls, environ: Mapping[str, str] = os.environ) -> StateDir:
        """The directory of `INNKEEPER_STATE_DIR`, else the user's own run directory."""
        if named := environ.get("INNKEEPER_STATE_DIR"):
            return cls(root=Path(named))
        if runtime := environ.get("XDG_RUNTIME_DIR"):
            return cls(root=Path(runtime) / "innkeeper")
        user = Path("/run/user") / str(os.getuid())
        if user.is_dir():
            return cls(root=user / "innkeeper")
        return cls(root=Path(f"/tmp/innkeeper-{os.getuid()}"))  # checked in _make_root

    def paths(self, name: str) -> VmPaths:
        return VmPaths(directory=self.root / check_name(name))

    def failed(self, name: str) -> Path:
        """Where the logs of the last failed boot of `name` are."""
        return self.root / _FAILED / check_name(name)

    def claim(self, name: str) -> Claim:
        """Takes `name`; raises NAME_IN_USE while a daemon has it."""
        paths = self.paths(name)
        self._check_path(paths)
        try:
            self._make_root()
            while (fd := _lock(paths)) is None:
                pass
        except OSError as error:
            raise ShimError(
                Reason.HOST_LACKS,
                f"state directory {self.root}: {error.strerror}: {error.filename}",
                hint="set INNKEEPER_STATE_DIR to one that can be written",
            ) from error
        if fd < 0:
            raise ShimError(
                Reason.NAME_IN_USE,
                f"VM {name}: already runs",
                hint=f"stop it with: innkeeper vm stop {name}",
                fields={"name": name},
            )
        _empty(paths)
        return Claim(paths, fd)

    def running(self) -> Iterator[tuple[str, VmPaths]]:
        """VMs whose daemon lives, by name; removes what dead ones left."""
        if not self.root.is_dir():
            return
        for directory in sorted(self.root.iterdir()):
            if not _NAME.fullmatch(directory.name):
                continue
            paths = VmPaths(directory=directory)
            if is_locked(paths):
                yield directory.name, paths
            elif directory.is_dir():
                self._clean(directory.name)

    def keep_logs(self, name: str) -> Path:
        """Moves the logs of a VM that failed aside; the answer is where to."""
        target = self.failed(name)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for log in _KEPT_LOGS:
            source = self.paths(name).directory / log
            if source.exists():
                source.rename(target / log)
        self._forget_old_failures()
        return target

    def _forget_old_failures(self) -> None:
        """Names made up for one run come only once, so nothing else would remove them."""
        kept = sorted((self.root / _FAILED).iterdir(), key=_changed, reverse=True)
        for old in kept[_KEPT_FAILURES:]:
            shutil.rmtree(old, ignore_errors=True)

    def _clean(self, name: str) -> None:
        try:
            with self.claim(name) as claim:
                claim.remove()
        except ShimError as error:
            # Somebody starts a VM of that name just now.
            if error.reason is not Reason.NAME_IN_USE:
                raise

    def _make_root(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.root.lstat()
        mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not mine or found.st_mode & 0o022:
            raise ShimError(
                Reason.HOST_LACKS,
                f"state directory {self.root}: not a directory that only this user can write",
                hint="set INNKEEPER_STATE_DIR to one that is",
            )

    def _check_path(self, paths: VmPaths) -> None:
        if strange := _NOT_IN_TARGETS & set(str(paths.directory)):
            raise ShimError(
                Reason.HOST_LACKS,
                f"state directory {self.root}: gRPC cannot address sockets below it,"
                f" because of {' '.join(sorted(strange))}",
                hint="set INNKEEPER_STATE_DIR to a path without , % ? #",
            )
        longest = os.fsencode(paths.directory / _LONGEST_FILE)
        if len(longest) > _SOCKET_PATH_LIMIT:
            raise ShimError(
                Reason.BAD_FIELD,
                f"{paths.directory}: too long for the sockets below it,"
                f" by {len(longest) - _SOCKET_PATH_LIMIT} bytes",
                hint="choose a shorter name, or set INNKEEPER_STATE_DIR to a shorter path",
                fields={"field": "name"},
            )


def _changed(path: Path) -> float:
    """0 for what another process has removed meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0


def is_locked(paths: VmPaths) -> bool:
    """Whether a daemon, or a starter, holds the directory now."""
    try:
        fd = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    finally:
        os.close(fd)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _lock(paths: VmPaths) -> int | None:
    """The locked descriptor, -1 when somebody has it, None to try again."""
    paths.directory.mkdir(mode=0o700, exist_ok=True)
    try:
        fd = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, PermissionError):
        os.close(fd)
        return -1
    if not _is_same(fd, paths.lock):
        # The holder before us removed the directory between our open and lock.
        os.close(fd)
        return None
    return fd


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _empty(paths: VmPaths) -> None:
    for left in paths.directory.iterdir():
        if left.name != paths.lock.name:
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()

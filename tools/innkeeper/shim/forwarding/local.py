"""This host's sockets: listening, connecting, and who has a port that is taken."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import struct
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.transport.stream import SocketStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innkeeper.shim.forwarding.words import End

_BACKLOG = 128
_CONNECT_SECONDS = 20.0
_PORT_TRIES = 16
_LOCALHOST = ("127.0.0.1", "::1")
_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_RESET = struct.pack("ii", 1, 0)
_KIND = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
# sizeof(sockaddr_un.sun_path) is 108 with the final zero, unix(7).
_LONGEST_PATH = 107
_LISTEN = "0A"


class LocalStream(SocketStream):
    """A connection of this host."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._socket = sock
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def finish(self) -> None:
        # ENOTCONN: the other side has reset it, which reading tells.
        with contextlib.suppress(OSError):
            await super().finish()

    def reset(self) -> None:
        """Close it so that the other side sees a reset, where its kind of socket has one."""
        if self._socket.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()


class Listening:
    """Listening sockets of this host, all on the same port."""

    def __init__(self, sockets: tuple[socket.socket, ...], path: Path | None = None) -> None:
        self.sockets = sockets
        self._path = path
        self._found = path.lstat() if path is not None else None

    @property
    def port(self) -> int:
        """0 for a unix socket."""
        return 0 if self._path is not None else int(self.sockets[0].getsockname()[1])

    def close(self) -> None:
        """A path is removed while it is still this socket's."""
        if self._path is not None and self._found is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(self._path.lstat(), self._found):
                    self._path.unlink()
        for sock in self.sockets:
            sock.close()


def listen(end: End) -> Listening:
    """Raises ADDRESS_IN_USE, BAD_FIELD, HOST_LACKS."""
    if end.path:
        return _listen_at(Path(end.path))
    try:
        return Listening(_listen_tcp(end))
    except OSError as error:
        raise _not_bound(end, error) from error


async def accept(listener: socket.socket) -> socket.socket:
    """The next connection. Raises OSError, also for one that has gone again."""
    # Not by asyncio's sock_accept, which loses a connection that comes when it is cancelled.
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(listener.fileno(), arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(listener.fileno())
    sock, _ = listener.accept()
    return sock


async def connect(end: End) -> LocalStream:
    """Raises OSError, TimeoutError."""
    if end.path:
        return _connect_to(end.path)
    async with asyncio.timeout(_CONNECT_SECONDS):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(end.host, end.port, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        for family, _, _, _, address in found:
            sock = socket.socket(family, _KIND)
            try:
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return LocalStream(sock)
    raise failure or OSError(errno.EADDRNOTAVAIL, "no address", end.host)


def _connect_to(path: str) -> LocalStream:
    """A full queue is a failure (EAGAIN): nothing tells when there is room."""
    sock = socket.socket(socket.AF_UNIX, _KIND)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return LocalStream(sock)


def _listen_tcp(end: End) -> tuple[socket.socket, ...]:
    """Raises OSError."""
    if end.host == "localhost":
        for _ in range(_PORT_TRIES if end.port == 0 else 1):
            with contextlib.suppress(OSError):
                return _listen_on_each(end.port)
        return _listen_on_each(end.port)
    if end.host:
        six = _version(end) == 6
        return (_listening(socket.AF_INET6 if six else socket.AF_INET, end.host, end.port),)
    try:
        return (_listening(socket.AF_INET6, "::", end.port, both=True),)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
    return (_listening(socket.AF_INET, "0.0.0.0", end.port),)


def _version(end: End) -> int:
    try:
        return ip_address(end.host).version
    except ValueError:
        raise ShimError(
            Reason.BAD_FIELD,
            f"{end}: to listen, the host is an IP address of this host, or localhost",
            fields={"field": "forwards"},
        ) from None


def _listen_on_each(port: int) -> tuple[socket.socket, ...]:
    first = _listening(socket.AF_INET, _LOCALHOST[0], port)
    try:
        second = _listening(socket.AF_INET6, _LOCALHOST[1], first.getsockname()[1])
    except OSError as error:
        if error.errno in _ABSENT:
            return (first,)
        first.close()
        raise
    return (first, second)


def _listening(
    family: socket.AddressFamily, host: str, port: int, *, both: bool = False
) -> socket.socket:
    sock = socket.socket(family, _KIND)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _listen_at(path: Path) -> Listening:
    """For this user alone; a socket that nobody listens on is replaced."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ShimError(
            Reason.BAD_FIELD,
            f"{path}: too long for a socket, at most {_LONGEST_PATH} bytes are possible",
            fields={"field": "forwards"},
        )
    sock = socket.socket(socket.AF_UNIX, _KIND)
    try:
        _remove_stale(path)
        # fchmod before bind is what its file gets (unix(7)): nobody else can connect.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(str(path))
        sock.listen(_BACKLOG)
        return Listening((sock,), path)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ShimError(
                Reason.ADDRESS_IN_USE,
                f"{path}: somebody listens there already, or a file is there",
                hint="only a socket that nobody listens on is replaced",
            ) from error
        raise ShimError(Reason.HOST_LACKS, f"{path}: can't listen: {error.strerror}") from error


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        return
    with socket.socket(socket.AF_UNIX, _KIND) as probe:
        if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()


def _not_bound(end: End, error: OSError) -> ShimError:
    match error.errno:
        case errno.EADDRINUSE:
            who = ", ".join(holders(end.port)) or "somebody that this user can't see"
            return ShimError(
                Reason.ADDRESS_IN_USE,
                f"{end}: the port is taken on this host, by {who}",
                hint="choose another one, or 0 for one that is free",
                fields={"port": end.port},
            )
        case errno.EACCES:
            text = f"{end}: this user may not listen on that port of this host"
            return ShimError(Reason.HOST_LACKS, text, hint="choose one from 1024 on")
        case errno.EADDRNOTAVAIL:
            return ShimError(Reason.HOST_LACKS, f"{end}: this host has no such address")
        case _:
            return ShimError(Reason.HOST_LACKS, f"{end}: can't listen: {error.strerror}")


def holders(port: int, proc: Path = Path("/proc")) -> list[str]:
    """Processes that listen on a port of this host, as "nginx (pid 12)"; those of other
    users are seen by root alone."""
    wanted = {f"socket:[{inode}]" for inode in _listeners(port, proc)}
    found: list[str] = []
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(fd.readlink()) in wanted for fd in (process / "fd").iterdir()):
                found.append(f"{_name(process)} (pid {process.name})")
    return sorted(found)


def _listeners(port: int, proc: Path) -> Iterator[str]:
    """Inodes, from proc_net_tcp(5): local address in the second column, state in the fourth."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if int(columns[1].rpartition(":")[2], 16) == port and columns[3] == _LISTEN:
                yield columns[9]


def _name(process: Path) -> str:
    """A daemon of ours by its VM, anybody else by the command name."""
    words = (process / "cmdline").read_bytes().split(b"\0")
    if b"innkeeper.shim" in words and b"--directory" in words:
        directory = os.fsdecode(words[words.index(b"--directory") + 1])
        return f"the daemon of VM {Path(directory).name}"
    return (process / "comm").read_text().strip()

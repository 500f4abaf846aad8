"""resolv.conf, hosts and hostname of the sandbox: written, shown in /etc, kept.

The files are in the run directory (a tmpfs), whatever the guest's root is: it may be
read-only, lack /etc/resolv.conf, or have a link there that leads nowhere. Where the
guest's own /etc has a link to them (our image) that is all; elsewhere they are bound over
what is there. What can't be bound is a warning, and the sandbox goes on.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, exhausted, kernel_refused
from agent.core.fileops import BindMount, ContainerMount, Location
from agent.core.network import DnsState
from agent.core.undo import UndoStack
from agent.handlers.network import inplace
from agent.handlers.network.dnschanges import wish_lines
from agent.handlers.network.dnsrecord import record_of, state_from, state_of, texts_of_state
from agent.handlers.network.dnstexts import DnsTexts, texts_of
from agent.handlers.network.reportlines import capped
from agent.linux.mounting import UnmountFlag
from agent.linux.openat2 import open_in_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.fileops import FileWorkers
    from agent.core.network import DnsWish
    from agent.core.roots import Roots
    from agent.core.state import StateStore

log = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[DnsState], Awaitable[None] | None]

_KIND, _KEY = "network", "dns"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_RESTORE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsFiles:
    """Where the files are; their names are those of /etc."""

    directory: Path

    @property
    def resolv_conf(self) -> Path:
        return self.directory / "resolv.conf"

    @property
    def hosts(self) -> Path:
        return self.directory / "hosts"

    @property
    def hostname(self) -> Path:
        return self.directory / "hostname"

    def with_texts(self, texts: DnsTexts) -> tuple[tuple[Path, str], ...]:
        """Each file with what it shall hold."""
        return (
            (self.resolv_conf, texts.resolv_conf),
            (self.hosts, texts.hosts),
            (self.hostname, texts.hostname),
        )

    def __iter__(self) -> Iterator[Path]:
        return iter((self.resolv_conf, self.hosts, self.hostname))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostName:
    """The kernel's host name; tests have their own."""

    get: Callable[[], str] = socket.gethostname
    set: Callable[[str], None] = socket.sethostname


class Resolver:
    """Holds what the files say; `current` is None before the first Apply.

    One Apply at a time. `root` is the guest's root directory.
    """

    def __init__(
        self,
        roots: Roots,
        *,
        workers: FileWorkers,
        state: StateStore,
        host_name: HostName | None = None,
        root: Path = Path("/"),
    ) -> None:
        self.files = DnsFiles(directory=roots.run / "network")
        self._workers = workers
        self._state = state
        self._host_name = host_name or HostName()
        self._root = root
        self._listeners: list[Listener] = []
        self._lock = asyncio.Lock()
        self.current: DnsState | None = state_from(state.load(_KIND, _KEY))

    def listen(self, callback: Listener) -> None:
        """Have `callback` called, and awaited, after each Apply; what it raises is a warning."""
        self._listeners.append(callback)

    async def apply(self, wish: DnsWish, deadline: Deadline) -> DnsState:
        """Network.ApplyDns. Raises NO_SPACE or KERNEL_REFUSED; then all is as before."""
        async with self._lock:
            hostname = wish.hostname or self._host_name.get()
            texts = texts_of(wish, hostname)
            changes = [*wish_lines(self._wanted, wish), *self._renamings(hostname)]
            async with UndoStack("apply DNS") as undo:
                if wish.hostname:
                    self._rename(wish.hostname, undo)
                self._save(record_of(texts, wish), undo)
                written = self._write(texts, undo)
                undo.commit()
            state = state_of(texts, wish)
            warnings = await self._show(deadline)
            self.current = replace(state, warnings=(*warnings, *await self._tell(state)))
            # Told only where the wish does not tell it: somebody else wrote to them.
            anew = [f"{path.name}: written anew" for path in written]
            return replace(self.current, changed=capped(changes or anew))

    def state(self) -> DnsState:
        """Network.GetDns."""
        if self.current is None:
            return DnsState(resolv_conf="", hosts="", hostname=self._host_name.get())
        return self.current

    async def restore(self) -> None:
        """After a restart of the agent: finish what it was writing, and show it again."""
        async with self._lock:
            if self.current is None:
                return
            try:
                self._write(texts_of_state(self.current), UndoStack("restore DNS"))
            except AgentError as error:
                log.warning("the sandbox's DNS files are not restored: %s", error)
            warnings = await self._show(Deadline.after(_RESTORE_SECONDS))
            self.current = replace(self.current, warnings=warnings)

    async def clear(self, deadline: Deadline) -> None:
        """Forget it all, for the next sandbox: /etc is the guest's own again.

        The host name stays. Containers that are still there keep what they have. Raises
        OSError and AgentError of the worker that unmounts.
        """
        async with self._lock:
            for path in self.files:
                real = self._shown_at(path)
                if real not in (None, str(path)):
                    await self._workers.unmount(str(real), UnmountFlag.DETACH, deadline)
                path.unlink(missing_ok=True)
            self._state.delete(_KIND, _KEY)
            self.current = None

    @property
    def _wanted(self) -> DnsWish | None:
        return self.current.wanted if self.current is not None else None

    def _renamings(self, hostname: str) -> list[str]:
        """The kernel may have been given another name than the file's, and so may the file."""
        names = [self._host_name.get(), *([self.current.hostname] if self.current else [])]
        before = next((name for name in names if name != hostname), None)
        return [] if before is None else [f"hostname {before} -> {hostname}"]

    def _rename(self, hostname: str, undo: UndoStack) -> None:
        before = self._host_name.get()
        if before == hostname:
            return
        try:
            self._host_name.set(hostname)
        except OSError as error:
            raise kernel_refused(error, doing=f"set the host name {hostname}") from error
        undo.push(f"set the host name {before}", lambda: self._host_name.set(before))

    def _save(self, record: dict[str, Any], undo: UndoStack) -> None:
        before = self._state.load(_KIND, _KEY)
        if before == record:
            return

        def back() -> None:
            if before is None:
                self._state.delete(_KIND, _KEY)
            else:
                self._state.save(_KIND, _KEY, before)

        undo.push("the saved state", back)
        self._state.save(_KIND, _KEY, record)

    def _write(self, texts: DnsTexts, undo: UndoStack) -> list[Path]:
        """Those that held something else."""
        written = []
        for path, text in self.files.with_texts(texts):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                before = inplace.read(path)
                if before == text:
                    continue
                undo.push(f"what {path} held", partial(_put_back, path, before))
                inplace.rewrite(path, text)
            except OSError as error:
                raise _not_written(error, path) from error
            written.append(path)
        return written

    async def _show(self, deadline: Deadline) -> tuple[str, ...]:
        """Have them in the guest's own /etc; what can't be, as lines."""
        warnings = []
        for path in self.files:
            place = f"/etc/{path.name}"
            try:
                await self._bind(path, place, deadline)
            except (OSError, AgentError) as error:
                warnings.append(_warning(error, place, path))
        return tuple(warnings)

    async def _bind(self, path: Path, place: str, deadline: Deadline) -> None:
        if self._shown_at(path) is not None:
            return
        target = ContainerMount(destination=place, source=str(path))
        await self._workers.make_targets(str(self._root), [target], deadline)
        with self._opened(place) as fd:
            real = _path_of(fd)
        await self._workers.mount(BindMount(source=Location(root=str(path))), real, deadline)

    def _shown_at(self, path: Path) -> str | None:
        """Where the guest's /etc leads, if that is this file: its own path, or a mount's."""
        try:
            with self._opened(f"/etc/{path.name}") as fd:
                same = os.path.samestat(os.fstat(fd), path.stat())
                return _path_of(fd) if same else None
        except OSError:
            return None

    @contextmanager
    def _opened(self, place: str) -> Iterator[int]:
        """What a path of the guest's root leads to, with its links followed inside that root."""
        root = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = open_in_root(root, place, os.O_PATH)
        finally:
            os.close(root)
        try:
            yield fd
        finally:
            os.close(fd)

    async def _tell(self, state: DnsState) -> tuple[str, ...]:
        warnings = []
        for listener in self._listeners:
            try:
                outcome = listener(state)
                if inspect.isawaitable(outcome):
                    await outcome
            except (OSError, AgentError) as error:
                warnings.append(str(error))
        return tuple(warnings)


def _path_of(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def _put_back(path: Path, before: str | None) -> None:
    if before is None:
        path.unlink(missing_ok=True)
    else:
        inplace.rewrite(path, before)


def _not_written(error: OSError, path: Path) -> AgentError:
    if error.errno in _FULL:
        return exhausted(
            f"no space left to write {path}: the run directory is full",
            reason=Reason.NO_SPACE,
            object=path,
        )
    return kernel_refused(error, doing=f"write {path}")


def _warning(error: OSError | AgentError, place: str, path: Path) -> str:
    """One line; the files are written all the same."""
    said = error.message if isinstance(error, AgentError) else error.strerror or str(error)
    return f"{place}: {said}; what it shall hold is in {path}"

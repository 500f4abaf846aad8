"""Decides which package versions an image is made of, and has them in the cache.

The lock decides. Where it does not fit (another request), or the mirror no
longer has one of its packages and neither has the cache, packages are resolved
anew from the mirror, with a warning that names what changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.image.layers import key_of
from innkeeper.image.lock import Lock, LockEntry, Role, changes
from innkeeper.shim.commands import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from innkeeper.image.archive import Archive, Deb
    from innkeeper.image.debs import DebCache
    from innkeeper.image.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to resolve: all of it is in the lock's first line."""

    packages: tuple[str, ...]
    tools: tuple[str, ...]
    """In the build root only, also where the image would depend on them."""
    left_out: frozenset[str]
    kernel: str | None
    """A meta package; None where the kernel comes from elsewhere."""

    @property
    def words(self) -> tuple[str, ...]:
        kernel = [f"kernel:{self.kernel}"] if self.kernel else []
        tools = [f"+{name}" for name in self.tools]
        left_out = [f"-{name}" for name in sorted(self.left_out)]
        return (*sorted(self.packages), *sorted(tools), *left_out, *kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    """`resolved` is where locks made here are kept, so that the next build finds them."""

    cache: DebCache
    resolved: Path
    open_archive: Callable[[], Archive]
    """Gives an archive with fresh indexes; called only when something is missing."""
    progress: Progress

    def from_lock(self, request: Request, recorded: Lock | None) -> Lock:
        """The lock to build from; all its packages are in the cache then."""
        kept = self.resolved / f"{key_of(request=request.words, recorded=_text(recorded))}.lock"
        if kept.exists():
            recorded = Lock.parse(kept.read_text(), source=str(kept))
        if recorded is not None and recorded.request == request.words:
            missing = self.cache.missing(recorded.entries)
            if not missing:
                return recorded
            archive = self.open_archive()
            gone = _gone(missing, archive)
            if not gone:
                self.cache.fetch(missing, archive)
                return recorded
            names = ", ".join(entry.pin for entry in gone)
            self.progress.warn(f"the mirror no longer has {names}; resolving packages anew")
        lock = self.anew(request, recorded)
        self.resolved.mkdir(parents=True, exist_ok=True)
        kept.write_text(lock.format())
        return lock

    def anew(self, request: Request, before: Lock | None) -> Lock:
        """Resolves from the mirror; keeps the versions of `before` where all are still there."""
        archive = self.open_archive()
        pins = self._usable_pins(before, request, archive)
        image = self._resolve(archive, request.packages, pins)
        both = self._resolve(archive, (*request.packages, *request.tools), pins)
        names = {deb.name for deb in image}.difference(request.tools)
        entries = [_entry(deb, Role.IMAGE) for deb in image if deb.name in names]
        entries += [_entry(deb, Role.TOOL) for deb in both if deb.name not in names]
        entries = [entry for entry in entries if entry.name not in request.left_out]
        if request.kernel:
            entries.append(_entry(archive.kernel_of(request.kernel), Role.KERNEL))
        lock = Lock(request=request.words, entries=tuple(sorted(entries)))
        missing = self.cache.missing(lock.entries)
        if missing:
            self.cache.fetch(missing, archive)
        if before is not None and before.request == request.words:
            for change in changes(before.entries, lock.entries):
                self.progress.note(f"package {change}")
        return lock

    def _usable_pins(
        self, before: Lock | None, request: Request, archive: Archive
    ) -> dict[str, str]:
        """Versions by name. None where the request is the same: then it is time for new ones."""
        if before is None or before.request == request.words:
            return {}
        entries = before.of(Role.IMAGE, Role.TOOL)
        if _gone(entries, archive):
            return {}
        return {entry.name: entry.version for entry in entries}

    def _resolve(self, archive: Archive, wanted: Sequence[str], pins: dict[str, str]) -> list[Deb]:
        fresh = archive.resolve(wanted)
        if not pins:
            return fresh
        pinned = [f"{deb.name}={pins[deb.name]}" for deb in fresh if deb.name in pins]
        free = [name for name in wanted if name not in pins]
        try:
            return archive.resolve([*pinned, *free])
        except CommandError as error:
            self.progress.warn(f"versions of the lock do not fit the request: {error.stderr_tail}")
            return fresh


def _gone(entries: Sequence[LockEntry], archive: Archive) -> list[LockEntry]:
    found = {deb.sha256 for deb in archive.find([entry.pin for entry in entries])}
    return [entry for entry in entries if entry.sha256 not in found]


def _entry(deb: Deb, role: Role) -> LockEntry:
    return LockEntry(
        role=role,
        name=deb.name,
        version=deb.version,
        architecture=deb.architecture,
        sha256=deb.sha256,
    )


def _text(lock: Lock | None) -> str:
    return lock.format() if lock else ""

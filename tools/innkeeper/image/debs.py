"""Packages on disk: a cache by hash, and the build root that mmdebstrap makes of them."""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.image.aptconf import SUITE
from innkeeper.image.environment import fixed_environment
from innkeeper.image.model import ImageError
from innkeeper.image.tree import Tree, read_tar
from innkeeper.shim.commands import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from innkeeper.image.archive import Archive
    from innkeeper.image.lock import LockEntry

_EXTRACT = 600.0
_USER_HINT = "as a user, mmdebstrap needs newuidmap (package uidmap) and a line in /etc/subuid"
# Packages of Debian 13 expect these links; base-files makes them when it is *installed*.
_MERGED_USR = 'for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d"; done'


@dataclass(frozen=True, slots=True, kw_only=True)
class DebCache:
    """Files named by their SHA-256 in one directory."""

    directory: Path

    def path(self, entry: LockEntry) -> Path:
        return self.directory / f"{entry.sha256}.deb"

    def missing(self, entries: Iterable[LockEntry]) -> list[LockEntry]:
        return [entry for entry in entries if not self.path(entry).exists()]

    def fetch(self, entries: Sequence[LockEntry], archive: Archive) -> None:
        """Raises `ImageError` for a file that is not what the lock says."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.directory, prefix=".fetch-") as name:
            files = archive.fetch([entry.pin for entry in entries], Path(name))
            by_hash = {_sha256(file): file for file in files}
            for entry in entries:
                if entry.sha256 not in by_hash:
                    raise ImageError(
                        f"{entry.pin}: the mirror's file is not the one in the lock",
                        hint="resolve anew: innkeeper image build --update-lock",
                    )
                by_hash[entry.sha256].rename(self.path(entry))


def make_build_root(
    entries: Sequence[LockEntry], cache: DebCache, target: Path, log: Callable[[str], None]
) -> None:
    """Unpacks packages into the tar file `target`; no script of theirs runs.

    mmdebstrap knows how to be root here (really, or in a user namespace). It
    is given an archive of exactly the packages of the lock, without their
    dependencies, which were resolved before.
    """
    with _readable_place() as place:
        stanzas = [_publish(entry, cache, place) for entry in entries]
        (place / "Packages").write_text("\n".join(stanzas))
        (place / "Packages").chmod(0o644)
        names = ",".join(entry.name for entry in entries)
        run(
            [
                *("mmdebstrap", "--variant=extract", "--format=tar"),
                *(f"--setup-hook={_MERGED_USR}", f"--include={names}"),
                *(SUITE, target, f"deb [trusted=yes arch=amd64] copy:{place} ./"),
            ],
            deadline=_EXTRACT,
            env=fixed_environment(TMPDIR=str(place)),
            stream_to=log,
            hint=_USER_HINT,
        )


@contextmanager
def _readable_place() -> Iterator[Path]:
    """A temporary directory that other users may read.

    In a user namespace mmdebstrap is another user: in a home that is closed to
    others it would find nothing. What it leaves when it is killed may be that user's,
    and stays.
    """
    place = Path(tempfile.mkdtemp(prefix="innkeeper-debs-", dir=_open_place()))
    try:
        place.chmod(0o755)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _open_place() -> Path:
    """TMPDIR, unless other users may not pass on the way to it (libpam-tmpdir makes such)."""
    usual = Path(tempfile.gettempdir())
    candidates = (usual, Path("/tmp"), Path("/var/tmp"))
    return next((place for place in candidates if _passable(place)), usual)


def _passable(place: Path) -> bool:
    resolved = place.resolve()
    return all(each.stat().st_mode & stat.S_IXOTH for each in (resolved, *resolved.parents))


def contents(deb: Path) -> Tree:
    """What a package unpacks to."""
    data = run(["dpkg-deb", "--fsys-tarfile", deb], deadline=_EXTRACT).stdout
    return read_tar(io.BytesIO(data))


def _publish(entry: LockEntry, cache: DebCache, repository: Path) -> str:
    file = repository / f"{entry.sha256}.deb"
    shutil.copyfile(cache.path(entry), file)
    file.chmod(0o644)
    return (
        f"Package: {entry.name}\nVersion: {entry.version}\n"
        f"Architecture: {entry.architecture}\nFilename: ./{file.name}\n"
        f"Size: {file.stat().st_size}\nSHA256: {entry.sha256}\n"
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()

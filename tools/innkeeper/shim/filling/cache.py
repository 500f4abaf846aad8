"""Made disks, kept by what they were made of, and bounded: the least used go first."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "INNKEEPER_CACHE_DIR"
BOUND = 10 << 30

_ENDING = ".img"
_HALF_MADE = ".half-made-"
# One that is older was left by a maker that was killed.
_ABANDONED = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What was removed, and what is left."""

    count: int
    freed: int
    """Bytes."""
    left: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCache:
    """One user's."""

    root: Path

    @classmethod
    def default(cls, environ: Mapping[str, str] = os.environ) -> DiskCache:
        """Below `INNKEEPER_CACHE_DIR`, else the user's own cache directory."""
        named = environ.get(VARIABLE)
        if named:
            return cls(root=Path(named).absolute() / "disks")
        home = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return cls(root=Path(home) / "innkeeper" / "disks")

    def get(self, key: str) -> Path | None:
        """A disk that is there, which counts as used now."""
        path = self.root / f"{key}{_ENDING}"
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
            return path
        return None

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory for what is being made, on the cache's own file system."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.root, prefix=_HALF_MADE) as folder:
            yield Path(folder)

    def keep(self, key: str, made: Path) -> Path:
        """Whole or not at all; of two that made the same at once either's will do."""
        path = self.root / f"{key}{_ENDING}"
        made.chmod(0o444)
        made.rename(path)
        self.clear(BOUND, but=path)
        return path

    def clear(self, bound: int, *, but: Path | None = None) -> Cleared:
        """Removes what was used least lately until all takes at most `bound` bytes of disk.
        A disk that is plugged in is only unlinked: QEMU has it open."""
        self._clear_half_made()
        disks = sorted(self._disks(), key=lambda each: each[1].st_mtime)
        left = sum(status.st_blocks * 512 for _, status in disks)
        count = freed = 0
        for path, status in disks:
            if left <= bound:
                break
            if path == but:
                continue
            path.unlink(missing_ok=True)
            size = status.st_blocks * 512
            left, freed, count = left - size, freed + size, count + 1
        return Cleared(count=count, freed=freed, left=left)

    def _disks(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.root.glob(f"*{_ENDING}"):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()

    def _clear_half_made(self) -> None:
        for path in self.root.glob(f"{_HALF_MADE}*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    _remove(path)


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()

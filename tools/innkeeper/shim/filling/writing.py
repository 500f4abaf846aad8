"""A tree as a tar file: the same tree gives the same bytes, with holes where it has zeros."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.shim.filling.trees import Tree

_BLOCK = 4096
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What is in the tar."""

    digest: str
    blocks: int
    """Of 4096 bytes, that the files' content takes, and a block for each directory."""
    inodes: int
    newest: int
    """The latest time of a change, in seconds."""


class _Holes:
    """Takes what tarfile writes: hashes all of it, and seeks over zeros."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        if len(data) >= _BLOCK and data == bytes(len(data)):
            self._file.seek(len(data), 1)
        else:
            self._file.write(data)
        return len(data)

    def tell(self) -> int:
        return self._file.tell()

    def finish(self) -> str:
        self._file.truncate(self._file.tell())
        return self._digest.hexdigest()


def write_tar(tree: Tree, target: Path) -> Written:
    """Raises OSError, also for a file that became shorter while it was read."""
    blocks = inodes = newest = 0
    with target.open("wb") as file:
        holes = _Holes(file)
        with tarfile.TarFile(
            fileobj=cast("IO[bytes]", holes),
            mode="w",
            format=tarfile.PAX_FORMAT,
            copybufsize=_PIECE,
        ) as archive:
            for info, node in tree.members():
                if node.content is None:
                    archive.addfile(info)
                else:
                    with node.content() as content:
                        archive.addfile(info, content)
                inodes += not info.islnk()
                newest = max(newest, int(info.mtime))
                blocks += -(-info.size // _BLOCK) + info.isdir() + (len(info.linkname) > 59)
        return Written(digest=holes.finish(), blocks=blocks, inodes=inodes, newest=newest)

"""Parts and frames of copies, as a host would send them, and what is there afterwards."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from innkeeper.v1 import files_pb2 as pb


def file_part(path: str, data: bytes, *, mode: int = 0o644, **more: object) -> pb.FilePart:
    """A whole small file."""
    return pb.FilePart(header=header(path, size=len(data), mode=mode, **more), data=data)


def header(path: str, **more: object) -> pb.FileHeader:
    """A regular file's, owned by whoever runs the test."""
    fields: dict[str, object] = {
        "type": pb.FILE_TYPE_FILE,
        "mode": 0o644,
        "uid": os.getuid(),
        "gid": os.getgid(),
    }
    return pb.FileHeader(path=path, **{**fields, **more})  # type: ignore[arg-type]


def folder_part(path: str, mode: int = 0o755, **more: object) -> pb.FilePart:
    return pb.FilePart(header=header(path, type=pb.FILE_TYPE_DIRECTORY, mode=mode, **more))


def link_part(path: str, target: str) -> pb.FilePart:
    return pb.FilePart(header=header(path, type=pb.FILE_TYPE_LINK, mode=0o777, link_target=target))


def frames(start: pb.CopyStart, *batches: Iterable[pb.FilePart]) -> Iterator[pb.CopyInRequest]:
    """The start alone, then each batch in a frame."""
    yield pb.CopyInRequest(start=start)
    for batch in batches:
        yield pb.CopyInRequest(parts=batch)


def tree(top: Path) -> dict[str, object]:
    """All below `top` by path: bytes of files, targets of links, modes of directories."""
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[name] = f"-> {os.readlink(path)}"
        elif stat.S_ISDIR(mode):
            found[name] = stat.S_IMODE(mode)
        else:
            found[name] = path.read_bytes()
    return found


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)

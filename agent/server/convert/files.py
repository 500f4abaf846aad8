"""Protobuf messages of Files and what copies are made of.

There is a part for each file of a tree, so checks are kept cheap: the common case of a
good entry is looked at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.copies import CopyInRules, CopyOutRules
from agent.core.errors import invalid
from agent.core.names import check_id
from agent.handlers.guest.files import ContainerFiles, StorageFiles
from agent.linux.copyframes import LONGEST_PATH, Entry, EntryType, Time, pack_part, unpack_parts
from agent.server.convert import fields
from innkeeper.v1 import files_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.copies import Copied, CopyFrame
    from agent.handlers.guest.files import FileRoot

_MODES = 0o7777
_DIRECTORY_MODE = 0o755
# (uid_t) -1 means "leave it" to chown(2).
_NOBODY = 0xFFFFFFFF
_LARGEST = (1 << 63) - 1
_LARGEST_TOLD = (1 << 64) - 1
_SECOND = 1_000_000_000
_NO_NAMES = frozenset({"", ".", ".."})
_TYPES = {
    pb.FILE_TYPE_FILE: EntryType.FILE,
    pb.FILE_TYPE_DIRECTORY: EntryType.DIRECTORY,
    pb.FILE_TYPE_LINK: EntryType.LINK,
}

_NUMBERS = {kind: number for number, kind in _TYPES.items()}


def file_root(root: pb.FileRoot, field: str) -> FileRoot:
    match fields.choice(root, "root", field):
        case "storage_id":
            return StorageFiles(storage_id=check_id("storage", root.storage_id))
        case _:
            return ContainerFiles(container_id=check_id("container", root.container_id))


def start_path(path: str, field: str) -> str:
    """A path below a root, without what changes nothing: "/", "//" and "."."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names or "\0" in path or len(path.encode()) > LONGEST_PATH:
        raise invalid(
            f"{field}: {path[:200]!r} has '..' or a NUL in it, or is longer than {LONGEST_PATH}"
            " bytes",
            field=field,
            path=path,
        )
    return "/".join(names)


def copy_in_rules(start: pb.CopyStart) -> CopyInRules:
    mode = start.directory_mode or _DIRECTORY_MODE
    if mode > _MODES:
        raise invalid(
            f"start.directory_mode: {mode:o} is no mode, at most {_MODES:o} is one",
            field="start.directory_mode",
        )
    return CopyInRules(directory_mode=mode, only_new=start.only_new)


def copy_out_rules(request: pb.CopyOutRequest) -> CopyOutRules:
    return CopyOutRules(
        offset=request.offset, recursive=request.recursive, follow_link=request.follow_link
    )


def batch(parts: Iterable[pb.FilePart]) -> list[bytes]:
    """A message's parts, as a copy's worker takes them. Raises BAD_FIELD."""
    pieces: list[bytes] = []
    for part in parts:
        entry = _entry(part.header) if part.HasField("header") else None
        pieces += pack_part(entry, part.hole, part.data)
    return pieces


def copied(result: Copied) -> pb.CopyInResponse:
    return pb.CopyInResponse(
        # Three sparse files may be more than the field can say.
        size=min(result.size, _LARGEST_TOLD),
        files=result.files,
        directories=result.directories,
        links=result.links,
    )


def copy_out_frame(frame: CopyFrame) -> pb.CopyOutResponse:
    parts = [
        pb.FilePart(header=None if entry is None else _header(entry), hole=hole, data=bytes(data))
        for entry, hole, data in unpack_parts(frame.parts)
    ]
    return pb.CopyOutResponse(parts=parts, left_out=frame.left_out)


def _header(entry: Entry) -> pb.FileHeader:
    when = entry.modified or Time(0, 0)
    return pb.FileHeader(
        path=entry.path,
        type=_NUMBERS[entry.type],
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        size=entry.size,
        modified=pb.FileTime(seconds=when.seconds, nanoseconds=when.nanoseconds),
        link_target=entry.target,
    )


def _entry(header: pb.FileHeader) -> Entry:
    kind = _TYPES.get(header.type)
    mode, uid, gid, size, path = header.mode, header.uid, header.gid, header.size, header.path
    if kind is None or mode > _MODES or _NOBODY in (uid, gid) or size > _LARGEST:
        raise _bad(header)
    if path and not _is_below(path):
        raise _bad_path(header)
    target = header.link_target
    if kind is not EntryType.FILE and size:
        raise invalid(f"{path!r}: only a regular file has a size", field="size", path=path)
    if not _fits(target) or (kind is EntryType.LINK and not target):
        raise invalid(
            f"{path!r}: its link_target is none: empty, with a NUL, or over {LONGEST_PATH} bytes",
            field="link_target",
            path=path,
        )
    modified = _time(header) if header.HasField("modified") else None
    return Entry(path, kind, mode, uid, gid, size, modified, target)


def _fits(text: str) -> bool:
    """Whether a path or a link's target may be that text."""
    short = len(text) <= LONGEST_PATH // 4
    return "\0" not in text and (short or len(text.encode()) <= LONGEST_PATH)


def _is_below(path: str) -> bool:
    return _fits(path) and _NO_NAMES.isdisjoint(path.split("/"))


def _time(header: pb.FileHeader) -> Time:
    seconds, nanoseconds = header.modified.seconds, header.modified.nanoseconds
    if nanoseconds >= _SECOND:
        raise invalid(
            f"{header.path!r}: modified has {nanoseconds} nanoseconds, a second has 10^9",
            field="modified",
            path=header.path,
        )
    return Time(seconds, nanoseconds)


def _bad(header: pb.FileHeader) -> Exception:
    path = header.path
    if header.type not in _TYPES:
        hint = "devices, fifos and sockets are not copied"
        text = f"{path!r}: type {header.type} is no file, directory or link"
        return invalid(text, field="type", path=path, hint=hint)
    if header.mode > _MODES:
        text = f"{path!r}: mode {header.mode:o} is none, at most {_MODES:o} is one"
        return invalid(text, field="mode", path=path)
    if header.size > _LARGEST:
        return invalid(f"{path!r}: no file has {header.size} bytes", field="size", path=path)
    return invalid(f"{path!r}: {_NOBODY} is no user or group", field="uid", path=path)


def _bad_path(header: pb.FileHeader) -> Exception:
    return invalid(
        f"path {header.path[:200]!r}: an entry's path is relative, at most {LONGEST_PATH} bytes,"
        " and has no empty name, '.', '..' or NUL",
        field="path",
        path=header.path,
    )

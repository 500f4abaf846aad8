"""A file system for a disk that holds nothing.

What is on a disk is blkid's to say (low-level probe, blkid(8)); its exit status 2 means
nothing, but also a disk that could not be read, so the places it looks at are
read first. And blkid does not know everything: an encrypted disk without a header, a
database's own format. So a disk is new only where its first MiB was never written.

A mkfs that was ended half-way leaves the disk so that the same request works again:
- mke2fs writes its superblock last, but others of its blocks in the first MiB before,
  which nothing tells from somebody's data. So when it has failed, what was zeros before
  is made zeros again. That is undone by nobody when the guest itself dies in the
  middle of it (a fraction of a second): the disk is refused from then on.
- mkfs.btrfs begins with a superblock of another magic, and writes the right one last.
- mkfs.xfs begins with a superblock that says `sb_inprogress` (xfs_sb in fs/xfs/libxfs/
  xfs_format.h), and unsays it last. blkid calls it xfs all the same, and the
  kernel refuses to mount it: it counts as nothing here, and mkfs is told to go on.
One that is still at work holds the disk exclusively, so that a second one refuses, and
so that nothing is cleared under it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core import commands
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, kernel_refused, wrong_state
from agent.handlers.storage import mappings

if TYPE_CHECKING:
    from agent.core.model import DeviceNode
    from agent.handlers.storage.base import Tools

log = logging.getLogger(__name__)

_BLKID = ("blkid", "-p", "-o", "export")
_NOTHING, _AMBIVALENT = 2, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """How to make a file system; `force` lets it write over an unfinished one of its own.

    `least`: bytes that it wants the disk to have.
    """

    argv: tuple[str, ...]
    force: str
    package: str
    least: int = 0


# None discards the whole disk first (-K, nodiscard): a new disk has nothing to give back,
# and on some hosts it takes minutes. ext4 leaves inode tables and journal to the kernel,
# which clears them in the background after the mount: clearing is 1.6 % of the disk's
# size in writes, and mkfs would wait for them. No blocks are kept for root (-m 0): the
# workload gets the size that it was promised.
_EXT4 = "nodiscard,lazy_itable_init=1,lazy_journal_init=1"
MAKERS = {
    "ext4": Maker(
        argv=("mkfs.ext4", "-q", "-m", "0", "-E", _EXT4),
        force="-F",
        package="e2fsprogs",
    ),
    # Since xfsprogs 5.19, of any disk (mkfs.xfs(8)).
    "xfs": Maker(argv=("mkfs.xfs", "-q", "-K"), force="-f", package="xfsprogs", least=300 << 20),
    "btrfs": Maker(argv=("mkfs.btrfs", "-q", "-K"), force="-f", package="btrfs-progs"),
}

# Where superblocks of the kinds above are, and of most others: in the first 128 KiB, and
# in the last 64 KiB (blkid looks there for RAID members and the second GPT).
_HEAD = 128 * 1024
_TAIL = 64 * 1024
_PIECE = 16 * 1024
_XFS_MAGIC, _XFS_IN_PROGRESS = b"XFSB", 126
_BTRFS_MAGIC_AT, _BTRFS_TEMPORARY = 0x10040, b"!BHRfS_M"
# Of a whole one of each kind: s_magic in struct ext4_super_block, xfs_sb, btrfs_super_block.
_MAGICS = {1080: b"\x53\xef", 0: _XFS_MAGIC, _BTRFS_MAGIC_AT: b"_BHRfS_M"}

# How much of a disk must never have been written, so that it counts as new.
_UNWRITTEN = 1 << 20

# Clearing what a failed mkfs left is not the request's time any more.
_CLEAR_SECONDS = 10.0
_BANNER = re.compile(r"(mke2fs|mkfs\.[a-z0-9]+|btrfs-progs) v?[0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """The disk under an encrypted device, and where on it the encrypted data begin (bytes)."""

    node: DeviceNode
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a disk holds: a type, a partition table, both "" for nothing."""

    type: str = ""
    table: str = ""
    unfinished: str = ""

    def __str__(self) -> str:
        words = [self.type] if self.type else []
        return " and ".join([*words, *([f"a {self.table} partition table"] if self.table else [])])


async def format_if_empty(
    tools: Tools,
    node: DeviceNode,
    fs_type: str,
    deadline: Deadline,
    *,
    read_only: bool,
    below: Below | None = None,
) -> bool:
    """Make a file system on a disk that holds nothing; True when one was made.

    Also where nothing is recognised, its first MiB must never have been written: it may be
    encrypted. `below` is needed for a decrypted one: it looks full of noise when it is
    new, and when its key is wrong. Raises FORMAT_REFUSED naming what is there,
    OPERATION_TIMED_OUT.
    """
    maker = MAKERS.get(fs_type)
    if maker is None:
        raise _refused(node, f"{fs_type} is not made here: known are {', '.join(MAKERS)}")
    found = await _look(tools, node, deadline)
    if found.type == fs_type and not found.unfinished:
        return False
    if found.type not in ("", found.unfinished) or found.table:
        raise _refused(node, f"it is not empty: it holds {found}", found=str(found))
    if found.unfinished not in ("", fs_type):
        raise _refused(node, f"it holds a {found.unfinished} that was not finished")
    if read_only or mappings.is_read_only(tools.board.tree, node):
        raise _refused(node, "it is empty, and not to be written to: there is nothing to mount")
    _check_size(tools, node, fs_type, maker)
    if found.unfinished:
        await _make(node, maker, deadline, force=True)
        return True
    await _check_unwritten(tools, node, below, deadline)
    try:
        await _make(node, maker, deadline, force=False)
    except AgentError:
        await _clear(tools, node)
        raise
    return True


def _check_size(tools: Tools, node: DeviceNode, fs_type: str, maker: Maker) -> None:
    size = mappings.size_of(tools.board.tree, node)
    if size < maker.least:
        raise _refused(
            node,
            f"it has {size >> 20} MiB, and {fs_type} needs at least {maker.least >> 20}",
            hint="give it a larger disk, or ask for ext4",
        )


async def _look(tools: Tools, node: DeviceNode, deadline: Deadline) -> _Found:
    head = await _read_ends(tools, node, deadline)
    argv = (*_BLKID, node.path)
    result = await _run(node, argv, "util-linux", deadline)
    if result.code == _AMBIVALENT:
        raise _refused(
            node, "blkid finds signatures of several kinds on it", hint="wipefs(8) lists them"
        )
    if result.code not in (0, _NOTHING):
        raise _refused(node, str(commands.CommandError(result)))
    values = parse_export(result.stdout)
    return _Found(
        type=values.get("TYPE", ""),
        table=values.get("PTTYPE", ""),
        unfinished=unfinished(head),
    )


def parse_export(output: bytes) -> dict[str, str]:
    """The KEY=VALUE lines of `blkid -o export`.

    PART_ENTRY_* are of the table that the partition is in, and there for an empty one too.
    """
    lines = output.decode(errors="replace").splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines) if key}


def unfinished(head: bytes) -> str:
    """The type of a file system that its mkfs has not finished, "" for anything else."""
    if head.startswith(_XFS_MAGIC) and head[_XFS_IN_PROGRESS : _XFS_IN_PROGRESS + 1] != b"\0":
        return "xfs"
    end = _BTRFS_MAGIC_AT + len(_BTRFS_TEMPORARY)
    return "btrfs" if head[_BTRFS_MAGIC_AT:end] == _BTRFS_TEMPORARY else ""


async def _read_ends(tools: Tools, node: DeviceNode, deadline: Deadline) -> bytes:
    """The disk's first bytes; its last ones are read as well."""
    size = mappings.size_of(tools.board.tree, node)
    head = [await _read(tools, node, at, deadline) for at in range(0, min(size, _HEAD), _PIECE)]
    for at in range(max(0, size - _TAIL), size, _PIECE):
        await _read(tools, node, at, deadline)
    return b"".join(head)


async def _read(tools: Tools, node: DeviceNode, offset: int, deadline: Deadline) -> bytes:
    size = mappings.size_of(tools.board.tree, node)
    try:
        return await tools.files.read_disk(node.path, offset, min(_PIECE, size - offset), deadline)
    except OSError as error:
        doing = f"{node.path} cannot be read at byte {offset}, so nobody knows what it holds"
        raise kernel_refused(error, doing=doing, reason=Reason.FORMAT_REFUSED) from error


async def _check_unwritten(
    tools: Tools, node: DeviceNode, below: Below | None, deadline: Deadline
) -> None:
    size = min(_UNWRITTEN, mappings.size_of(tools.board.tree, node))
    raw = below or Below(node=node, offset=0)
    try:
        at = await tools.files.written_sector(
            node.path, size, (raw.node.path, raw.offset), deadline
        )
    except OSError as error:
        doing = f"{raw.node.path} cannot be read, so nobody knows what it holds"
        raise kernel_refused(error, doing=doing, reason=Reason.FORMAT_REFUSED) from error
    if at >= 0:
        raise _refused(
            node,
            f"no file system is to be seen, but {raw.node.path} was written to at byte "
            f"{raw.offset + at}",
            hint=_KEY if below else _NO_KEY,
        )


_KEY = "is the key right? A disk is new when its first MiB is all zeros"
_NO_KEY = (
    "is it encrypted? Then its key is needed (crypt); else make its first MiB zeros to get "
    "a new file system"
)


async def _clear(tools: Tools, node: DeviceNode) -> None:
    """Make the first MiB zeros, which it was before a mkfs that has failed."""
    deadline = Deadline.after(_CLEAR_SECONDS)
    try:
        # Whoever made something there in the meantime keeps it, also between look and write.
        found = await _look(tools, node, deadline)
        if not (found.type or found.table or found.unfinished):
            size = min(_UNWRITTEN, mappings.size_of(tools.board.tree, node))
            await tools.files.clear_disk(node.path, size, _MAGICS, deadline)
    except (AgentError, OSError) as error:
        log.warning("%s keeps what a failed mkfs has left: %s", node.path, error)


async def _make(node: DeviceNode, maker: Maker, deadline: Deadline, *, force: bool) -> None:
    argv = (*maker.argv, *([maker.force] if force else []), node.path)
    result = await _run(node, argv, maker.package, deadline)
    if result.code:
        said = first_line(result.stderr_tail)
        why = f"{argv[0]}: {result.how_it_ended()}"
        raise _refused(node, f"{why}: {said}" if said else why)


def first_line(output: str) -> str:
    """What a mkfs says is wrong; its version comes before, and its usage after."""
    lines = (line.strip() for line in output.splitlines())
    return next((line for line in lines if line and not _BANNER.match(line)), "")


async def _run(
    node: DeviceNode, argv: tuple[str, ...], package: str, deadline: Deadline
) -> commands.CommandResult:
    try:
        return await commands.run(argv, deadline=deadline, check=False)
    except AgentError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        why = f"{argv[0]} is not in this image"
        hint = f"build the image with the package {package}"
        raise _refused(node, why, hint=hint) from error


def _refused(node: DeviceNode, why: str, *, hint: str | None = None, **more: str) -> AgentError:
    return wrong_state(
        f"{node.path} is not formatted: {why}",
        reason=Reason.FORMAT_REFUSED,
        hint=hint,
        node=node.path,
        **more,
    )

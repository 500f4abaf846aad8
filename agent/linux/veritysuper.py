"""The superblock of dm-verity, as `veritysetup format` writes it before the hash tree.

Facts: struct verity_sb in lib/verity/verity.c of cryptsetup, which is the format's only
definition; numbers are little-endian. The root hash does not cover it: what a host
wants to be sure of, it names in its request.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from uuid import UUID

SIZE = 512
SIGNATURE = b"verity\0\0"
VERSION = 1

# signature, version, hash_type, uuid, algorithm, data_block_size, hash_block_size,
# data_blocks, salt_size, _pad1, salt, _pad2.
_LAYOUT = struct.Struct("<8sII16s32sIIQH6s256s168s")
_SALT_LIMIT = 256
_ALGORITHM = re.compile(r"[A-Za-z0-9_-]{1,31}", re.ASCII)
_BLOCK_SIZES = frozenset(1 << bits for bits in range(9, 20))
# Numbers of dm-verity's table are of sectors: no more blocks than fit a 64 bit size in bytes.
_BYTES_LIMIT = 1 << 63


class SuperblockError(ValueError):
    """These bytes are no superblock of this kind, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VeritySuperblock:
    """`hash_type` is 1, or 0 for the kind of Chrome OS; sizes in bytes."""

    hash_type: int
    uuid: UUID
    algorithm: str
    data_block_size: int
    hash_block_size: int
    data_blocks: int
    salt: bytes


def parse(data: bytes) -> VeritySuperblock:
    """Strict: raises SuperblockError for anything that veritysetup would not write."""
    if len(data) < SIZE:
        raise SuperblockError(f"{len(data)} bytes are less than a superblock's {SIZE}")
    fields = _LAYOUT.unpack_from(data)
    signature, version, hash_type, uuid, algorithm = fields[:5]
    if signature != SIGNATURE:
        raise SuperblockError(f"it begins with {signature!r}, not with {SIGNATURE!r}")
    if version != VERSION:
        raise SuperblockError(f"its version is {version}, not {VERSION}")
    if hash_type not in (0, 1):
        raise SuperblockError(f"its hash type is {hash_type}, not 0 or 1")
    data_block_size, hash_block_size, data_blocks, salt_size, _, salt, _ = fields[5:]
    return VeritySuperblock(
        hash_type=hash_type,
        uuid=UUID(bytes=uuid),
        algorithm=_text(algorithm),
        data_block_size=_block_size(data_block_size, "data"),
        hash_block_size=_block_size(hash_block_size, "hash"),
        data_blocks=_blocks(data_blocks, data_block_size),
        salt=_salt(salt, salt_size),
    )


def pack(superblock: VeritySuperblock) -> bytes:
    """The bytes of a superblock."""
    return _LAYOUT.pack(
        SIGNATURE,
        VERSION,
        superblock.hash_type,
        superblock.uuid.bytes,
        superblock.algorithm.encode(),
        superblock.data_block_size,
        superblock.hash_block_size,
        superblock.data_blocks,
        len(superblock.salt),
        b"",
        superblock.salt,
        b"",
    )


def tree_start(offset: int, hash_block_size: int) -> int:
    """The first block of hashes after a superblock at `offset` bytes, in hash blocks.

    VERITY_hash_offset_block() of the same file: the next whole block.
    """
    return (offset + SIZE + hash_block_size - 1) // hash_block_size


def _text(data: bytes) -> str:
    # It becomes a word of the table: a blank in it would make two of it.
    text = data.rstrip(b"\0").decode("ascii", errors="replace")
    if _ALGORITHM.fullmatch(text) is None:
        raise SuperblockError(f"its algorithm {text!r} is not the name of a hash")
    return text


def _block_size(size: int, what: str) -> int:
    if size not in _BLOCK_SIZES:
        raise SuperblockError(f"its {what} block size {size} is not a power of two of at least 512")
    return size


def _blocks(count: int, size: int) -> int:
    if not 0 < count * size < _BYTES_LIMIT:
        raise SuperblockError(f"its {count} data blocks of {size} bytes are no size of a disk")
    return count


def _salt(data: bytes, size: int) -> bytes:
    if size > _SALT_LIMIT:
        raise SuperblockError(f"its salt of {size} bytes is longer than {_SALT_LIMIT}")
    return data[:size]

"""dm-verity: a read-only disk whose every block is checked when it is read.

Facts: Documentation/admin-guide/device-mapper/verity.rst. The table is `TYPE DATA_DEVICE
HASH_DEVICE DATA_BLOCK HASH_BLOCK DATA_BLOCKS HASH_START ALGORITHM DIGEST SALT`, devices as
MAJOR:MINOR, block sizes in bytes, HASH_START in hash blocks; `-` is no salt. A
block that was changed is an I/O error: no option asks for a panic or a restart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError, Reason, invalid, kernel_refused, wrong_state
from agent.handlers.storage import mappings
from agent.linux import veritysuper
from agent.linux.devicemapper import MappingTable

if TYPE_CHECKING:
    from agent.core.model import DeviceNode
    from agent.core.sources import VeritySetup
    from agent.handlers.storage.job import Job
    from agent.linux.veritysuper import VeritySuperblock

DEFAULT_ALGORITHM = "sha256"
DEFAULT_BLOCK = 4096
_HASH_TYPE = 1

_ALGORITHM = re.compile(r"[A-Za-z0-9_-]{1,31}", re.ASCII)
_HEX = re.compile(r"(?:[0-9a-f]{2})*", re.ASCII)
# Bytes of a digest (FIPS 180-4, FIPS 202); of other hashes the kernel knows.
_DIGESTS = {"sha1": 20, "sha224": 28, "sha256": 32, "sha384": 48, "sha512": 64} | {
    f"sha3-{bits}": bits // 8 for bits in (224, 256, 384, 512)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What is where, all settled; `hash_start` in hash blocks."""

    hash_type: int
    algorithm: str
    data_block_size: int
    hash_block_size: int
    data_blocks: int
    hash_start: int
    salt: str


async def make_verity(
    job: Job[Any], node: DeviceNode, hash_node: DeviceNode, verity: VeritySetup
) -> DeviceNode:
    """The node of the checked device. `hash_node` is `node` where the hashes lie behind the data.

    Raises BAD_FIELD for values that can't be right, MAPPING_REFUSED when the superblock
    is missing or says otherwise, the sizes do not fit, or the kernel refuses.
    """
    _check(verity)
    tree = job.tools.board.tree
    same = (node.major, node.minor) == (hash_node.major, hash_node.minor)
    sizes = mappings.size_of(tree, node), mappings.size_of(tree, hash_node)
    if verity.superblock:
        layout = _from_superblock(verity, await _superblock(job, hash_node, verity), hash_node)
    else:
        layout = _from_request(verity, verity.hash_offset if same else sizes[0])
    data_limit = min(sizes[0], verity.hash_offset) if same else sizes[0]
    _check_sizes(layout, node, hash_node, (data_limit, sizes[1]))
    _check_digest(verity.root_hash, layout.algorithm)
    return await mappings.make(job, "verity", _table(layout, node, hash_node, verity.root_hash))


def _table(
    layout: _Layout, node: DeviceNode, hash_node: DeviceNode, root_hash: str
) -> MappingTable:
    words = (
        layout.hash_type,
        *(f"{each.major}:{each.minor}" for each in (node, hash_node)),
        *(layout.data_block_size, layout.hash_block_size),
        *(layout.data_blocks, layout.hash_start),
        *(layout.algorithm, root_hash, layout.salt or "-"),
    )
    return MappingTable(
        target="verity",
        sectors=layout.data_blocks * layout.data_block_size // mappings.SECTOR,
        parameters=" ".join(map(str, words)),
        read_only=True,
    )


async def _superblock(
    job: Job[Any], hash_node: DeviceNode, verity: VeritySetup
) -> VeritySuperblock:
    place = f"at byte {verity.hash_offset} of {hash_node.path}"
    try:
        data = await job.tools.files.read_disk(
            hash_node.path, verity.hash_offset, veritysuper.SIZE, job.deadline
        )
    except OSError as error:
        doing = f"the superblock of dm-verity {place} cannot be read"
        raise kernel_refused(error, doing=doing, reason=Reason.MAPPING_REFUSED) from error
    try:
        return veritysuper.parse(data)
    except veritysuper.SuperblockError as error:
        raise wrong_state(
            f"there is no superblock of dm-verity {place}: {error}",
            reason=Reason.MAPPING_REFUSED,
            hint="is hash_offset right? With no_superblock the request itself says all",
        ) from error


def _from_superblock(verity: VeritySetup, found: VeritySuperblock, node: DeviceNode) -> _Layout:
    """What the request leaves open the superblock says; what both say must be the same."""
    salt = found.salt.hex()
    pairs = (
        ("salt", verity.salt, salt),
        ("algorithm", verity.algorithm, found.algorithm),
        ("data_block_size", verity.data_block_size, found.data_block_size),
        ("hash_block_size", verity.hash_block_size, found.hash_block_size),
        ("data_blocks", verity.data_blocks, found.data_blocks),
    )
    for name, wanted, has in pairs:
        if wanted and wanted != has:
            raise _mismatch(name, str(wanted), str(has), node)
    return _Layout(
        hash_type=found.hash_type,
        algorithm=found.algorithm,
        data_block_size=found.data_block_size,
        hash_block_size=found.hash_block_size,
        data_blocks=found.data_blocks,
        hash_start=veritysuper.tree_start(verity.hash_offset, found.hash_block_size),
        salt=salt,
    )


def _from_request(verity: VeritySetup, data_bytes: int) -> _Layout:
    data_block = verity.data_block_size or DEFAULT_BLOCK
    hash_block = verity.hash_block_size or DEFAULT_BLOCK
    if verity.hash_offset % hash_block:
        raise invalid(
            f"hash_offset {verity.hash_offset} is no whole number of hash blocks of {hash_block}",
            field="source.block.verity.hash_offset",
        )
    return _Layout(
        hash_type=_HASH_TYPE,
        algorithm=verity.algorithm or DEFAULT_ALGORITHM,
        data_block_size=data_block,
        hash_block_size=hash_block,
        data_blocks=verity.data_blocks or data_bytes // data_block,
        hash_start=verity.hash_offset // hash_block,
        salt=verity.salt,
    )


def _check(verity: VeritySetup) -> None:
    for name, text in (("root_hash", verity.root_hash), ("salt", verity.salt)):
        if _HEX.fullmatch(text) is None:
            raise _bad(name, f"{text!r} is no hexadecimal text of whole bytes")
    if not verity.root_hash:
        raise _bad("root_hash", "there is no root hash: nothing could be checked")
    if verity.algorithm and _ALGORITHM.fullmatch(verity.algorithm) is None:
        raise _bad("algorithm", f"{verity.algorithm!r} is not the name of a hash")
    for name, size in (("data", verity.data_block_size), ("hash", verity.hash_block_size)):
        if size and (size < mappings.SECTOR or size & (size - 1)):
            raise _bad(f"{name}_block_size", f"{size} is not a power of two of at least 512")
    if verity.hash_offset % mappings.SECTOR:
        raise _bad("hash_offset", f"{verity.hash_offset} is not a whole number of sectors of 512")


def _check_digest(root_hash: str, algorithm: str) -> None:
    wanted = _DIGESTS.get(algorithm)
    if wanted is not None and len(root_hash) != 2 * wanted:
        raise _bad(
            "root_hash",
            f"{len(root_hash)} digits are no digest of {algorithm}, which has {2 * wanted}",
        )


def _check_sizes(
    layout: _Layout, node: DeviceNode, hash_node: DeviceNode, limits: tuple[int, int]
) -> None:
    data = layout.data_blocks * layout.data_block_size
    if not 0 < data <= limits[0]:
        raise wrong_state(
            f"{layout.data_blocks} blocks of {layout.data_block_size} are {data} bytes, but "
            f"{node.path} has {limits[0]} for them (before hash_offset, where the hashes are on "
            "the same device)",
            reason=Reason.MAPPING_REFUSED,
        )
    if layout.hash_start * layout.hash_block_size >= limits[1]:
        raise wrong_state(
            f"the hashes would begin at byte {layout.hash_start * layout.hash_block_size}, but "
            f"{hash_node.path} has {limits[1]}",
            reason=Reason.MAPPING_REFUSED,
        )


def _mismatch(name: str, wanted: str, has: str, node: DeviceNode) -> AgentError:
    return wrong_state(
        f"{name} is {wanted} in the request, but {has or 'none'} in the superblock on {node.path}",
        reason=Reason.MAPPING_REFUSED,
        hint="is this the image that the request means?",
        field=f"source.block.verity.{name}",
        requested=wanted,
        superblock=has,
    )


def _bad(name: str, why: str) -> AgentError:
    return invalid(f"verity: {name}: {why}", field=f"source.block.verity.{name}")

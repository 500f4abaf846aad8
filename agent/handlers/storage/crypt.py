"""dm-crypt without a header on the disk ("plain").

Facts: Documentation/admin-guide/device-mapper/dm-crypt.rst. The table is
`CIPHER KEY IV_OFFSET DEVICE OFFSET [#OPTIONS OPTIONS]`, offsets in sectors of 512 bytes
whatever the encryption's own sector is; DEVICE is taken as MAJOR:MINOR.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agent.core.errors import invalid
from agent.handlers.storage import mappings
from agent.linux.devicemapper import MappingTable

if TYPE_CHECKING:
    from agent.core.model import DeviceNode
    from agent.core.sources import CryptSetup
    from agent.handlers.storage.job import Job

SECTOR_SIZES = (512, 1024, 2048, 4096)

# One half is for the data, the other for the tweak: AES-128 or AES-256 (IEEE 1619). The
# kernel takes AES-192 as well (xts_verify_key in include/crypto/xts.h leaves it to AES).
_XTS, _XTS_KEYS = "aes-xts-", (32, 48, 64)

# `aes-xts-plain64`, `capi:authenc(hmac(sha256),xts(aes))-random`: one word of the table.
_CIPHER = re.compile(r"[A-Za-z0-9_.:(),-]+", re.ASCII)


async def make_crypt(job: Job[Any], node: DeviceNode, crypt: CryptSetup) -> DeviceNode:
    """The node of the decrypted device.

    Whether the key is the right one nobody can tell: under a wrong one there is no file
    system. Raises BAD_FIELD, MAPPING_REFUSED as `mappings.make` does.
    """
    tree = job.tools.board.tree
    table = _table(
        node,
        crypt,
        size=mappings.size_of(tree, node),
        read_only=mappings.is_read_only(tree, node),
    )
    return await mappings.make(job, "crypt", table)


def _table(node: DeviceNode, crypt: CryptSetup, *, size: int, read_only: bool) -> MappingTable:
    _check(crypt)
    area = size - crypt.offset
    if area <= 0 or area % crypt.sector_size:
        raise invalid(
            f"{node.path} has {size} bytes: from offset {crypt.offset} on that is no whole "
            f"number of encryption sectors of {crypt.sector_size}",
            field="source.block.crypt",
        )
    options = ["allow_discards"]  # or Storages.Trim would give nothing back to the host
    if crypt.sector_size != mappings.SECTOR:
        options.append(f"sector_size:{crypt.sector_size}")
    start = crypt.offset // mappings.SECTOR
    words = (crypt.cipher, crypt.key.hex(), 0, f"{node.major}:{node.minor}", start)
    return MappingTable(
        target="crypt",
        sectors=area // mappings.SECTOR,
        parameters=" ".join(map(str, (*words, len(options), *options))),
        read_only=read_only,
        secret=True,
    )


def _check(crypt: CryptSetup) -> None:
    if not crypt.key:
        raise invalid(
            "there is no key in the request, and none is kept from an earlier one",
            field="source.block.crypt.key",
        )
    if _CIPHER.fullmatch(crypt.cipher) is None:
        raise invalid(
            f"{crypt.cipher!r} is not the name of a cipher: letters, digits and _.:(),-",
            hint="as dm-crypt names it: aes-xts-plain64",
            field="source.block.crypt.cipher",
        )
    if crypt.cipher.startswith(_XTS) and len(crypt.key) not in _XTS_KEYS:
        raise invalid(
            f"the key has {len(crypt.key)} bytes, and {crypt.cipher} takes 32 or 64",
            hint="the key itself, as bytes: neither hexadecimal nor a passphrase",
            field="source.block.crypt.key",
        )
    if crypt.sector_size not in SECTOR_SIZES:
        raise invalid(
            f"an encryption sector of {crypt.sector_size} bytes: "
            f"known are {', '.join(map(str, SECTOR_SIZES))}",
            field="source.block.crypt.sector_size",
        )
    if crypt.offset % mappings.SECTOR:
        raise invalid(
            f"the offset {crypt.offset} is not a whole number of sectors of {mappings.SECTOR}",
            field="source.block.crypt.offset",
        )

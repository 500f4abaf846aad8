"""Images as `veritysetup format` (cryptsetup 2.6.1) makes them, with what it said of them.

SUPERBLOCK is what it wrote for `IMAGE`, byte for byte (the rest are zeros), with
`--uuid` and `--salt` as below: hash type 1, 16 blocks of data, 1 block of hashes. It said
ROOT_HASH. BARE is the same for blocks of 512 and 1024 bytes, sha512 and no salt.
"""

from __future__ import annotations

import hashlib

BLOCK = 4096
BLOCKS = 16
IMAGE = bytes((i * 7 + i // BLOCK) & 255 for i in range(BLOCKS * BLOCK))

UUID = "6f1c8f0e-0f2c-4f59-9f0f-6f5d27b3a001"
SALT = bytes(range(32))
ROOT_HASH = "5217372547eeaa7cce05343c971312e6afcfc9938a67abcc9036c4addde20470"
SUPERBLOCK = bytes.fromhex(
    "76657269747900000100000001000000"
    "6f1c8f0e0f2c4f599f0f6f5d27b3a001"
    "73686132353600000000000000000000"
    "00000000000000000000000000000000"
    "00100000001000001000000000000000"
    "2000000000000000"
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
).ljust(512, b"\0")

BARE = bytes.fromhex(
    "76657269747900000100000001000000"
    "6f1c8f0e0f2c4f599f0f6f5d27b3a001"
    "73686135313200000000000000000000"
    "00000000000000000000000000000000"
    "00020000000400001000000000000000"
).ljust(512, b"\0")


def hash_block(image: bytes = IMAGE, salt: bytes = SALT) -> bytes:
    """The only block of the tree: digests of salt and block (type 1), zeros to its end."""
    starts = range(0, len(image), BLOCK)
    digests = [hashlib.sha256(salt + image[at : at + BLOCK]).digest() for at in starts]
    return b"".join(digests).ljust(BLOCK, b"\0")


def whole_image() -> bytes:
    """Data, superblock and hashes one after the other; the hash offset is len(IMAGE)."""
    return IMAGE + SUPERBLOCK.ljust(BLOCK, b"\0") + hash_block()

"""AES-XTS by OpenSSL, the library that Python's own hashlib has: what dm-crypt must have written.

"plain64" means that the number of the sector is its initial vector, 64 bits, little endian
(https://docs.kernel.org/admin-guide/device-mapper/dm-crypt.html).
"""

from __future__ import annotations

import ctypes
import ctypes.util

_SECTOR = 512


def decrypted(key: bytes, disk: bytes, *, first_sector: int = 0) -> bytes:
    """Whole sectors of a disk with "aes-xts-plain64" and a key of 64 bytes."""
    sectors = [disk[at : at + _SECTOR] for at in range(0, len(disk), _SECTOR)]
    return b"".join(
        _sector(key, number.to_bytes(16, "little"), sector)
        for number, sector in enumerate(sectors, start=first_sector)
    )


def _sector(key: bytes, vector: bytes, content: bytes) -> bytes:
    """EVP_DecryptInit_ex(3) and EVP_DecryptUpdate(3); XTS has no padding."""
    crypto = ctypes.CDLL(ctypes.util.find_library("crypto"))
    for name in ("EVP_CIPHER_CTX_new", "EVP_aes_256_xts"):
        getattr(crypto, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(crypto.EVP_CIPHER_CTX_new())
    try:
        cipher = ctypes.c_void_p(crypto.EVP_aes_256_xts())
        assert crypto.EVP_DecryptInit_ex(context, cipher, None, key, vector) == 1
        plain = ctypes.create_string_buffer(len(content))
        written = ctypes.c_int()
        arguments = (context, plain, ctypes.byref(written), content, len(content))
        assert crypto.EVP_DecryptUpdate(*arguments) == 1
        return plain.raw[: written.value]
    finally:
        crypto.EVP_CIPHER_CTX_free(context)

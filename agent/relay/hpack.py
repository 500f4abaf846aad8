"""Just enough HPACK (RFC 7541) to answer: literals without indexing, no Huffman, no state."""

from __future__ import annotations

_PREFIX_LIMIT = 127  # seven bits of length, then more bytes of seven


def headers(fields: list[tuple[bytes, bytes]]) -> bytes:
    """A header block; names in lower case, pseudo-headers first (6.2.2)."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)


def _string(text: bytes) -> bytes:
    return _integer(len(text)) + text


def _integer(value: int) -> bytes:
    """An integer with a prefix of seven bits (5.1)."""
    if value < _PREFIX_LIMIT:
        return bytes((value,))
    coded = bytearray((_PREFIX_LIMIT,))
    value -= _PREFIX_LIMIT
    while value >= 128:
        coded.append(value & 127 | 128)
        value >>= 7
    coded.append(value)
    return bytes(coded)

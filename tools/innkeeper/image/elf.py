"""As much of ELF as an image builder needs: a section by name, and the libraries a file needs.

Formats are in elf(5). Only 64-bit little-endian files: the guest has no others.
"""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_ENTRY = struct.Struct("<qQ")
_NEEDED = 1


def is_elf(content: bytes) -> bool:
    return content.startswith(_MAGIC)


def section(content: bytes, name: str) -> bytes | None:
    """None where there is no section of that name. Raises `ValueError` for what is no ELF file."""
    if not is_elf(content):
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", content, 0x3A)
    headers = [_SECTION.unpack_from(content, table + size * index) for index in range(count)]
    if not headers:
        return None
    names = content[headers[names_index][4] :]
    for header in headers:
        start = header[0]
        if names[start : names.index(b"\0", start)] == name.encode():
            return content[header[4] : header[4] + header[5]]
    return None


def needed_libraries(content: bytes) -> list[str]:
    """The DT_NEEDED entries of a program or library; empty for a static one."""
    dynamic = section(content, ".dynamic")
    strings = section(content, ".dynstr")
    if dynamic is None or strings is None:
        return []
    offsets = [value for tag, value in _ENTRY.iter_unpack(dynamic) if tag == _NEEDED]
    return [strings[at : strings.index(b"\0", at)].decode() for at in offsets]

"""Small ELF files, as far as a reader of sections can tell (elf(5))."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")


def elf_file(sections: dict[str, bytes]) -> bytes:
    """A 64-bit little-endian file with these sections and a table of their names."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    contents = {**sections, ".shstrtab": names}
    body, headers = b"", _SECTION.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    for name, content in contents.items():
        at = _HEADER.size + len(body)
        start = names.index(b"\0" + name.encode() + b"\0") + 1
        headers += _SECTION.pack(start, 1, 0, 0, at, len(content), 0, 0, 1, 0)
        body += content
    table = _HEADER.size + len(body)
    count = len(contents) + 1
    header = _HEADER.pack(
        b"\x7fELF", 2, 1, 1, 0, 0, 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, count, count - 1
    )
    return header + body + headers


def module_file(**fields: str) -> bytes:
    """A kernel module that says of itself what `fields` say; `_` ends in repeated keys are cut."""
    words = [f"{key.rstrip('_')}={value}".encode() for key, value in fields.items()]
    return elf_file({".text": b"\x90", ".modinfo": b"\0".join(words) + b"\0"})


def program_file(*libraries: str) -> bytes:
    """A program that needs these libraries."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in libraries)
    offsets = [strings.index(b"\0" + name.encode() + b"\0") + 1 for name in libraries]
    dynamic = b"".join(struct.pack("<qQ", 1, at) for at in offsets) + struct.pack("<qQ", 0, 0)
    return elf_file({".dynstr": strings, ".dynamic": dynamic})

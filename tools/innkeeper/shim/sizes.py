"""Sizes of memory as people say them, exactly."""

from __future__ import annotations

_UNITS = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))


def in_words(size: int) -> str:
    """ "3.5 GiB"; the largest unit of which it is a whole number of eighths."""
    for unit, bits in _UNITS:
        if size >> bits and size % (1 << bits - 3) == 0:
            return f"{size / (1 << bits):.3f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} bytes"

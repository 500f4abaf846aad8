"""How much of the guest's memory all containers together may have."""

from __future__ import annotations

import os

# Pages of a tmpfs cannot be got back by killing anybody, so without a bound a full
# writable layer ends in a kernel panic.
_RESERVE = 96 << 20


def bound(total: int) -> int:
    """Bytes of memory for all containers together, of `total`; a small guest shares by halves."""
    return max(total - _RESERVE, total // 2)


def total_memory() -> int:
    """Bytes that the kernel manages now; it follows hot-plug (sysinfo(2), totalram)."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""What a storage makes besides its mount, as plain data.

A piece is saved in the storage's record before it is made. Taking it back is all
that ever removes it: when an attachment fails, at the detachment, and after a crash
of the agent, where nobody knows how far the making went. So taking back is fine with
a piece that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PieceKind(StrEnum):
    """MAPPING: a device-mapper device, `name` is its name.
    DEVICE: an attached device, `name` is its id.
    HUGE_PAGES: `amount` pages; `name` is PAGE_BYTES/STORAGE_ID.
    DIRECTORY: an empty directory, `name` is its path.
    TREE: a directory with all that is in it.
    """

    MAPPING = "mapping"
    DEVICE = "device"
    HUGE_PAGES = "huge-pages"
    DIRECTORY = "directory"
    TREE = "tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`within` is the mount point of the storage that `name` is a path in, "" for none.

    What does not `last` is the user's own once the storage is attached, and stays.
    """

    kind: PieceKind
    name: str
    amount: int = 0
    within: str = ""
    lasts: bool = True

    def __str__(self) -> str:
        place = f" in {self.within}" if self.within else ""
        return f"{self.kind.value.replace('-', ' ')} {self.name}{place}"

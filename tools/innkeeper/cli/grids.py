"""Tables that stay in their place on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WORDS = frozenset({"ID", "STATE", "COMMAND"})


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Figures to the right, words to the left; the last column takes what room there is."""
    made = Table(box=None, header_style="bold reverse", pad_edge=False, expand=True)
    for column in columns:
        last = column == columns[-1]
        made.add_column(
            column,
            justify="left" if column in _WORDS else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if last else None,
        )
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made

"""What people read: results on stdout, everything else on stderr.

On a terminal there are colours and a spinner; anywhere else there is plain text
that a program can cut up. A command whose stdout is the output of somebody
else's process prints nothing there itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

# Of the spinner's line: itself, and the ^C that a terminal echoes. On a full line
# that would go to the next one, and this one would be left.
_MARGIN = 8

# Made anew for each use: tests, and nobody else, replace the streams below them.


def out() -> Console:
    return Console(highlight=False, emoji=False, soft_wrap=True)


def err() -> Console:
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def say(text: str) -> None:
    """One line of a result."""
    out().print(text, markup=False)


def say_json(value: object) -> None:
    out().print(json.dumps(value, indent=2), markup=False)


def note(text: str) -> None:
    """Something by the way, on stderr."""
    err().print(text, markup=False, style="dim")


def warn(text: str) -> None:
    err().print(Text.assemble(("innkeeper: ", "yellow"), text))


def fail(text: str) -> None:
    """An error, on stderr; the first line is the message, the rest says more."""
    first, _, rest = text.partition("\n")
    err().print(Text.assemble(("innkeeper: ", "bold red"), first))
    if rest:
        err().print(rest, markup=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table; plain columns, two blanks apart, when nobody looks."""
    console = out()
    if not console.is_terminal:
        say(plain_table(columns, [list(row) for row in rows]))
        return
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console.print(grid)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


@contextlib.contextmanager
def busy(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr with a text that can be changed; nothing at all off a terminal."""
    console = err()
    if not console.is_terminal:
        yield _ignore
        return
    room = console.width - _MARGIN
    with console.status(Text(text[:room])) as status:
        yield lambda changed: status.update(Text(changed[:room]))


def is_of_stdout(error: OSError) -> bool:
    """Whether a write failed because there is no room: commands write to stdout and
    to files, and an error about a file has its name."""
    return error.filename is None and error.errno in _NO_ROOM


def give_up_stdout() -> None:
    """The interpreter would try once more at its end, and complain in its own words."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _ignore(text: str) -> None:
    """Nobody looks."""


def size(number: int) -> str:
    """Bytes as people say them: "64 MiB"; exact when that is short, else three figures."""
    value, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):  # noqa: B007 - the unit outlives the loop
        if value < 1024:
            break
        value /= 1024
    return f"{value:.4g} {unit}"

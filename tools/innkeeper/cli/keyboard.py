"""Single keys of the terminal, for programs that fill its screen."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from innkeeper.cli.descriptors import FdSource

if TYPE_CHECKING:
    from collections.abc import Callable

_STDIN = 0


async def read_keys(press: Callable[[str], bool]) -> None:
    """Calls `press` for each key, until it says that it was the last or there are no more."""
    source = FdSource(_STDIN)
    while data := await source.read(64):
        # A key that is a sequence (arrows) is none that we know.
        with contextlib.suppress(UnicodeDecodeError):
            if press(data.decode()):
                return

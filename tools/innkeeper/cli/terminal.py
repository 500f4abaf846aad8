"""The user's terminal while it is a window on a terminal in the guest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
import tty
from typing import TYPE_CHECKING

from innkeeper.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STDIN = 0
_STDOUT = 1


def require() -> None:
    """Raises CliError unless stdin and stdout are a terminal."""
    if not (os.isatty(_STDIN) and os.isatty(_STDOUT)):
        raise CliError(
            "-t: stdin and stdout are not both a terminal",
            hint="leave -t out; input and output are passed on byte for byte without it",
        )


def size() -> tuple[int, int]:
    """Rows and columns, 24 by 80 when the terminal does not know."""
    columns, rows = os.get_terminal_size(_STDOUT)
    return (rows or 24, columns or 80)


@contextlib.contextmanager
def raw(on_resize: Callable[[int, int], None]) -> Iterator[None]:
    """Keys go through as they are (Ctrl-C too), and `on_resize` hears of each
    new size, the first one at once; the terminal is as before afterwards."""
    before = termios.tcgetattr(_STDIN)
    loop = asyncio.get_running_loop()
    try:
        tty.setraw(_STDIN, termios.TCSADRAIN)
        loop.add_signal_handler(signal.SIGWINCH, lambda: on_resize(*size()))
        on_resize(*size())
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)

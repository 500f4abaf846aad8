"""The user's terminal while it is a window on a terminal in the guest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
import tty
from typing import TYPE_CHECKING, Any

from innkeeper.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STDIN = 0
_STDOUT = 1


def require() -> None:
    """Raises CliError unless stdin and stdout are a terminal."""
    if not is_ours():
        raise CliError(
            "-t: stdin and stdout are not both a terminal",
            hint="leave -t out; input and output are passed on byte for byte without it",
        )


def is_ours() -> bool:
    """Whether stdin and stdout are a terminal."""
    return os.isatty(_STDIN) and os.isatty(_STDOUT)


def size() -> tuple[int, int]:
    """Rows and columns, 24 by 80 when the terminal does not know."""
    columns, rows = os.get_terminal_size(_STDOUT)
    return (rows or 24, columns or 80)


@contextlib.contextmanager
def raw(on_resize: Callable[[int, int], None]) -> Iterator[None]:
    """Keys go through as they are (Ctrl-C and Ctrl-Z too), and `on_resize` hears of each
    new size, the first one at once; the terminal is as before afterwards, and while we
    are stopped (kill -TSTP)."""

    def tell() -> None:
        on_resize(*size())

    def enter() -> None:
        tty.setraw(_STDIN, termios.TCSADRAIN)
        tell()

    with _mode(enter, leave=_nothing, resized=tell):
        yield


@contextlib.contextmanager
def keys(*, show: Callable[[], None], hide: Callable[[], None]) -> Iterator[None]:
    """Keys come one by one and unseen, without waiting for Enter; Ctrl-C and Ctrl-Z stay
    signals. `hide` is called before we are stopped, `show` to go on and at each new size."""

    def enter() -> None:
        tty.setcbreak(_STDIN, termios.TCSADRAIN)
        show()

    with _mode(enter, leave=hide, resized=show):
        yield


@contextlib.contextmanager
def _mode(
    enter: Callable[[], None], *, leave: Callable[[], None], resized: Callable[[], None]
) -> Iterator[None]:
    before = termios.tcgetattr(_STDIN)

    def stop() -> None:
        leave()
        _restore(before)
        # SIGTSTP has a handler, this one; going on is SIGCONT's.
        os.kill(os.getpid(), signal.SIGSTOP)

    handlers = {signal.SIGWINCH: resized, signal.SIGTSTP: stop, signal.SIGCONT: enter}
    loop = asyncio.get_running_loop()
    try:
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        enter()
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
        _restore(before)


def _restore(before: list[Any]) -> None:
    """Not after what is still to be shown: a terminal that Ctrl-S stopped would hold us up.
    One that went away needs nothing."""
    with contextlib.suppress(termios.error):
        termios.tcsetattr(_STDIN, termios.TCSANOW, before)


def _nothing() -> None:
    """There is nothing to be done."""

"""Signals by number and by name."""

from __future__ import annotations

import re
import signal
from typing import Final

from agent.core.errors import invalid

_MOST = 64
"""Linux has the signals 1 to 64 (signal(7))."""

_REAL_TIME = re.compile(r"RTM(?:IN(?:\+(?P<up>\d{1,2}))?|AX(?:-(?P<down>\d{1,2}))?)")

_NAMES: Final = {
    name.removeprefix("SIG"): int(number) for name, number in signal.Signals.__members__.items()
}


def signal_number(number: int, name: str) -> int:
    """The signal that both say, or one of them; the other is 0 or empty.

    Names are those of signal(7), with or without SIG, capitals or not; the real-time
    signals count as the C library has them ("RTMIN+3", "RTMAX-1"). Raises BAD_FIELD.
    """
    if not name:
        if not 1 <= number <= _MOST:
            raise invalid(f"signal: {number} is not 1 to {_MOST}", field="signal")
        return number
    named = _named(name)
    if number not in (0, named):
        raise invalid(
            f"name: {name[:20]!r} is signal {named}, and signal is {number}", field="name"
        )
    return named


def _named(name: str) -> int:
    word = name.upper().removeprefix("SIG")
    found = _NAMES.get(word) or _real_time(word)
    if found is None:
        raise invalid(
            f"name: there is no signal {name[:20]!a}",
            hint="as in signal(7): TERM, SIGTERM, RTMIN+3",
            field="name",
        )
    return found


def _real_time(word: str) -> int | None:
    match = _REAL_TIME.fullmatch(word)
    if match is None:
        return None
    if word.startswith("RTMIN"):
        number = signal.SIGRTMIN + int(match["up"] or 0)
    else:
        number = signal.SIGRTMAX - int(match["down"] or 0)
    return number if signal.SIGRTMIN <= number <= signal.SIGRTMAX else None

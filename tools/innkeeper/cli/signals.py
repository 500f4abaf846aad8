"""Signals by name and number, as kill(1) knows them."""

from __future__ import annotations

import difflib
import re
import signal

import typer

_LAST = 64
_REAL_TIME = re.compile(r"RTMIN(\+[0-9]{1,2})?|RTMAX(-[0-9]{1,2})?")
_NAMES = tuple(
    sorted(each.name.removeprefix("SIG") for each in signal.Signals if each < signal.SIGRTMIN)
)


def parse(word: str) -> str:
    """The name as the guest knows it ("TERM", "RTMIN+3"), or the number, 1 to 64; raises
    typer.BadParameter. Numbers of the real-time signals' names are the guest's own."""
    text = word.upper().removeprefix("SIG")
    if re.fullmatch(r"[0-9]{1,3}", text):
        return _number(word, int(text))
    if text in _NAMES or _REAL_TIME.fullmatch(text):
        return text
    near = difflib.get_close_matches(text, _NAMES, n=1)
    hint = f"; {near[0]}?" if near else ", as in TERM, HUP, RTMIN+3 or 9"
    raise typer.BadParameter(f"{word!r} is no signal: write a name or a number{hint}")


def _number(word: str, number: int) -> str:
    if not 1 <= number <= _LAST:
        raise typer.BadParameter(f"{word}: signals are 1 to {_LAST}")
    return str(number)


def name(number: int) -> str:
    """SIGTERM; "signal 99" for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def complete(incomplete: str) -> list[str]:
    """For shells."""
    return [each for each in _NAMES if each.startswith(incomplete.upper().removeprefix("SIG"))]

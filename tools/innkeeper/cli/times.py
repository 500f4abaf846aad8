"""Points in time and ages, as people write and read them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import typer

_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH = re.compile(r"[0-9]{9,10}(\.[0-9]{1,6})?")
_LONGEST_FRACTION = re.compile(r"(\.[0-9]{6})[0-9]+")


def parse_since(option: str, text: str, *, now: float | None = None) -> int:
    """Microseconds since 1970 of "10m" ago, of "2026-01-02T03:04:05Z", or of seconds since
    1970; a time without a zone is this host's. Raises typer.BadParameter."""
    if _EPOCH.fullmatch(text):
        return round(float(text) * 1e6)
    ago = parse_duration(text)
    if ago is not None:
        return max(0, round(((time.time() if now is None else now) - ago) * 1e6))
    try:
        return max(0, round(datetime.fromisoformat(_cut(text)).timestamp() * 1e6))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{option} {text!r}: write how long ago, as in 90s, 10m or 1h30m, or a time, as in"
            " 2026-01-02T03:04:05Z"
        ) from None


def parse_duration(text: str) -> float | None:
    """Seconds of "1h30m"; nothing when it is none."""
    if not text or _PART.sub("", text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def _cut(text: str) -> str:
    """RFC 3339 has as many digits as one likes."""
    return _LONGEST_FRACTION.sub(r"\1", text)


def stamp(micros: int) -> str:
    """RFC 3339 with microseconds, in UTC."""
    seconds, rest = divmod(micros, 1_000_000)
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return "-"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def age(micros: int, *, now: float | None = None) -> str:
    """How long ago, in its largest unit but one: "3m 20s"; "-" for never. The guest's clock may
    be a little ahead of ours."""
    if not micros:
        return "-"
    passed = max(0.0, (time.time() if now is None else now) - micros / 1e6)
    return span(passed)


def span(seconds: float) -> str:
    """ "45s", "3m 20s", "5h 2m", "12d 3h"."""
    whole = int(seconds)
    for unit, below, name, smaller in (
        (86_400, 3600, "d", "h"),
        (3600, 60, "h", "m"),
        (60, 1, "m", "s"),
    ):
        if whole >= unit:
            return f"{whole // unit}{name} {whole % unit // below}{smaller}"
    return f"{whole}s"


def cpu_time(micros: int) -> str:
    """As ps(1) has it, with hundredths: "1:02.50"."""
    minutes, rest = divmod(micros // 10_000, 6000)
    return f"{minutes}:{rest // 100:02d}.{rest % 100:02d}"

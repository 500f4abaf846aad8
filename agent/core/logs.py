"""The agent's log: one JSON object a line, on standard error.

Standard error is the console that PID 1 gave us; the host collects it. A line
has `at` (seconds since 1970), `level`, `logger`, `message`, what the caller
gave as `extra`, and for an exception `traceback`.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

TRACE: Final = 5
"""Below debug: every frame and event."""

LONGEST_LINE: Final = 16_384
"""Characters of a message; the rest is cut, so that no line blocks a slow console for long."""

_LEVELS: Final = {
    "critical": logging.CRITICAL,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
}

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(_message(record)),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            line["traceback"] = _cut(self.formatException(record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=True)


def start(level: str, stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (standard error), from `level` on (AgentConfig.log_level)."""
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    logging.captureWarnings(capture=True)
    # A console that went away must not fail whoever logs.
    logging.raiseExceptions = False


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError) as error:
        return f"{record.msg!r} could not be formatted: {error}"


def _cut(text: str) -> str:
    if len(text) <= LONGEST_LINE:
        return text
    return f"{text[:LONGEST_LINE]}... ({len(text) - LONGEST_LINE} characters more)"

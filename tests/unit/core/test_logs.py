"""Log lines: one JSON object each, whatever is logged."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from agent.core import logs
from agent.core.config import LogLevel

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """Root logging is the process's: it is put back."""
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.raiseExceptions)
    stream = io.StringIO()
    logs.start(LogLevel.DEBUG, stream)
    yield stream
    root.handlers[:], root.level, logging.raiseExceptions = before
    root.setLevel(before[1])
    logging.captureWarnings(capture=False)


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_has_time_level_logger_message_and_extras(out: io.StringIO) -> None:
    logging.getLogger("agent.x").info("%s of %d", "one", 2, extra={"method": "/a/B"})
    (line,) = lines(out)
    assert isinstance(line.pop("at"), float)
    assert line == {
        "level": "info",
        "logger": "agent.x",
        "message": "one of 2",
        "method": "/a/B",
    }


def test_line_feeds_quotes_and_broken_text_stay_in_one_line(out: io.StringIO) -> None:
    text = 'a\nb"\x1b[31m\udcff é'
    logging.getLogger("agent").warning("%s", text)
    assert out.getvalue().count("\n") == 1
    assert lines(out)[0]["message"] == text


def test_a_traceback_is_a_member(out: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("why")
    except ZeroDivisionError:
        logging.getLogger("agent").exception("failed")
    (line,) = lines(out)
    assert "ZeroDivisionError: why" in str(line["traceback"])


def test_a_huge_message_is_cut_and_says_so(out: io.StringIO) -> None:
    logging.getLogger("agent").error("x" * 1_000_000)
    message = str(lines(out)[0]["message"])
    assert len(message) < 20_000
    assert message.endswith(f"({1_000_000 - logs.LONGEST_LINE} characters more)")


def test_a_wrong_format_is_a_line_and_not_an_exception(out: io.StringIO) -> None:
    logging.getLogger("agent").info("%d", "no number")
    assert "could not be formatted" in str(lines(out)[0]["message"])


def test_an_extra_that_is_no_json_is_its_text(out: io.StringIO) -> None:
    logging.getLogger("agent").info(
        "m",
        extra={
            "thing": {
                1,
            }
        },
    )
    assert lines(out)[0]["thing"] == "{1}"


def test_warnings_of_python_go_the_same_way(out: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    assert "DeprecationWarning: old" in str(lines(out)[0]["message"])


@pytest.mark.parametrize("level", LogLevel)
def test_every_level_of_the_configuration_is_known(level: LogLevel, out: io.StringIO) -> None:
    logs.start(level, out)
    quiet = logging.getLogger().level
    assert quiet == getattr(logging, level.name, logs.TRACE)

"""How a build shows itself."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from innkeeper.image.progress import Shown

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def shown(*, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80, color_system=None)
    with Shown(console) as progress:
        progress.plan(2)
        with progress.step("packages [all]"):
            progress.trace("Get:1 crun")
            progress.note("package crun 1 -> 2")
        progress.warn("the mirror no longer has crun=1")
    return file.getvalue()


def test_without_a_terminal_each_step_is_one_plain_line() -> None:
    lines = shown(terminal=False).splitlines()
    assert [line.split("  0.0 s")[0].strip() for line in lines] == [
        "package crun 1 -> 2",
        "packages [all]",
        "warning: the mirror no longer has crun=1",
    ]
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_the_same_lines_stay() -> None:
    text = shown(terminal=True)
    assert "packages [all]" in text
    assert "warning: the mirror no longer has crun=1" in text


def test_a_step_that_fails_is_not_reported_as_done() -> None:
    file = io.StringIO()
    with (
        pytest.raises(ZeroDivisionError),
        Shown(Console(file=file, width=80)) as progress,
        progress.step("packages"),
    ):
        raise ZeroDivisionError
    assert "packages" not in file.getvalue()

"""Output for people and for programs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from innkeeper.cli import output

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (64 << 20, "64 MiB"),
        (1536, "1.5 KiB"),
        (100_000_000, "95.37 MiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_sizes_as_people_say_them(number: int, text: str) -> None:
    assert output.size(number) == text


def test_a_table_off_a_terminal_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("NAME", "STATE"), [("a", "running"), ("longer", "")])
    assert capsys.readouterr().out == "NAME    STATE\na       running\nlonger\n"


def test_text_of_others_is_not_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("[red]x[/red] :smile:")
    output.fail("[bold]message\n  path: [x]")
    captured = capsys.readouterr()
    assert captured.out == "[red]x[/red] :smile:\n"
    assert captured.err == "innkeeper: [bold]message\n  path: [x]\n"


def test_long_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read lines; a width of 80 is nobody's wish there."""
    output.say("x" * 500)
    output.fail("y" * 500)
    captured = capsys.readouterr()
    assert captured.out == "x" * 500 + "\n"
    assert captured.err == "innkeeper: " + "y" * 500 + "\n"


def test_a_spinners_line_leaves_room_for_the_echo_of_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A terminal echoes ^C; on a full line that goes to the next, and the line is left."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=40)
    monkeypatch.setattr(output, "err", lambda: console)
    with output.busy("x" * 100):
        pass
    assert screen.getvalue().count("x" * 32)
    assert "x" * 33 not in screen.getvalue()
    assert "…" not in screen.getvalue()


def test_a_spinner_writes_nothing_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.busy("working") as show:
        show("still working")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")

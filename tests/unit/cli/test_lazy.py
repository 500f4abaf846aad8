"""What the command line does not name is not imported: it would cost most of a second."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from innkeeper.cli.app import make_app

pytestmark = [pytest.mark.unit, pytest.mark.operations]

_SAY = (
    "import sys; from innkeeper.cli.app import make_app; make_app(sys.argv[1:]);"
    "print(*sorted(name for name in sys.modules if name.startswith('innkeeper.')))"
)


def _imported(*words: str) -> set[str]:
    argv = [sys.executable, "-c", _SAY, *words]
    return set(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split())


def test_one_command_brings_its_own_modules_alone() -> None:
    imported = _imported("ps", "web")
    assert "innkeeper.cli.ps" in imported
    assert not imported & {"innkeeper.cli.net", "innkeeper.image.command", "innkeeper.cli.run"}


@pytest.mark.parametrize("words", [[], ["--help"], ["nonsense"]])
def test_without_a_command_all_are_there(words: list[str]) -> None:
    told = CliRunner().invoke(make_app(words), ["--help"]).output
    assert all(f"\n  {name} " in told for name in ("run", "ps", "net", "image", "demo"))
    assert "\n  resume " not in told


@pytest.mark.parametrize("word", ["run", "exec", "resume", "vm", "image"])
def test_each_says_of_itself_what_it_says_among_all(word: str) -> None:
    alone = CliRunner().invoke(make_app([word]), [word, "--help"])
    among = CliRunner().invoke(make_app(), [word, "--help"])
    assert (alone.exit_code, alone.output) == (0, among.output)

"""The commands for what runs: each teaches by example, and refuses what can never be right."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from innkeeper.cli.app import app

pytestmark = [pytest.mark.unit, pytest.mark.containers]

COMMANDS = [
    *("exec", "attach", "ps", "top", "stats", "logs", "events", "wait", "kill"),
    *("pause", "unpause", "update", "rm"),
]


def test_the_program_lists_them() -> None:
    told = CliRunner().invoke(app, ["--help"]).output
    for command in COMMANDS:
        assert f"\n  {command} " in told


@pytest.mark.parametrize("command", COMMANDS)
def test_each_teaches_by_example(command: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"]).output
    assert f"\n    innkeeper {command} " in told


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "--detach-keys", "nokey", "web", "--", "ls"],
        ["attach", "web", "a/b/c"],
        ["attach", "--detach-keys", "ctrl-", "web", "main"],
        ["ps", "-a", "web", "main"],
        ["top", "--once", "--interval", "0", "web"],
        ["stats", "--interval", "nan", "web"],
        ["logs", "--since", "yesterday", "web", "main"],
        ["logs", "--tail", "-1", "web", "main"],
        ["events", "--filter", "color=red", "web"],
        ["events", "--filter", "kind=nosuch", "web"],
        ["events", "--since", "soon", "web"],
        ["wait", "web"],
        ["wait", "--timeout", "inf", "web", "main"],
        ["kill", "-s", "TREM", "web", "main"],
        ["kill", "--all", "web", "main/exec-1"],
        ["pause", "web"],
        ["update", "web", "main"],
        ["rm", "web"],
        ["rm", "--time", "-1", "web", "main"],
    ],
    ids=" ".join,
)
def test_a_wrong_use_is_exit_code_2(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2

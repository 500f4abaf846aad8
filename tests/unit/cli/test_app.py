"""The command line as a whole: every command says how it is used."""

from __future__ import annotations

from importlib import metadata

import pytest
from typer.testing import CliRunner

from innkeeper.cli.app import app

pytestmark = [pytest.mark.unit, pytest.mark.operations]

COMMANDS = [
    ("run",),
    ("exec",),
    ("call",),
    ("demo",),
    ("vm", "start"),
    ("vm", "list"),
    ("vm", "stop"),
    ("device", "attach"),
    ("device", "detach"),
    ("device", "list"),
    ("device", "ports"),
    ("device", "holders"),
    ("device", "reconfigure"),
    ("devices",),
]


def test_the_program_lists_its_commands() -> None:
    told = CliRunner().invoke(app, ["--help"]).output
    for command in ("run", "exec", "call", "demo", "vm", "device", "devices", "image"):
        assert f"\n  {command} " in told


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_teaches_by_example(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"innkeeper {' '.join(command)}" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "--disk", "x", "--", "ls"],
        ["run", "--memory", "lots", "--", "ls"],
        ["run", "--memory", "1M", "--", "ls"],
        ["run", "--workdir", "srv", "--", "ls"],
        ["run", "--name", "../x", "--", "ls"],
        ["exec", "web"],
        ["vm", "stop"],
        ["device", "attach", "web", "/nonexistent/file"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_a_wrong_use_is_exit_code_2(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2


def test_the_version_is_the_packages() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert told.output == f"innkeeper {metadata.version('innkeeper')}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--vm-memory", "1G"],
        ["--vm-cpus", "2"],
        ["--image", "x"],
        ["--accel", "tcg"],
        ["--transport", "serial"],
        ["--dns", "192.0.2.1"],
        ["--add-host", "db:192.0.2.7"],
        ["--net", "user"],
    ],
    ids=" ".join,
)
def test_what_makes_a_new_vm_is_refused_with_one_that_runs(words: list[str]) -> None:
    told = CliRunner().invoke(app, ["run", "--vm", "web", *words, "--", "true"])
    assert told.exit_code == 2
    assert f"{words[0]} is for a new VM" in told.output


def test_an_image_is_told_from_a_containers_root() -> None:
    told = CliRunner().invoke(app, ["image", "build", "--help"]).output
    assert "innkeeper run --rootfs" in told
    assert "innkeeper run --image ./my/cloud" in told


def test_the_methods_can_be_listed_without_a_vm() -> None:
    told = CliRunner().invoke(app, ["call", "--list"]).output
    assert "Devices.Attach" in told.splitlines()


def test_cpus_that_a_vm_can_grow_to_are_those_that_it_has_unless_said_otherwise() -> None:
    told = " ".join(CliRunner().invoke(app, ["vm", "start", "--help"]).output.split())
    assert "[default: (as many as --cpus)]" in told

"""The command `innkeeper`.

Only what the command line names is imported: all of it takes most of a second.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from innkeeper.cli import errors, output

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMPLETING: Final = "_INNKEEPER_COMPLETE"
"""Set by the shell's completion, which wants to know of all commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One word of the command line, and where it is: a function, or a group of commands."""

    name: str
    module: str
    attribute: str
    group: bool = False
    takes_a_command: bool = False
    """Options after the first word that is none belong to the command in the guest."""
    of_class: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def add_to(self, program: typer.Typer) -> None:
        module = importlib.import_module(self.module)
        found = getattr(module, self.attribute)
        if self.group:
            program.add_typer(found, name=self.name)
            return
        options = dict(self.options)
        if self.takes_a_command:
            options["context_settings"] = {"allow_interspersed_args": False}
        if self.of_class:
            options["cls"] = getattr(module, self.of_class)
        program.command(self.name, **options)(found)


def _command(name: str, module: str = "", attribute: str = "", **more: Any) -> _Entry:
    path = f"innkeeper.cli.{module or name}"
    return _Entry(name=name, module=path, attribute=attribute or name, **more)


def _group(name: str, module: str = "") -> _Entry:
    path = module or f"innkeeper.cli.{name}"
    return _Entry(name=name, module=path, attribute="app", group=True)


_ENTRIES: Final = (
    _command("run", takes_a_command=True, of_class="RunCommand"),
    _command("exec", attribute="exec_", takes_a_command=True, of_class="ExecCommand"),
    _command("attach"),
    _command("ps"),
    _command("top"),
    _command("stats"),
    _command("logs"),
    _command("events"),
    _command("wait"),
    _command("kill", "lifecycle"),
    _command("pause", "lifecycle"),
    _command("unpause", "lifecycle"),
    _command("resume", "lifecycle", "unpause", options={"hidden": True}),
    _command("update"),
    _command("rm", "lifecycle"),
    _command("cp"),
    _command("forward"),
    _group("vm"),
    _group("device"),
    _group("storage"),
    _group("disk"),
    _group("net"),
    _command("devices"),
    _command("call"),
    _group("image", "innkeeper.image.command"),
    _command("demo"),
)

app: typer.Typer
"""With all commands; made when it is asked for."""


def __getattr__(name: str) -> typer.Typer:
    if name == "app":
        return make_app()
    raise AttributeError(name)


def make_app(words: Sequence[str] = ()) -> typer.Typer:
    """The program with the command that these words name, or with all when they name none."""
    program = typer.Typer(
        name="innkeeper",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog="Start here: innkeeper image build; innkeeper run -- echo hello; innkeeper demo",
    )
    program.callback()(_innkeeper)
    named = [entry for entry in _ENTRIES if words and entry.name == words[0]]
    for entry in named or _ENTRIES:
        entry.add_to(program)
    return program


def _show_version(asked: bool) -> None:  # noqa: FBT001 - a callback of typer's
    if asked:
        output.say(f"innkeeper {metadata.version('innkeeper')}")
        raise typer.Exit


def _innkeeper(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Lightweight VMs with an agent inside: run a command in one, or keep one and work on it."""


def main() -> None:
    """Runs the command line; failures that are no bugs are a few lines and an exit code."""
    # gRPC's library writes to stderr, which is the stderr of a command in the guest.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    words = () if _COMPLETING in os.environ else sys.argv[1:]
    try:
        make_app(words)()
    except errors.EXPECTED as error:
        output.fail(errors.explain(error))
        sys.exit(errors.exit_code(error))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # Nobody reads any more: as a local command that SIGPIPE ends.
        output.give_up_stdout()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        # Any print may be the one that a full disk refuses.
        if not output.is_of_stdout(error):
            raise
        output.give_up_stdout()
        output.fail(f"stdout: {error.strerror}")
        sys.exit(errors.OUR_FAILURE)

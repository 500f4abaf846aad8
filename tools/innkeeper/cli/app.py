"""The command `innkeeper`."""

from __future__ import annotations

import os
import signal
import sys
from importlib import metadata
from typing import Annotated

import typer

from innkeeper.cli import (
    attach,
    call,
    cp,
    demo,
    device,
    devices,
    disk,
    errors,
    events,
    forward,
    lifecycle,
    logs,
    net,
    output,
    ps,
    run,
    stats,
    storage,
    top,
    update,
    vm,
    wait,
)
from innkeeper.cli.exec import exec_
from innkeeper.image.command import app as image_app

# Options after the first word that is none belong to the command in the guest.
_TAKES_A_COMMAND = {"allow_interspersed_args": False}

app = typer.Typer(
    name="innkeeper",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Start here: innkeeper image build; innkeeper run -- echo hello; innkeeper demo",
)


def _show_version(asked: bool) -> None:  # noqa: FBT001 - a callback of typer's
    if asked:
        output.say(f"innkeeper {metadata.version('innkeeper')}")
        raise typer.Exit


@app.callback()
def _innkeeper(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Lightweight VMs with an agent inside: run a command in one, or keep one and work on it."""


app.command(cls=run.RunCommand, context_settings=_TAKES_A_COMMAND)(run.run)
app.command("exec", context_settings=_TAKES_A_COMMAND)(exec_)
app.command()(attach.attach)
app.command()(ps.ps)
app.command()(top.top)
app.command()(stats.stats)
app.command()(logs.logs)
app.command()(events.events)
app.command()(wait.wait)
app.command()(lifecycle.kill)
app.command()(lifecycle.pause)
app.command()(lifecycle.unpause)
app.command("resume", hidden=True)(lifecycle.unpause)
app.command()(update.update)
app.command()(lifecycle.rm)
app.command()(cp.cp)
app.command()(forward.forward)
app.add_typer(vm.app, name="vm")
app.add_typer(device.app, name="device")
app.add_typer(storage.app, name="storage")
app.add_typer(disk.app, name="disk")
app.add_typer(net.app, name="net")
app.command()(devices.devices)
app.command()(call.call)
app.add_typer(image_app, name="image")
app.command()(demo.demo)


def main() -> None:
    """Runs the command line; failures that are no bugs are a few lines and an exit code."""
    # gRPC's library writes to stderr, which is the stderr of a command in the guest.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app()
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

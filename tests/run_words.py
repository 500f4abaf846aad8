"""The words of `innkeeper run`, read as the program reads them, up to what a guest gets."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import typer

from innkeeper.cli import asked, grants, run, running

if TYPE_CHECKING:
    from innkeeper.cli.running import RunRequest
    from innkeeper.v1 import containers_pb2


@functools.cache
def _command() -> Any:
    app = typer.Typer(rich_markup_mode=None)
    settings = {"allow_interspersed_args": False}
    app.command(cls=run.RunCommand, context_settings=settings)(run.run)
    return typer.main.get_command(app)


def request(*words: str) -> RunRequest:
    """Raises typer.BadParameter and so on, as the program does."""
    with _command().make_context("run", list(words)) as context:
        return asked.request_of(context.params, run.said(context))


def create(*words: str) -> containers_pb2.CreateContainerRequest:
    """What the guest is asked for by `run WORDS -- app`."""
    wanted = grants.Wanted(grants=())
    options = running.container_options(request(*words, "--", "app"), wanted, layer=False)
    return options.to_request()


def spec(*words: str) -> dict[str, Any]:
    """Its specification."""
    found: dict[str, Any] = json.loads(create(*words).spec)
    return found

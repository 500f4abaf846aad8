"""What an OCI image says of its container: image-spec, config.md.

As with docker: the image's Entrypoint stands before the command, its Cmd is the command
where none was given, and what was said on the command line goes before what the image says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from innkeeper.cli.options import UserWord
from innkeeper.shim.guest_disk import DiskError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """Empty for a root that is no image."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    directory: str = ""
    user: str = ""
    stop_signal: str = ""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ImageConfig:
        """`config`: the image's configuration. Raises DiskError for what is of another form."""
        said = config.get("config") or {}
        if not isinstance(said, dict):
            raise DiskError("the image's configuration: config is no object")
        return cls(
            entrypoint=_texts(said, "Entrypoint"),
            command=_texts(said, "Cmd"),
            environment=_texts(said, "Env"),
            directory=_text(said, "WorkingDir"),
            user=_text(said, "User"),
            stop_signal=_text(said, "StopSignal"),
        )

    @property
    def who(self) -> UserWord | None:
        """Numbers are looked up too: their group is in the container's passwd."""
        return UserWord(name=self.user) if self.user else None

    def argv(self, command: Sequence[str], entrypoint: str | None) -> tuple[str, ...]:
        """`entrypoint`: of the command line, None where it says none; it drops the image's
        own Cmd with its Entrypoint. Raises typer.BadParameter when there is nothing to run."""
        if entrypoint is None:
            found = (*self.entrypoint, *(command or self.command))
        else:
            found = (*((entrypoint,) if entrypoint else ()), *command)
        if not found or not found[0]:
            raise typer.BadParameter("write the command: innkeeper run -- CMD...")
        return tuple(found)


def _texts(said: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = said.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise DiskError(f"the image's configuration: {name} is no list of texts")
    return tuple(found)


def _text(said: Mapping[str, Any], name: str) -> str:
    found = said.get(name) or ""
    if not isinstance(found, str):
        raise DiskError(f"the image's configuration: {name} is no text")
    return found

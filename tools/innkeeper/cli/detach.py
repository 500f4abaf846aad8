"""Leaving a process that goes on: the keys that ask for it, and how to come back."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import output, refs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from innkeeper.shim.streams import Source
    from innkeeper.v1 import types_pb2

DEFAULT_KEYS = "ctrl-p,ctrl-q"
KeysOption = Annotated[
    str,
    typer.Option(
        "--detach-keys",
        metavar="KEYS",
        envvar="INNKEEPER_DETACH_KEYS",
        help="Typed when the process has a terminal, they leave it running: a letter, or"
        " ctrl-LETTER (also @ [ \\ ] ^ _), several with commas; empty: none.",
    ),
]

_KEY = re.compile(r"ctrl-([a-z@\[\\\]^_])|([\x21-\x7e])", re.IGNORECASE)
_HANDED_OVER_WITHIN = 5.0


class Detached(Exception):  # noqa: N818 - no error: it was asked for
    """The keys were typed."""


def parse_keys(text: str) -> bytes:
    """The bytes that a terminal sends for the keys; raises typer.BadParameter."""
    return b"".join(_byte_of(key) for key in text.split(",")) if text else b""


def _byte_of(key: str) -> bytes:
    match = _KEY.fullmatch(key.strip())
    if match is None:
        raise typer.BadParameter(
            f"--detach-keys: {key!r} is no key: write a letter or ctrl-LETTER, several with"
            " commas, as in ctrl-p,ctrl-q or ctrl-]"
        )
    control, plain = match.groups()
    # A control character is its letter without the upper three bits (ASCII).
    return bytes([ord(control.upper()) & 0x1F]) if control else plain.encode()


class DetachSource:
    """Input up to the keys, at which `read` raises Detached.

    What may be the beginning of the keys waits for the next one. `taken` returns when
    all that was read before has reached the process.
    """

    def __init__(self, source: Source, keys: bytes, taken: Callable[[], Awaitable[None]]) -> None:
        self._source = source
        self._keys = keys
        self._taken = taken
        self._held = b""
        self._seen = False

    async def read(self, limit: int) -> bytes:
        """As of Source; raises Detached."""
        while not self._seen:
            data = await self._source.read(max(1, limit - len(self._held)))
            if not data:
                rest, self._held = self._held, b""
                return rest
            if passed := self._filter(self._held + data):
                return passed
        # Without an answer in time the process doesn't read; the user wants to go anyway.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANDED_OVER_WITHIN):
                await self._taken()
        raise Detached

    def _filter(self, data: bytes) -> bytes:
        """What of the data goes to the process now."""
        at = data.find(self._keys)
        if at >= 0:
            # Keys that were typed after them are for nobody.
            self._seen = True
            return data[:at]
        kept = next(n for n in range(len(self._keys) - 1, -1, -1) if data.endswith(self._keys[:n]))
        self._held = data[len(data) - kept :]
        return data[: len(data) - kept]


def tell(vm: str, process: types_pb2.ProcessRef) -> None:
    """How to come back; on stderr, and below the process's last line."""
    target = refs.text(process)
    output.note(f"\n{target} goes on; attach again with: innkeeper attach {vm} {target}")

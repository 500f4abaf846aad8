"""Failures as people read them, and the exit code they give.

    innkeeper: disk1: no device behind root port 02 after 10 s
      reason: DEVICE_NOT_READY
      pci_path: 02/00
      hint: ...

Exit codes are those of container tools: the process's own when there was one,
125 for a failure of ours, 126 and 127 when the command can't be run or is not
there, 2 for a wrong use of the command line, 128+n when a signal ended us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from innkeeper.cli import hints
from innkeeper.image.model import ImageError
from innkeeper.shim.commands import CommandError
from innkeeper.shim.errors import ShimError
from innkeeper.shim.guest_disk import DiskError
from innkeeper.shim.streams import StreamsError, details_of, error_info

if TYPE_CHECKING:
    from collections.abc import Mapping

OUR_FAILURE = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127

_CANNOT_RUN = ("permission denied", "not executable", "is not a regular file", "is a directory")
_CANNOT_RUN_HINT = "the command must be a regular file that its user may execute"


class CliError(Exception):
    """What a command itself finds wrong, with a way out where there is one."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


EXPECTED = (CliError, ShimError, StreamsError, DiskError, CommandError, ImageError, grpc.RpcError)
"""Everything that is a failure and not a bug of ours."""


def explain(error: BaseException) -> str:
    """The message, and below it what else is known, one fact a line."""
    if isinstance(error, grpc.RpcError):
        return _explain_call(error)
    if isinstance(error, ShimError):
        hint = hints.hint(error.reason, error.fields, error.hint)
        return _lines(error.message, {"reason": error.reason, **in_order(error.fields)}, hint)
    if isinstance(error, CliError):
        return _lines(error.message, {}, error.hint)
    if isinstance(error, ImageError):
        return str(error)
    return str(error) or type(error).__name__


def exit_code(error: BaseException) -> int:
    """126 or 127 when the runtime could not start the command, else 125."""
    if isinstance(error, grpc.RpcError) and _reason(error) == "RUNTIME_REFUSED":
        text = details_of(error).lower()
        if "executable" in text and ("not found" in text or "no such file" in text):
            return NOT_FOUND
        if any(words in text for words in _CANNOT_RUN):
            return NOT_EXECUTABLE
    return OUR_FAILURE


def _explain_call(error: grpc.RpcError) -> str:
    info = error_info(error)
    if info is None:
        code = getattr(error, "code", lambda: None)()
        name = code.name if isinstance(code, grpc.StatusCode) else type(error).__name__
        return _lines(details_of(error), {"code": name}, "")
    fields = dict(info.metadata)
    hint = hints.hint(info.reason, fields, fields.pop("hint", ""))
    if not hint and exit_code(error) == NOT_EXECUTABLE:
        hint = _CANNOT_RUN_HINT
    return _lines(details_of(error), {"reason": info.reason, **in_order(fields)}, hint)


def in_order(fields: Mapping[str, str]) -> dict[str, str]:
    """By name: a map of protobuf's comes in another order each time."""
    return dict(sorted(fields.items()))


def _reason(error: grpc.RpcError) -> str:
    info = error_info(error)
    return info.reason if info is not None else ""


def _lines(message: str, fields: Mapping[str, str], hint: str) -> str:
    known = [f"  {name}: {text}" for name, text in fields.items() if not _is_told(text, message)]
    return "\n".join([message, *known, *([f"  hint: {hint}"] if hint else [])])


def _is_told(text: str, message: str) -> bool:
    """Sentences that the message holds already; ids and numbers are shown by their
    names even when it has them too."""
    return not text or (" " in text and text in message)

"""Why a device did not come or go, as an operator needs it: evidence line by line,
and who holds it as a table."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import grpc

from innkeeper.cli import hints, output
from innkeeper.cli.errors import CliError, in_order
from innkeeper.shim.errors import ShimError
from innkeeper.shim.streams import details_of, error_info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOLDERS = ("KIND", "NAME", "PATH", "PID", "COMMAND")


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turns what is raised inside into the command's own error."""
    try:
        yield
    except ShimError as error:
        raise _told(error.message, error.reason, error.fields, error.hint) from error
    except grpc.RpcError as error:
        info = error_info(error)
        if info is None:
            raise
        fields = dict(info.metadata)
        hint = fields.pop("hint", "")
        raise _told(details_of(error), info.reason, fields, hint) from error


def _told(message: str, reason: str, fields: Mapping[str, str], hint: str) -> CliError:
    return CliError(explain(message, reason, fields), hint=hints.hint(reason, fields, hint))


def explain(message: str, reason: str, fields: Mapping[str, str]) -> str:
    """The message, the reason (the guest's, where it refused), and each field."""
    known = in_order(fields)
    reason = known.pop("guest_reason", "") or reason
    holders = known.pop("holders", "")
    lines = [message, f"  reason: {reason}"]
    for name, text in known.items():
        lines += _field(name, text)
    return "\n".join([*lines, *_holders(holders)])


def _field(name: str, text: str) -> list[str]:
    first, *more = text.splitlines() or [""]
    if not first and not more:
        return []
    if not more:
        return [f"  {name}: {first}"]
    return [f"  {name}:", *(f"    {line}" for line in (first, *more))]


def _holders(text: str) -> list[str]:
    if not text:
        return []
    try:
        found = json.loads(text)
        rows = [row(one) for one in found]
    except (ValueError, AttributeError, TypeError):
        # A list that was cut on its way: better shown as it is than not at all.
        return [f"  holders: {text}"]
    return ["  held by:", *(f"    {line}" for line in lines_of(rows))]


def row(holder: Mapping[str, object]) -> list[str]:
    return [str(holder.get(name.lower()) or "-") for name in HOLDERS]


def lines_of(rows: Sequence[Sequence[str]]) -> list[str]:
    return output.plain_table(HOLDERS, rows).splitlines()

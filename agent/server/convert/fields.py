"""Checks that the fields of more than one request need."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from agent.core.errors import Reason, exhausted, invalid
from agent.server.limits import LONGEST_TIMEOUT, OBJECTS
from agent.server.routing import not_built

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sized

    from google.protobuf.message import Message

MICROS: Final = 1_000_000

PATH_BYTES: Final = 4095
"""PATH_MAX without its NUL (include/uapi/linux/limits.h)."""


def seconds(value: float, field: str) -> float | None:
    """A timeout: None for 0, which means the default."""
    if not (math.isfinite(value) and 0 <= value <= LONGEST_TIMEOUT):
        raise invalid(
            f"{field}: {value} is not a time of 0 to {LONGEST_TIMEOUT:.0f} seconds", field=field
        )
    return value or None


def plain_text(value: str, field: str) -> str:
    """A text that may become an argument, a path or part of a file: without NUL."""
    if "\0" in value:
        raise invalid(f"{field}: a NUL character is not possible here", field=field)
    return value


def absolute_path(value: str, field: str) -> str:
    """A path from the root, as it is; `..` is left to whoever resolves it."""
    if not plain_text(value, field).startswith("/"):
        raise invalid(f"{field}: {value!r} is not an absolute path", field=field, value=value)
    if len(value) > PATH_BYTES or len(value.encode()) > PATH_BYTES:
        raise invalid(f"{field}: a path has at most {PATH_BYTES} bytes", field=field)
    return value


def at_most(limit: int, values: Sized, field: str) -> None:
    """BAD_FIELD for a list that is too long, before its members are looked at."""
    if len(values) > limit:
        raise invalid(f"{field}: {len(values)} are more than {limit}", field=field, limit=limit)


def no_doubles(values: Iterable[Hashable], field: str) -> None:
    """BAD_FIELD, naming it, for what is there twice."""
    seen = set()
    for value in values:
        if value in seen:
            raise invalid(f"{field}: {value} is there twice", field=field)
        seen.add(value)


def within(value: int, least: int, most: int, field: str) -> int:
    """A number of a range; raises BAD_FIELD."""
    if not least <= value <= most:
        raise invalid(f"{field}: {value} is not {least} to {most}", field=field)
    return value


def choice(message: Message, name: str, field: str) -> str:
    """Which member of a oneof is set; BAD_FIELD when none is."""
    chosen: str | None = message.WhichOneof(name)
    if chosen is None:
        members = ", ".join(f.name for f in message.DESCRIPTOR.oneofs_by_name[name].fields)
        raise invalid(f"{field}: exactly one of {members} must be set, none is", field=field)
    return chosen


def refuse_unbuilt(message: Message, names: tuple[str, ...], field: str) -> None:
    """NOT_BUILT_YET when one of these fields is not at its default."""
    for present, _ in message.ListFields():
        if present.name in names:
            raise not_built(f"{field}.{present.name}")


def require_room(count: int, kind: str, most: int = OBJECTS) -> None:
    """LIMIT_REACHED when one more object of this kind is too many."""
    if count >= most:
        raise exhausted(
            f"there are {count} {kind} already, at most {most} are possible",
            reason=Reason.LIMIT_REACHED,
            limit=kind,
            maximum=most,
        )

"""Names of interfaces in requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import AgentError, invalid
from agent.handlers.network.names import ALTNAME_BYTES, check_altname, check_name

if TYPE_CHECKING:
    from collections.abc import Callable


def device(text: str, field: str) -> str:
    """What an interface that is there may be called by: its name or an alternative one.

    Others than we give some (`enp0s3@nic`, PCI addresses), so only what no name can be
    is refused. Raises BAD_FIELD.
    """
    fits = 0 < len(text) <= ALTNAME_BYTES and len(text.encode()) <= ALTNAME_BYTES
    if not fits or " " in text or not text.isprintable():
        raise invalid(
            f"{field}: {text[:80]!r} is no name of an interface: expected one word of 1 to"
            f" {ALTNAME_BYTES} bytes",
            field=field,
        )
    return text


def new(text: str, field: str) -> str:
    """A name that an interface gets; raises BAD_FIELD."""
    return _checked(check_name, text, field)


def alternative(text: str, field: str) -> str:
    """An alternative name that an interface gets; raises BAD_FIELD."""
    return _checked(check_altname, text, field)


def _checked(check: Callable[[str, str], None], text: str, field: str) -> str:
    try:
        check(text, field)
    except AgentError as error:
        message = f"{field}: {error.message}"
        raise invalid(message, hint=error.hint, field=field) from error
    return text

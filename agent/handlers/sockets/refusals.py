"""Why a socket can't be connected to or listened on."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from agent.core.errors import (
    AgentError,
    Code,
    Reason,
    already_exists,
    exhausted,
    invalid,
    kernel_refused,
    not_found,
    timed_out,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.handlers.sockets.addresses import SocketPlace


def refused(place: SocketPlace, tried: Sequence[tuple[str, OSError]]) -> AgentError:
    """Nobody took the connection; `tried` is each address with what came of it."""
    last = tried[-1][1]
    told = "; ".join(f"{address}: {_words(error)}" for address, error in tried)
    return AgentError(
        f"nobody took the connection to {place}: {told}",
        code=Code.UNAVAILABLE,
        reason=Reason.CONNECTION_REFUSED,
        fields={"address": str(place), "errno": _name(last)},
        hint="does anybody listen there, in that network?",
    )


def unresolved(place: SocketPlace, why: str) -> AgentError:
    return AgentError(
        f"{place}: the guest finds no address for that name: {why}",
        code=Code.UNAVAILABLE,
        reason=Reason.CONNECTION_REFUSED,
        fields={"address": str(place)},
    )


def late(place: SocketPlace, seconds: float) -> AgentError:
    return timed_out(
        f"nobody answered at {place} within {seconds:g} s",
        hint="a firewall that drops, or a server that takes no connections any more",
        address=str(place),
    )


def not_bound(place: SocketPlace, error: OSError) -> AgentError:
    """The kernel did not let us listen there."""
    if error.errno == errno.EADDRINUSE:
        return already_exists(
            f"{place}: somebody listens there already, or a file is there",
            reason=Reason.ADDRESS_IN_USE,
            hint="for a path: only a socket that nobody listens on is replaced",
            address=str(place),
        )
    if error.errno in (errno.ENAMETOOLONG, errno.EISDIR):
        return invalid(
            f"{place}: no socket can have that name: 1 to 107 bytes, and no directory",
            address=str(place),
        )
    return kernel_refused(error, doing=f"listen on {place}")


def too_many(what: str, most: int, hint: str) -> AgentError:
    return exhausted(
        f"there are {most} {what}, no more are possible",
        reason=Reason.LIMIT_REACHED,
        hint=hint,
        limit=what,
        maximum=most,
    )


def unknown(number: int, seconds: float) -> AgentError:
    return not_found(
        f"no connection {number} waits: it was taken, it was closed, or nobody took it"
        f" within {seconds:g} s",
        reason=Reason.UNKNOWN_CONNECTION,
        connection=number,
    )


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "")

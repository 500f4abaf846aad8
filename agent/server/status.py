"""AgentError -> gRPC status: the one table, and `google.rpc.ErrorInfo`.

A status travels in HTTP/2 trailers, which receivers cut at 8 KiB by default
(gRPC's `grpc.max_metadata_size`), so texts are shortened to fit: an error that
is too long to arrive would arrive as no error at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from agent.core.errors import AgentError, Code, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

DOMAIN: Final = "innkeeper"
DETAILS_KEY: Final = "grpc-status-details-bin"

STATUS_CODES: Final[Mapping[Code, grpc.StatusCode]] = {
    Code.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Code.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Code.FAILED_PRECONDITION: grpc.StatusCode.FAILED_PRECONDITION,
    Code.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    Code.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Code.OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    Code.ABORTED: grpc.StatusCode.ABORTED,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.UNIMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    Code.INTERNAL: grpc.StatusCode.INTERNAL,
}

# Sizes as they travel: the message once in percent-encoding and once inside the
# details, which are base64. Together below 8 KiB, with room for other trailers.
_MESSAGE_ENCODED = 2000
_METADATA_BYTES = 2000
_VALUE_BYTES = 800
_CUT = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class WireStatus:
    """What `ServicerContext.abort` takes."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, bytes], ...]


def wire_status(error: AgentError) -> WireStatus:
    """The status of an error, with its reason, fields and hint as ErrorInfo."""
    code = STATUS_CODES[error.code]
    message = _shorten(error.message, _MESSAGE_ENCODED)
    info = error_details_pb2.ErrorInfo(
        reason=error.reason.value, domain=DOMAIN, metadata=_metadata(error)
    )
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    return WireStatus(
        code=code, message=message, trailers=((DETAILS_KEY, status.SerializeToString()),)
    )


def unexpected(method: str, identifier: str) -> AgentError:
    """What the host gets to know of a bug: where, and what to look for in the log."""
    return AgentError(
        f"{method}: unexpected error {identifier} in the agent",
        code=Code.INTERNAL,
        reason=Reason.INTERNAL_ERROR,
        fields={"id": identifier},
        hint=f"the agent's log holds the traceback under id {identifier}",
    )


def root_cause(error: BaseException) -> BaseException:
    """The error that matters in a group: the first AgentError in it, else the first at all."""
    leaves = list(_leaves(error))
    return next((leaf for leaf in leaves if isinstance(leaf, AgentError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _metadata(error: AgentError) -> dict[str, str]:
    hint = {"hint": error.hint} if error.hint else {}
    room = _METADATA_BYTES
    kept: dict[str, str] = {}
    for name, value in {**hint, **error.fields}.items():
        short = _shorten(value, min(_VALUE_BYTES, max(room, 0)))
        room -= len(name) + len(short.encode())
        if room < 0:
            break
        kept[name] = short
    return kept


def _shorten(text: str, limit: int) -> str:
    """`text` cut so that neither its UTF-8 nor its percent-encoded form is above `limit`."""
    # One character beyond the limit is enough to know; the text may be huge.
    text = text[: limit + 1].encode(errors="replace").decode()
    if sum(map(_encoded, text)) <= limit:
        return text
    kept, used = 0, len(_CUT)
    for character in text:
        used += _encoded(character)
        if used > limit:
            break
        kept += 1
    return text[:kept] + _CUT


def _encoded(character: str) -> int:
    """Bytes of a character in percent-encoding: gRPC escapes all but printable ASCII, and `%`."""
    plain = " " <= character <= "~" and character != "%"
    return 1 if plain else 3 * len(character.encode())

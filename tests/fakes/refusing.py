"""How services refuse a call, with ErrorInfo in the status's details, and how callers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

if TYPE_CHECKING:
    from collections.abc import Mapping


async def refuse(
    context: aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    message: str,
    reason: str,
    **fields: str,
) -> None:
    """Ends a call as the agent does."""
    trailers = _trailers(code, message, reason, fields)
    await context.abort(code, message, trailing_metadata=trailers)


def refusal(message: str, reason: str, **fields: str) -> aio.AioRpcError:
    """A call that failed so."""
    code = grpc.StatusCode.FAILED_PRECONDITION
    trailers = aio.Metadata(*_trailers(code, message, reason, fields))
    return aio.AioRpcError(code, aio.Metadata(), trailers, message)


def _trailers(
    code: grpc.StatusCode, message: str, reason: str, fields: Mapping[str, str]
) -> tuple[tuple[str, bytes]]:
    info = error_details_pb2.ErrorInfo(reason=reason, domain="innkeeper", metadata=fields)
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    return (("grpc-status-details-bin", status.SerializeToString()),)

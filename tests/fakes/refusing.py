"""How services refuse a call: with ErrorInfo in the status's details."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc import aio


async def refuse(
    context: aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    message: str,
    reason: str,
    **fields: str,
) -> None:
    """Ends a call as the agent does."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain="innkeeper", metadata=fields)
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    trailers = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(code, message, trailing_metadata=trailers)

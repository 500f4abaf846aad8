"""What a failed call says beyond its code: the fields of its last ErrorInfo."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import aio


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One failed call, as a program reads it."""

    code: grpc.StatusCode
    reason: str
    text: str
    fields: dict[str, str]

    @property
    def holders(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self.fields["holders"])
        return found

    @property
    def kinds(self) -> set[object]:
        return {holder["kind"] for holder in self.holders}


async def refusal(call: Awaitable[object]) -> Refusal:
    """Of a call that must fail; what the guest said, where the host only passes it on."""
    try:
        answer = await call
    except aio.AioRpcError as error:
        return _read(error)
    raise AssertionError(f"it succeeded: {answer}")


def _read(error: aio.AioRpcError) -> Refusal:
    info = error_details_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                detail.Unpack(info)
    return Refusal(
        code=error.code(),
        reason=info.reason,
        text=error.details() or "",
        fields=dict(info.metadata),
    )

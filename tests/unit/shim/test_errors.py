"""Errors of the host's side, to the wire and back."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import quote

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError, Metadata

from innkeeper.shim.errors import STATUS_TRAILER, Reason, ShimError, with_tail

pytestmark = [pytest.mark.unit, pytest.mark.operations]


def failed(code: grpc.StatusCode, text: str, *trailers: tuple[str, bytes]) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(*trailers), details=text)


def guest_error(code: grpc.StatusCode, reason: str, **fields: str) -> AioRpcError:
    info = error_details_pb2.ErrorInfo(reason=reason, domain="innkeeper", metadata=fields)
    detail = any_pb2.Any()
    detail.Pack(info)
    status = status_pb2.Status(code=code.value[0], message="no", details=[detail])
    return failed(code, "no", (STATUS_TRAILER, status.SerializeToString()))


def infos(error: ShimError) -> list[error_details_pb2.ErrorInfo]:
    found = []
    for detail in error.to_status().details:
        info = error_details_pb2.ErrorInfo()
        assert detail.Unpack(info)
        found.append(info)
    return found


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_code_that_is_no_success(reason: Reason) -> None:
    assert ShimError(reason, "x").code not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN)


def test_the_status_has_reason_domain_fields_and_hint() -> None:
    error = ShimError(Reason.FILE_IN_USE, "disk: in use", hint="stop it", fields={"file": "/d"})
    (info,) = infos(error)
    assert (info.reason, info.domain) == ("FILE_IN_USE", "innkeeper")
    assert dict(info.metadata) == {"file": "/d"}
    assert error.to_status().message == "disk: in use (stop it)"
    assert error.to_status().code == grpc.StatusCode.FAILED_PRECONDITION.value[0]


def test_a_client_gets_back_what_the_daemon_raised() -> None:
    error = ShimError(Reason.ID_IN_USE, "taken", fields={"id": "data"})
    told = ShimError.from_call(failed(error.code, str(error), *error.trailers()))
    assert told is not None
    assert (told.reason, told.code, told.message) == (error.reason, error.code, "taken")
    assert told.fields == {"id": "data"}


def test_a_guests_refusal_keeps_its_code_and_its_details() -> None:
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    cause = guest_error(code, "DEVICE_NOT_READY", seen="0000:01:00.0")
    error = ShimError.from_guest("attach of disk data", cause)
    assert (error.reason, error.code) == (Reason.GUEST_REFUSED, code)
    assert error.fields == {"seen": "0000:01:00.0", "guest_reason": "DEVICE_NOT_READY"}
    assert [info.reason for info in infos(error)] == ["GUEST_REFUSED", "DEVICE_NOT_READY"]


def test_a_guest_that_did_not_answer_is_told_apart_from_one_that_refused() -> None:
    away = ShimError.from_guest("x", failed(grpc.StatusCode.UNAVAILABLE, "agent is restarting"))
    assert (away.reason, away.code) == (Reason.AGENT_AWAY, grpc.StatusCode.UNAVAILABLE)
    assert "agent is restarting" in str(away)
    late = ShimError.from_guest("x", failed(grpc.StatusCode.DEADLINE_EXCEEDED, ""))
    assert late.reason is Reason.OPERATION_TIMED_OUT


def test_an_error_of_somebody_else_is_not_taken_for_ours() -> None:
    assert ShimError.from_call(failed(grpc.StatusCode.INTERNAL, "x")) is None
    assert ShimError.from_call(guest_error(grpc.StatusCode.NOT_FOUND, "UNKNOWN_CONTAINER")) is None


@pytest.mark.parametrize("filler", ["x", "\n", "é", "\U0001f600"])
def test_a_status_stays_below_the_limit_of_a_header_block(filler: str) -> None:
    """gRPC takes 8 KiB of metadata: the text percent-encoded, the details as base64."""
    text = with_tail("VM web", "console", (filler * 9999, "last"))
    error = ShimError(Reason.QEMU_GONE, text, fields={"a": "y" * 9999})
    (_, packed), *_ = error.trailers()
    assert len(quote(error.to_status().message)) + len(b64encode(packed)) < 8192 - 512
    assert error.to_status().message.endswith("last")

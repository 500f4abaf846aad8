"""The table from AgentError to gRPC, and what of an error is sent."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from agent.core.errors import AgentError, Code, Reason, invalid
from agent.server.status import STATUS_CODES, WireStatus, root_cause, wire_status

pytestmark = [pytest.mark.unit, pytest.mark.operations]

# Default of grpc.max_metadata_size: what a receiver takes of all trailers together.
RECEIVERS_LIMIT = 8192


def error(message: str = "m", **members: object) -> AgentError:
    chosen = {"code": Code.NOT_FOUND, "reason": Reason.UNKNOWN_DEVICE} | members
    return AgentError(message, **chosen)  # type: ignore[arg-type]


def details(status: WireStatus) -> tuple[status_pb2.Status, error_details_pb2.ErrorInfo]:
    ((key, raw),) = status.trailers
    assert key == "grpc-status-details-bin"
    sent = status_pb2.Status.FromString(raw)
    info = error_details_pb2.ErrorInfo()
    assert sent.details[0].Unpack(info)
    return sent, info


@pytest.mark.parametrize("code", Code)
def test_every_code_is_the_grpc_code_of_its_name(code: Code) -> None:
    assert STATUS_CODES[code] is getattr(grpc.StatusCode, code.name)


def test_an_error_is_sent_whole() -> None:
    sent = wire_status(error("no disk", fields={"id": "d1"}, hint="attach it"))
    status, info = details(sent)
    assert sent.code is grpc.StatusCode.NOT_FOUND
    assert (status.code, status.message) == (5, "no disk")
    assert (info.reason, info.domain) == ("UNKNOWN_DEVICE", "innkeeper")
    assert dict(info.metadata) == {"id": "d1", "hint": "attach it"}


def test_both_places_carry_the_same_message() -> None:
    """grpc_status refuses a status whose message is not the call's."""
    for text in ("x" * 5000, "é" * 5000, "ok"):
        sent = wire_status(error(text))
        assert details(sent)[0].message == sent.message


@pytest.mark.parametrize("character", ["x", "é", "\n", "%", "\U0001f511", "\udcff", "\0"])
def test_whatever_is_in_it_fits_into_a_receivers_limit(character: str) -> None:
    long = character * 100_000
    fields = {f"field{number}": long for number in range(50)}
    sent = wire_status(error(long, fields=fields, hint=long))
    # As it travels: percent-encoded message, base64 of the details.
    message = sum(_encoded(one) for one in sent.message)
    ((_, raw),) = sent.trailers
    assert message + len(raw) * 4 / 3 < RECEIVERS_LIMIT
    assert details(sent)[1].reason == "UNKNOWN_DEVICE"


def _encoded(character: str) -> int:
    """PROTOCOL-HTTP2.md: printable ASCII but % goes as it is, every other byte as %XX."""
    plain = " " <= character <= "~" and character != "%"
    return 1 if plain else 3 * len(character.encode())


def test_a_message_that_fits_is_not_cut() -> None:
    assert wire_status(error("x" * 2000)).message == "x" * 2000
    assert wire_status(error("x" * 2001)).message.endswith("...")


def test_the_hint_and_the_first_fields_are_kept_of_too_many() -> None:
    fields = {f"f{number:02}": "x" * 500 for number in range(10)}
    _, info = details(wire_status(error(fields=fields, hint="do this")))
    assert info.metadata["hint"] == "do this"
    assert info.metadata["f00"] == "x" * 500
    assert "f09" not in info.metadata


def test_the_agents_error_is_what_matters_in_a_group() -> None:
    ours = invalid("bad")
    group = ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [ours, KeyError()])])
    assert root_cause(group) is ours


def test_without_one_the_first_error_is_what_matters() -> None:
    first = ValueError()
    assert root_cause(ExceptionGroup("g", [first, KeyError()])) is first
    cancelled = asyncio.CancelledError()
    assert root_cause(cancelled) is cancelled

"""HTTP/2 as far as a server with one answer needs it (RFC 9113; RFC 7541; gRPC's own spec)."""

from __future__ import annotations

import base64
import struct

import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from agent.relay import hpack
from agent.relay.greeting import PREFACE, Verdict, judge
from agent.relay.h2away import Answerer
from agent.relay.status import percent, unavailable

pytestmark = [pytest.mark.unit, pytest.mark.boot]

SETTINGS, HEADERS, DATA, RST_STREAM, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(4, 1, 0, 3),
    *(6, 7, 8, 9),
)
END_STREAM, END_HEADERS, ACK = 1, 4, 1

Frame = tuple[int, int, int, bytes]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def frames(wire: bytes) -> list[Frame]:
    found = []
    while wire:
        length = int.from_bytes(wire[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", wire[3:9])
        found.append((kind, flags, stream, wire[9 : 9 + length]))
        wire = wire[9 + length :]
    return found


def greeted() -> Answerer:
    answerer = Answerer(lambda: "the agent is away")
    assert answerer.feed(PREFACE) == b""
    return answerer


def test_the_server_opens_with_settings() -> None:
    assert frames(greeted().opening()) == [(SETTINGS, 0, 0, b"")]


def test_settings_and_pings_are_acknowledged_and_acknowledgements_are_not() -> None:
    answerer = greeted()
    wire = frame(SETTINGS, payload=bytes(12)) + frame(SETTINGS, ACK)
    wire += frame(PING, payload=b"12345678") + frame(PING, ACK, payload=b"12345678")
    assert frames(answerer.feed(wire)) == [(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"12345678")]


def test_each_call_is_answered_with_trailers_only() -> None:
    answerer = greeted()
    wire = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x83\x86") + frame(
        HEADERS, END_HEADERS | END_STREAM, 3, b"\x83\x86"
    )
    answers = frames(answerer.feed(wire))
    assert [a[:3] for a in answers] == [(HEADERS, END_HEADERS | END_STREAM, n) for n in (1, 3)]
    assert b"the agent is away" in answers[0][3]
    assert answerer.replies == 2


def test_a_request_that_goes_on_is_told_to_stop() -> None:
    """RFC 9113, 8.1: a complete answer before the request's end, then RST_STREAM NO_ERROR."""
    answerer = greeted()
    answers = frames(answerer.feed(frame(HEADERS, END_HEADERS, 1, b"\x83")))
    assert [a[0] for a in answers] == [HEADERS, RST_STREAM]
    assert answers[1] == (RST_STREAM, 0, 1, bytes(4))
    assert answerer.feed(frame(DATA, 0, 1, b"data") + frame(WINDOW_UPDATE, 0, 1, bytes(4))) == b""
    assert answerer.feed(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"trailers")) == b""


def test_a_block_in_pieces_is_followed_to_its_end() -> None:
    answerer = greeted()
    assert answerer.feed(frame(HEADERS, END_STREAM, 1, b"\x83")) == b""
    assert answerer.feed(frame(CONTINUATION, 0, 1, b"\x86")) == b""
    answers = frames(answerer.feed(frame(CONTINUATION, END_HEADERS, 1, b"\x84")))
    assert [a[0] for a in answers] == [HEADERS]


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        (frame(HEADERS, 0, 1) + frame(PING, payload=bytes(8)), 1),
        (frame(HEADERS, 0, 1) + frame(CONTINUATION, END_HEADERS, 3), 1),
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", 6),
    ],
    ids=["between the pieces", "another stream's piece", "too large a frame"],
)
def test_a_broken_client_gets_goaway_with_the_reason(wire: bytes, error: int) -> None:
    answerer = greeted()
    kind, _flags, stream, payload = frames(answerer.feed(wire))[-1]
    assert (kind, stream) == (GOAWAY, 0)
    assert struct.unpack(">II", payload)[1] == error
    assert answerer.over
    assert answerer.feed(frame(PING, payload=bytes(8))) == b""


def test_goodbye_names_the_last_call_that_was_answered() -> None:
    answerer = greeted()
    answerer.feed(frame(HEADERS, END_HEADERS | END_STREAM, 5, b"\x83"))
    assert frames(answerer.goodbye()) == [(GOAWAY, 0, 0, struct.pack(">II", 5, 0))]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_any_cutting_gives_the_same_answers(sizes: list[int]) -> None:
    wire = PREFACE + frame(SETTINGS) + frame(HEADERS, END_HEADERS, 1, b"x" * 50)
    wire += frame(DATA, END_STREAM, 1, b"y" * 70) + frame(PING, payload=b"abcdefgh")
    answerer, answers, at = Answerer(lambda: "away"), b"", 0
    for size in sizes:
        answers += answerer.feed(wire[at : at + size])
        at += size
    answers += answerer.feed(wire[at:])
    assert answers == Answerer(lambda: "away").feed(wire)


def test_what_is_not_the_preface_is_refused() -> None:
    answerer = Answerer(lambda: "away")
    assert frames(answerer.feed(b"GET / HTTP/1.1\r\n\r\n"))[0][0] == GOAWAY


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (b"P", Verdict.MORE),
        (PREFACE[:-1], Verdict.MORE),
        (PREFACE, Verdict.HTTP2),
        (PREFACE + b"\0", Verdict.HTTP2),
        (b"\0\0\0\x10", Verdict.TTRPC),
        (b"GET /", Verdict.UNKNOWN),
        (b"POST", Verdict.UNKNOWN),
    ],
)
def test_first_bytes_are_judged(seen: bytes, verdict: Verdict) -> None:
    assert judge(seen) is verdict


def test_header_blocks_are_literals() -> None:
    """RFC 7541, C.2.3, but for the pattern of 6.2.2 (not indexed) in place of 6.2.3."""
    wire = bytes.fromhex("00 0870617373776f7264 06736563726574")
    assert hpack.headers([(b"password", b"secret")]) == wire


@pytest.mark.parametrize(
    ("length", "coded"),
    [(126, "7e"), (127, "7f00"), (128, "7f01"), (254, "7f7f"), (255, "7f8001"), (1337, "7fba09")],
)
def test_long_strings_have_long_lengths(length: int, coded: str) -> None:
    """RFC 7541, 5.1, with a prefix of seven bits."""
    block = hpack.headers([(b"n", bytes(length))])
    assert block[3:-length].hex() == coded


def test_messages_are_percent_encoded() -> None:
    """gRPC over HTTP/2: all but printable ASCII, and the percent sign itself."""
    assert percent("a b~ 100%\né".encode()) == b"a b~ 100%25%0A%C3%A9"


def test_details_are_what_protobuf_reads() -> None:
    text = "not serving – " + "x" * 300
    fields = dict(unavailable(text))
    assert (fields[b":status"], fields[b"grpc-status"]) == (b"200", b"14")
    status = status_pb2.Status.FromString(base64.b64decode(fields[b"grpc-status-details-bin"]))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (status.code, status.message) == (14, text)
    assert (info.reason, info.domain) == ("AGENT_AWAY", "innkeeper")


def test_an_endless_reason_is_cut_between_characters() -> None:
    fields = dict(unavailable("é" * 2000))
    status = status_pb2.Status.FromString(base64.b64decode(fields[b"grpc-status-details-bin"]))
    assert status.message == "é" * 512

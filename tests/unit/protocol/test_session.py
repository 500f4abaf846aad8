"""The framing of sessions on a stream that may be cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from innkeeper.v1.session import MARK, NONCE_SIZE, Decoder, Encoder, End, Event, Start, new_nonce

pytestmark = [pytest.mark.unit, pytest.mark.boot]

NONCE = bytes(range(NONCE_SIZE))
OTHER = bytes(range(100, 100 + NONCE_SIZE))

# Mostly pieces of marks, which is where such a code breaks.
payloads = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from([MARK, *(MARK[:n] for n in range(1, 8)), MARK[4:], b"\x00", b"\x01\x02"]),
    ),
    max_size=8,
).map(b"".join)
chunk_sizes = st.lists(st.integers(1, 12), min_size=1, max_size=10)
nonces = st.binary(min_size=NONCE_SIZE, max_size=NONCE_SIZE).filter(lambda n: MARK[0] not in n)


def chunks(wire: bytes, sizes: list[int]) -> list[bytes]:
    """The wire cut into pieces of these sizes, over and over."""
    pieces, at, turn = [], 0, 0
    while at < len(wire):
        pieces.append(wire[at : at + sizes[turn % len(sizes)]])
        at += len(pieces[-1])
        turn += 1
    return pieces


def decoded(decoder: Decoder, pieces: list[bytes]) -> list[Event]:
    """All events; neighbouring data joined."""
    events: list[Event] = []
    for event in (event for piece in pieces for event in decoder.feed(piece)):
        if isinstance(event, bytes) and events and isinstance(events[-1], bytes):
            events[-1] += event
        else:
            events.append(event)
    return events


def test_the_mark_cannot_overlap_itself() -> None:
    assert len(MARK) == 8
    assert MARK.count(MARK[:1]) == 1


def test_nonces_have_no_byte_that_begins_a_mark() -> None:
    assert all(MARK[0] not in new_nonce() for _ in range(200))
    assert len({new_nonce() for _ in range(200)}) == 200


def test_a_nonce_that_could_be_a_mark_is_refused() -> None:
    for nonce in (MARK + bytes(8), b"short"):
        with pytest.raises(ValueError, match="must be 16 bytes without 0xf5"):
            Encoder().start(nonce)


def test_the_wire_is_as_documented() -> None:
    encoder = Encoder()
    assert encoder.start(NONCE) == MARK + b"\x01" + NONCE
    assert encoder.data(b"a" + MARK + b"b") == b"a" + MARK + b"\x00b"
    assert encoder.end() == MARK + b"\x02"


@given(st.lists(payloads, max_size=5), chunk_sizes)
def test_any_payload_survives_any_cutting(writes: list[bytes], sizes: list[int]) -> None:
    encoder = Encoder()
    wire = encoder.start(NONCE) + b"".join(encoder.data(write) for write in writes) + encoder.end()
    payload = b"".join(writes)
    expected = [Start(NONCE), *([payload] if payload else []), End()]
    assert decoded(Decoder(), chunks(wire, sizes)) == expected


@given(payloads, payloads, st.integers(0, 200), chunk_sizes)
def test_a_session_starts_behind_any_cut(
    former: bytes, payload: bytes, cut: int, sizes: list[int]
) -> None:
    """The former host vanished in the middle of anything; the next one starts at once."""
    encoder = Encoder()
    rest = (encoder.start(OTHER) + encoder.data(former) + encoder.end())[:cut]
    encoder = Encoder()
    wire = rest + encoder.start(NONCE) + encoder.data(payload)
    # What is held back, as a mark may begin in it, comes with what follows.
    events = decoded(Decoder(), [*chunks(wire, sizes), encoder.end()])
    begin = events.index(Start(NONCE))
    assert b"".join(e for e in events[begin + 1 :] if isinstance(e, bytes)) == payload
    assert former.startswith(b"".join(e for e in events[:begin] if isinstance(e, bytes))) or (
        MARK[:1] in rest  # a cut mark reads as data of the session that it ended
    )


@given(st.binary(max_size=40), payloads, nonces)
def test_the_host_hears_nothing_but_its_own_session(
    noise: bytes, stale: bytes, nonce: bytes
) -> None:
    """Bytes of a former life, its echo and its data come before the echo that counts."""
    encoder = Encoder()
    wire = noise + encoder.data(stale) + encoder.start(OTHER) + encoder.data(stale) + encoder.end()
    wire += encoder.start(nonce) + encoder.data(b"mine") + encoder.end()
    if nonce != OTHER:
        assert decoded(Decoder(expect=nonce), [wire]) == [Start(nonce), b"mine", End()]


def test_another_session_ends_the_hosts_own() -> None:
    encoder = Encoder()
    wire = encoder.start(NONCE) + encoder.data(b"mine") + encoder.start(OTHER) + encoder.data(b"x")
    assert decoded(Decoder(expect=NONCE), [wire]) == [Start(NONCE), b"mine", End()]


def test_data_outside_of_a_session_is_dropped() -> None:
    encoder = Encoder()
    wire = encoder.data(b"before") + encoder.start(NONCE) + encoder.end() + encoder.data(b"after")
    assert decoded(Decoder(), [wire]) == [Start(NONCE), End()]


def test_a_sign_that_does_not_exist_ends_the_session() -> None:
    wire = Encoder().start(NONCE) + b"good" + MARK + b"\x77" + b"never passed on"
    assert decoded(Decoder(), [wire]) == [Start(NONCE), b"good", End()]


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_no_input_fails(pieces: list[bytes]) -> None:
    decoder = Decoder()
    decoded(decoder, pieces)
    assert decoder.feed(Encoder().start(NONCE))[-1] == Start(NONCE)

"""UNAVAILABLE with its reason, as gRPC puts it into trailers.

The two small protobuf messages are written by hand: the relay has nothing but
the standard library.
"""

from __future__ import annotations

import binascii

_UNAVAILABLE = 14
_TYPE = b"type.googleapis.com/google.rpc.ErrorInfo"
_REASON = b"AGENT_AWAY"
_DOMAIN = b"innkeeper"
_TEXT_LIMIT = 1024


def unavailable(text: str) -> list[tuple[bytes, bytes]]:
    """The fields of a Trailers-Only response; a text over 1 KiB is cut."""
    message = text.encode()[:_TEXT_LIMIT].decode(errors="ignore").encode()
    return [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"%d" % _UNAVAILABLE),
        (b"grpc-message", percent(message)),
        (b"grpc-status-details-bin", binascii.b2a_base64(_details(message), newline=False)),
    ]


def percent(message: bytes) -> bytes:
    """grpc-message's encoding: printable ASCII but `%` as it is, all else as %XX."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in message
    )


def _details(message: bytes) -> bytes:
    """google.rpc.Status{code, message, details: [Any(ErrorInfo{reason, domain})]}."""
    info = _field(1, _REASON) + _field(2, _DOMAIN)
    packed = _field(1, _TYPE) + _field(2, info)
    return bytes((1 << 3, _UNAVAILABLE)) + _field(2, message) + _field(3, packed)


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field (wire type 2)."""
    return bytes((number << 3 | 2,)) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    coded = bytearray()
    while value >= 128:
        coded.append(value & 127 | 128)
        value >>= 7
    coded.append(value)
    return bytes(coded)

"""The first bytes of a connection say what the peer wants."""

from __future__ import annotations

from enum import Enum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every HTTP/2 client sends first (RFC 9113, 3.4)."""


class Verdict(Enum):
    """What the bytes seen so far are; the value says it in a log line."""

    HTTP2 = "HTTP/2"
    MORE = "the beginning of an HTTP/2 preface"
    TTRPC = "ttrpc, which is not served yet"
    UNKNOWN = "no protocol that is served here"


def judge(seen: bytes) -> Verdict:
    """Judge the first bytes of a stream, however few there are yet."""
    if seen.startswith(PREFACE):
        return Verdict.HTTP2
    if PREFACE.startswith(seen):
        return Verdict.MORE
    return Verdict.TTRPC if seen.startswith(b"\x00") else Verdict.UNKNOWN

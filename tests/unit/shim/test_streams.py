"""The host's books on a process's streams: what is acknowledged, what is new."""

from __future__ import annotations

import pytest

from innkeeper.shim.streams import INPUT_WINDOW, InputBuffer, OutputCursor, StreamsError
from innkeeper.v1 import processes_pb2, types_pb2

pytestmark = [pytest.mark.unit, pytest.mark.containers]


class BytesSink:
    def __init__(self) -> None:
        self.data = b""

    async def write(self, data: bytes) -> None:
        self.data += data


def frame(offset: int, data: bytes, *, end: bool = False) -> processes_pb2.OutputFrame:
    stdout = types_pb2.STREAM_KIND_STDOUT
    return processes_pb2.OutputFrame(stream=stdout, offset=offset, data=data, end=end)


async def test_an_acknowledgement_beyond_the_input_is_another_writer() -> None:
    buffer = InputBuffer()
    buffer.acknowledge(10)
    buffer.put(b"abc")
    with pytest.raises(StreamsError, match="another host writes"):
        buffer.acknowledge(14)


async def test_acknowledged_input_is_dropped_and_the_rest_keeps_its_offsets() -> None:
    buffer = InputBuffer()
    buffer.acknowledge(10)
    buffer.put(b"abcdef")
    buffer.acknowledge(12)
    assert (buffer.frame(12), buffer.frame(14), buffer.end) == (b"cdef", b"ef", 16)


async def test_the_first_acknowledgement_says_where_the_input_begins() -> None:
    """A process that has had input from somebody before is gone on with."""
    buffer = InputBuffer()
    buffer.put(b"abc")
    buffer.acknowledge(100)
    assert buffer.frame(101) == b"bc"


async def test_a_full_window_leaves_no_room_until_some_is_acknowledged() -> None:
    buffer = InputBuffer()
    buffer.acknowledge(0)
    buffer.put(bytes(INPUT_WINDOW - 5))
    assert await buffer.room() == 5
    buffer.put(bytes(5))
    assert not buffer.has_room
    buffer.acknowledge(7)
    assert await buffer.room() == 7


async def test_input_that_the_process_refuses_is_dropped() -> None:
    buffer = InputBuffer()
    buffer.acknowledge(0)
    buffer.put(b"abc")
    buffer.abandon()
    buffer.put(b"def")
    assert buffer.frame(0) == b""


async def test_a_new_connection_goes_on_where_the_guest_is() -> None:
    buffer = InputBuffer()
    assert buffer.resume(10) == 10
    buffer.put(b"abcdef")
    assert buffer.resume(12) == 12
    assert buffer.frame(12) == b"cdef"


async def test_a_guest_that_had_all_of_the_input_may_have_forgotten_how_long_it_was() -> None:
    """An agent that was killed after the end: only the end has to be said again."""
    buffer = InputBuffer()
    buffer.resume(0)
    buffer.put(b"abcdef")
    buffer.ended = True
    buffer.acknowledge(6)
    assert buffer.resume(0) == 6
    assert buffer.frame(6) == b""


async def test_a_guest_that_lost_acknowledged_input_is_an_error() -> None:
    buffer = InputBuffer()
    buffer.resume(0)
    buffer.put(b"abcdef")
    buffer.acknowledge(3)
    with pytest.raises(StreamsError, match="has 3 to 6"):
        buffer.resume(0)


async def test_bytes_that_were_had_before_are_not_passed_on_again() -> None:
    sink = BytesSink()
    cursor = OutputCursor(sink)
    await cursor.take(frame(0, b"hello"))
    await cursor.take(frame(2, b"llo world"))
    await cursor.take(frame(3, b"lo"))
    assert (sink.data, cursor.offset) == (b"hello world", 11)


async def test_a_gap_in_the_output_is_an_error_that_says_which_bytes() -> None:
    cursor = OutputCursor(BytesSink())
    await cursor.take(frame(0, b"hello"))
    with pytest.raises(StreamsError, match="bytes 5 to 7 of the process's stdout are missing"):
        await cursor.take(frame(7, b"x"))


async def test_the_end_may_come_with_the_last_bytes() -> None:
    cursor = OutputCursor(BytesSink())
    await cursor.take(frame(0, b"x", end=True))
    assert cursor.ended


async def test_a_cursor_goes_on_behind_what_was_dropped() -> None:
    sink = BytesSink()
    cursor = OutputCursor(sink)
    await cursor.take(frame(0, b"hello"))
    cursor.skip(processes_pb2.OutputGap(to=9))
    await cursor.take(frame(9, b"again"))
    # One that was had in part is no step back.
    cursor.skip(processes_pb2.OutputGap(to=3))
    assert (sink.data, cursor.offset) == (b"helloagain", 14)

"""Frames between agent and worker: what is packed comes out again."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.linux.copyframes import Entry, EntryType, Part, Time, pack_part, unpack_parts
from agent.linux.copyslate import Leftover, Slate, new_slate

pytestmark = [pytest.mark.unit, pytest.mark.storage]

TEXT = st.binary(max_size=300).map(os.fsdecode)
UINT32 = st.integers(0, 2**32 - 1)
ENTRIES = st.builds(
    Entry,
    path=TEXT,
    type=st.sampled_from(EntryType),
    mode=st.integers(0, 0o7777),
    uid=UINT32,
    gid=UINT32,
    size=st.integers(0, 2**63 - 1),
    modified=st.none()
    | st.builds(Time, st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**9 - 1)),
    target=TEXT,
)
PARTS = st.builds(Part, st.none() | ENTRIES, st.integers(0, 2**63 - 1), st.binary(max_size=1000))


@given(st.lists(PARTS, max_size=5))
def test_any_parts_come_out_as_they_went_in(parts: list[Part]) -> None:
    pieces = [pack_part(part.entry, part.hole, bytes(part.data)) for part in parts]
    payload = b"".join(map(b"".join, pieces))
    assert [part._replace(data=bytes(part.data)) for part in unpack_parts(payload)] == parts


def test_the_longest_path_of_any_bytes_fits_on_the_slate() -> None:
    page = new_slate()
    writer, reader = Slate(page), Slate(page)
    os.close(page)
    left = Leftover(os.fsdecode(b"\xff" * 4095), ".innkeeper-0", beside=False)
    writer.note(left)
    writer.beat()
    assert (reader.leftover, reader.done) == (left, 1)
    writer.clear()
    assert reader.leftover is None
    writer.close()
    reader.close()

"""Files' messages: what the protocol's fields can't say."""

from __future__ import annotations

import pytest

from agent.core.copies import Copied
from agent.server.convert import files as convert

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def test_sparse_files_may_be_more_than_the_answer_can_say() -> None:
    """Three files as long as Linux has them, MAX_LFS_FILESIZE, are over a uint64."""
    longest = (1 << 63) - 1
    answer = convert.copied(Copied(size=3 * longest, files=3, directories=0, links=0))
    assert (answer.files, answer.size) == (3, (1 << 64) - 1)

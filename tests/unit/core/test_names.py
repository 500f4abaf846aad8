"""Ids: what becomes a file name and an argument of other programs."""

from __future__ import annotations

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.names import check_id

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.mark.parametrize("text", ["a", "0", "disk-1", "a.b_c-D9", "x" * 64])
def test_good_ids_come_back(text: str) -> None:
    assert check_id("device", text) == text


@pytest.mark.parametrize(
    "text",
    ["", "x" * 65, "../x", "a..b", "-rf", ".a", "_a", "a b", "a/b", "a\n", "é", "a\0", "a:b", "a%"],
)
def test_bad_ids_are_refused_by_kind(text: str) -> None:
    with pytest.raises(AgentError, match="not a valid device id") as caught:
        check_id("device", text)
    assert caught.value.reason is Reason.BAD_ID


def test_a_long_id_is_not_repeated_in_full() -> None:
    with pytest.raises(AgentError) as caught:
        check_id("device", "x" * 100_000)
    assert len(caught.value.message) < 300

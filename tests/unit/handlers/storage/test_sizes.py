"""Sizes in any spelling, case 42."""

from __future__ import annotations

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.fileops import MountOption
from agent.handlers.storage.sizes import one_size, parse_size

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2M", 2097152),
        ("2Mi", 2097152),
        ("2MB", 2097152),
        ("2MiB", 2097152),
        ("2m", 2097152),
        ("2mb", 2097152),
        ("2048k", 2097152),
        ("2048kB", 2097152),
        ("2048Ki", 2097152),
        ("2097152", 2097152),
        ("1Gi", 1073741824),
        ("1G", 1073741824),
        ("1GB", 1073741824),
        ("0", 0),
    ],
)
def test_spellings(text: str, size: int) -> None:
    assert parse_size(text, "options") == size


@pytest.mark.parametrize("text", ["", "M", "2X", "-1", "50%", "1.5M", "2 M", "0x10", "2Mi2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_size(text, "options")
    assert caught.value.reason is Reason.BAD_FIELD


def test_field_and_option() -> None:
    words = (MountOption(key="pageSize", value="1M"), MountOption(key="pagesize", value="2Mi"))
    assert one_size(0, words, "pagesize", "f") == 2 << 20
    assert one_size(2 << 20, words, "pagesize", "f") == 2 << 20
    assert one_size(5, (), "pagesize", "f") == 5
    with pytest.raises(AgentError) as caught:
        one_size(1 << 20, words, "pagesize", "f")
    assert caught.value.fields["field"] == "f"

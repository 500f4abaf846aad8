"""Sizes in errors."""

from __future__ import annotations

import pytest

from innkeeper.shim.sizes import in_words

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (104857600, "100 MiB"),
        (104857601, "104857601 bytes"),
        (3584 << 20, "3.5 GiB"),
        (100 << 30, "100 GiB"),
        (523776 << 20, "511.5 GiB"),
        (3 << 38, "768 GiB"),
        (1 << 43, "8 TiB"),
        ((1 << 30) + (1 << 20), "1025 MiB"),
    ],
)
def test_a_size_is_exact_in_its_largest_unit(size: int, words: str) -> None:
    assert in_words(size) == words

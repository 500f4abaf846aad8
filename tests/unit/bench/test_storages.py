"""Figures of attaching."""

from __future__ import annotations

import pytest

from bench.storages import figures

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def test_each_round_is_a_sample_and_the_ratio_is_of_medians() -> None:
    samples = list(figures("tmpfs", [(0.02, 0.01), (0.04, 0.01), (0.09, 0.01)], [0.01, 0.02, 0.5]))
    attach = [each.value for each in samples if each.name == "attach_tmpfs_ms"]
    assert attach == pytest.approx([20, 40, 90])
    assert [each.name for each in samples].count("detach_tmpfs_ms") == 3
    assert samples[-1].name == "attach_tmpfs_ratio"
    assert samples[-1].value == pytest.approx(2)

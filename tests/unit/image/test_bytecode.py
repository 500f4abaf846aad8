"""Where byte code lies."""

from __future__ import annotations

import importlib.util

import pytest

from innkeeper.image.bytecode import CACHE_TAG, cache_path

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_byte_code_lies_where_python_looks_for_it() -> None:
    assert cache_path("usr/lib/x/y.py") == "usr/lib/x/__pycache__/y.cpython-313.pyc"


def test_the_rule_is_the_running_pythons_own() -> None:
    """importlib's answer for this interpreter, with the guest's tag in place of ours."""
    ours = importlib.util.cache_from_source("usr/lib/x/y.py")
    tag = ours.split(".")[-2]
    assert cache_path("usr/lib/x/y.py") == ours.replace(tag, CACHE_TAG)

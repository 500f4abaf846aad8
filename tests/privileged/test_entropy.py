"""Crediting entropy to a real kernel."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.linux.entropy import add_entropy

pytestmark = [pytest.mark.privileged, pytest.mark.operations]


def test_the_kernel_takes_512_bytes() -> None:
    try:
        add_entropy(Path("/dev/random"), os.urandom(512))
    except PermissionError as error:
        pytest.skip(f"needs CAP_SYS_ADMIN: {error}")


def test_a_file_that_is_no_random_device_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "random"
    plain.touch()
    with pytest.raises(OSError, match="ioctl") as caught:
        add_entropy(plain, b"x")
    assert caught.value.errno == errno.ENOTTY
    assert caught.value.filename == str(plain)

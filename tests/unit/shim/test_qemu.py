"""Which QEMU a VM gets, and what is said when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.machine import program
from innkeeper.shim.qemu import require_program

pytestmark = [pytest.mark.unit, pytest.mark.boot]

PACKAGE = "qemu-system-x86"


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "qemu-system-x86_64"),
        ({"INNKEEPER_QEMU": ""}, "qemu-system-x86_64"),
        (
            {"INNKEEPER_QEMU": "/opt/qemu/bin/qemu-system-x86_64"},
            "/opt/qemu/bin/qemu-system-x86_64",
        ),
    ],
)
def test_the_one_that_is_named_else_the_one_on_path(environ: dict[str, str], name: str) -> None:
    assert program(environ) == name


def test_without_qemu_its_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ShimError) as caught:
        require_program("qemu-system-x86_64", PACKAGE)
    assert caught.value.reason is Reason.HOST_LACKS
    assert caught.value.hint == "install it with: apt install qemu-system-x86"


def test_one_that_was_named_wrong_is_not_to_be_installed(tmp_path: Path) -> None:
    """A file that may not be run is none, either."""
    named = tmp_path / "qemu"
    named.write_text("#!/bin/sh\n")
    with pytest.raises(ShimError) as caught:
        require_program(str(named), PACKAGE)
    assert "INNKEEPER_QEMU" in caught.value.hint
    named.chmod(0o755)
    require_program(str(named), PACKAGE)

"""What is shut before the agent serves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.core.roots import Roots
from agent.handlers.guest.hardening import harden

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def nothing() -> None:
    """A filter that loads."""


def refuse() -> None:
    raise OSError(errno.EPERM, "seccomp: Operation not permitted")


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/io_uring_disabled").write_text("0\n")
    return Roots(proc=tmp_path)


def test_io_uring_is_off_for_everybody(roots: Roots) -> None:
    assert harden(roots, refuse_vsock=nothing) == ()
    # 2: "All new io_uring instances are disabled" (admin-guide/sysctl/kernel.rst).
    assert (roots.proc / "sys/kernel/io_uring_disabled").read_text().startswith("2")


def test_what_the_kernel_cannot_do_is_a_warning_each(roots: Roots) -> None:
    (roots.proc / "sys/kernel/io_uring_disabled").unlink()
    first, second = harden(roots, refuse_vsock=refuse)
    assert "seccomp" in first
    assert "io_uring_disabled" in second

"""Seeding the kernel's random numbers."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.handlers.guest.entropy import seed

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.mark.parametrize("size", [1, 512])
def test_1_to_512_bytes_go_to_dev_random(size: int) -> None:
    given: list[tuple[Path, bytes]] = []
    seed(Roots(), b"x" * size, add=lambda *call: given.append(call))
    assert given == [(Path("/dev/random"), b"x" * size)]


@pytest.mark.parametrize("size", [0, 513])
def test_other_sizes_are_a_bad_field(size: int) -> None:
    with pytest.raises(AgentError) as caught:
        seed(Roots(), b"x" * size, add=_never)
    assert (caught.value.reason, caught.value.fields["field"]) == (Reason.BAD_FIELD, "data")


def test_the_kernels_refusal_has_its_errno() -> None:
    def refuse(device: Path, _: bytes) -> None:
        raise PermissionError(errno.EPERM, "ioctl", str(device))

    with pytest.raises(AgentError) as caught:
        seed(Roots(), b"x", add=refuse)
    assert caught.value.fields == {"errno": "EPERM", "object": "/dev/random"}


def _never(_: Path, __: bytes) -> None:
    raise AssertionError

"""What a command says of that which it could not take away again."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from innkeeper.cli.guest import Guest
from innkeeper.shim.client import Vm
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.statedir import StateDir

if TYPE_CHECKING:
    from grpc import aio

pytestmark = [pytest.mark.unit, pytest.mark.operations]


async def undo(directory: Path, error: ShimError) -> None:
    async def fail() -> None:
        raise error

    unused = cast("aio.Channel", None)
    async with AsyncExitStack() as steps:
        vm = Vm(name="web", directory=directory, daemon_pid=1)
        Guest(vm=vm, channel=unused, undo=steps)._later("disk a", fail)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (Reason.QEMU_REFUSED, True),
        (Reason.STOPPING, False),
        (Reason.QEMU_GONE, False),
        (Reason.UNKNOWN_DEVICE, False),
    ],
)
async def test_what_went_with_the_vm_is_not_left_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: Reason, *, said: bool
) -> None:
    with StateDir(root=tmp_path / "vms").claim("web") as claim:
        await undo(claim.paths.directory, ShimError(reason, "no"))
    assert ("web: disk a is left there: no" in capsys.readouterr().err) is said


async def test_a_vm_without_a_daemon_has_nothing_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await undo(tmp_path, ShimError(Reason.QEMU_REFUSED, "no"))
    assert capsys.readouterr().err == ""

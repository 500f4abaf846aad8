"""VMs by name: one that is wrong keeps none of the others up."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from innkeeper.cli import vm
from innkeeper.cli.app import app
from innkeeper.cli.errors import CliError
from innkeeper.shim.client import Ending
from innkeeper.shim.errors import Reason, ShimError

pytestmark = [pytest.mark.unit, pytest.mark.operations]


class FakeVm:
    def __init__(self, name: str, ending: Ending) -> None:
        self.name = name
        self.ending = ending
        self.asked: list[float] = []

    async def end(self, grace: float) -> Ending:
        self.asked.append(grace)
        return self.ending


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeVm]:
    away = Ending(clean=False, why="its agent was away for the 2 s of grace")
    vms = {"a": FakeVm("a", Ending(clean=True)), "b": FakeVm("b", away)}

    def find(name: str) -> FakeVm:
        if name not in vms:
            raise ShimError(Reason.UNKNOWN_VM, f"VM {name}: does not run")
        return vms[name]

    monkeypatch.setattr(vm, "find_vm", find)
    return vms


def test_a_vm_that_was_ended_is_told_with_the_reason(running: dict[str, FakeVm]) -> None:
    told = CliRunner().invoke(app, ["vm", "stop", "a", "b", "a", "--grace", "2"])
    assert told.exit_code == 0
    assert told.output.splitlines() == [
        "a: powered off",
        "b: its agent was away for the 2 s of grace, so it was ended",
    ]
    assert running["a"].asked == [2]


def test_those_that_run_are_stopped_and_the_others_named(running: dict[str, FakeVm]) -> None:
    told = CliRunner().invoke(app, ["vm", "stop", "x", "a", "y"])
    assert "a: powered off" in told.output
    assert isinstance(told.exception, CliError)
    assert told.exception.message == "VM x: does not run; VM y: does not run"

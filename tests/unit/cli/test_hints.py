"""Ways out of refusals, as commands."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from innkeeper.cli import hints
from innkeeper.cli.errors import CliError, explain
from innkeeper.cli.refusals import told
from innkeeper.shim.errors import Reason, ShimError
from tests.fakes.refusing import refusal

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def last_line(error: Exception, vm: str = "web") -> str:
    """Of what is told by a command for this VM."""

    def tell() -> str:
        hints.about(vm)
        return explain(error).splitlines()[-1]

    return copy_context().run(tell)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (refusal("x", "UNKNOWN_CONTAINER", id="db", hint="Containers.List"), "ps -a web shows"),
        (refusal("x", "UNKNOWN_PROCESS", container="db", exec="one"), "ps web db shows"),
        (refusal("x", "WRONG_STATE", id="db", state="paused"), "unpause web db lets"),
        (refusal("x", "UNKNOWN_DEVICE", id="d"), "device list web shows"),
        (refusal("x", "UNKNOWN_STORAGE", id="s"), "storage list web shows"),
        (ShimError(Reason.UNKNOWN_DEVICE, "x"), "device list web shows"),
    ],
)
def test_a_hint_is_a_command(error: Exception, hint: str) -> None:
    assert last_line(error).startswith(f"  hint: innkeeper {hint}")


def test_the_guests_own_hint_stays_where_we_know_nothing_better() -> None:
    other = refusal("x", "WRONG_STATE", id="db", state="stopped", hint="start it")
    assert last_line(other) == "  hint: start it"
    unknown = refusal("x", "UNKNOWN_CONTAINER", id="db", hint="Containers.List shows them")
    assert last_line(unknown, vm="") == "  hint: Containers.List shows them"
    assert last_line(refusal("x", "UNKNOWN_PROCESS")) == "  reason: UNKNOWN_PROCESS"


def test_a_device_that_the_guest_does_not_know_either() -> None:
    def detach() -> None:
        hints.about("web")
        with told():
            raise ShimError(Reason.GUEST_REFUSED, "x", fields={"guest_reason": "UNKNOWN_DEVICE"})

    with pytest.raises(CliError) as caught:
        copy_context().run(detach)
    assert caught.value.hint.startswith("innkeeper device list web ")

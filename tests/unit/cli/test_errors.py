"""Failures as people and scripts see them."""

from __future__ import annotations

import grpc
import pytest
from grpc import aio

from innkeeper.cli.errors import CliError, exit_code, explain
from innkeeper.shim.errors import Reason, ShimError
from tests.fakes.refusing import refusal

pytestmark = [pytest.mark.unit, pytest.mark.operations]


def test_a_refusal_shows_reason_fields_and_hint() -> None:
    error = refusal("device d1 is in use", "STILL_IN_USE", users="c1", hint="remove c1 first")
    assert explain(error).splitlines() == [
        "device d1 is in use",
        "  reason: STILL_IN_USE",
        "  users: c1",
        "  hint: remove c1 first",
    ]


def test_fields_are_in_the_order_of_their_names() -> None:
    """A map of protobuf's has none."""
    error = refusal("x", "STILL_IN_USE", users="c1", evidence="e", paths="p")
    assert explain(error).splitlines()[2:] == ["  evidence: e", "  paths: p", "  users: c1"]


def test_what_the_message_says_is_not_said_again() -> None:
    said = "executable file `x` not found in $PATH"
    error = refusal(f"crun failed: {said}", "RUNTIME_REFUSED", runtime_message=said)
    assert explain(error).splitlines() == [f"crun failed: {said}", "  reason: RUNTIME_REFUSED"]


def test_a_failed_call_without_details_shows_its_code() -> None:
    error = aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata(), "the agent is away"
    )
    assert explain(error).splitlines() == ["the agent is away", "  code: UNAVAILABLE"]


def test_a_failure_of_the_hosts_side_shows_the_same() -> None:
    error = ShimError(Reason.UNKNOWN_VM, "VM web: does not run", hint="none runs")
    assert explain(error).splitlines() == [
        "VM web: does not run",
        "  reason: UNKNOWN_VM",
        "  hint: none runs",
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CliError("x"), 125),
        (refusal("executable file `x` not found in $PATH: No such file", "RUNTIME_REFUSED"), 127),
        (refusal("open executable: Permission denied", "RUNTIME_REFUSED"), 126),
        (
            refusal(
                "the path `/a` exists but it is not executable: Operation not permitted",
                "RUNTIME_REFUSED",
            ),
            126,
        ),
        (
            refusal(
                "crun exec of container web failed: the path `/tmp` is not a regular file:"
                " Operation not permitted",
                "RUNTIME_REFUSED",
            ),
            126,
        ),
        (refusal("cgroup: Permission denied", "MOUNT_REFUSED"), 125),
    ],
)
def test_exit_codes_are_those_of_container_tools(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_a_command_that_cannot_be_run_is_told_why() -> None:
    said = "the path `/tmp` is not a regular file: Operation not permitted"
    error = refusal(said, "RUNTIME_REFUSED")
    assert "hint: the command must be a regular file that its user may execute" in explain(error)

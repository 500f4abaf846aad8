"""What the guest refuses of `run`, in words of the command line."""

from __future__ import annotations

import pytest
from grpc import aio

from innkeeper.cli import retold
from innkeeper.cli.errors import CliError, explain
from innkeeper.v1 import devices_pb2
from tests.fakes.refusing import refusal

pytestmark = [pytest.mark.unit, pytest.mark.containers]

NODE = devices_pb2.Device(id="db-device1", address=devices_pb2.DeviceAddress(path="/dev/nope"))


def test_a_node_that_there_is_not_is_told_by_its_name_alone() -> None:
    error = refusal(
        "device db-device1: deadline passed: there is no device node /dev/nope",
        "DEVICE_NOT_READY",
        evidence="there is no device node /dev/nope",
    )
    with pytest.raises(CliError) as caught, retold.missing_node("web", NODE):
        raise error
    text = explain(caught.value)
    assert text.startswith("there is no /dev/nope in VM web (waited 10 s)\n")
    assert "innkeeper device list web" in text
    assert "db-device1" not in text


def test_a_node_that_is_there_and_not_ready_is_told_as_the_guest_does() -> None:
    error = refusal("x", "DEVICE_NOT_READY", evidence="/dev/nope has no size so far")
    with pytest.raises(aio.AioRpcError), retold.missing_node("web", NODE):
        raise error


def test_a_name_that_is_taken() -> None:
    with pytest.raises(CliError) as caught, retold.taken_name("web", "db"):
        raise refusal("container db exists, made by another request", "ID_IN_USE", id="db")
    assert explain(caught.value).splitlines() == [
        "a container db exists",
        "  reason: ID_IN_USE",
        "  hint: choose another --name, or: innkeeper rm web db",
    ]


def test_another_id_that_is_taken_is_told_as_the_guest_does() -> None:
    with pytest.raises(aio.AioRpcError), retold.taken_name("web", "db"):
        raise refusal("storage db-disk1", "ID_IN_USE", id="db-disk1")

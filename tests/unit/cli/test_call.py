"""Methods by name, and requests from JSON."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from innkeeper.cli import call, methods
from innkeeper.cli.app import app
from innkeeper.cli.errors import CliError
from innkeeper.v1 import containers_pb2, devices_pb2, sandbox_pb2

pytestmark = [pytest.mark.unit, pytest.mark.operations]

KNOWN = methods.known_methods()


@pytest.mark.parametrize(
    "text", ["Devices.List", "innkeeper.v1.Devices.List", "/innkeeper.v1.Devices/List"]
)
def test_a_method_has_a_short_and_a_full_name(text: str) -> None:
    assert methods.find_method(text, KNOWN).path == "/innkeeper.v1.Devices/List"


def test_the_daemons_and_the_health_service_are_known_too() -> None:
    assert KNOWN["Host.Plug"].path == "/innkeeper.v1.Host/Plug"
    assert KNOWN["Health.Check"].path == "/grpc.health.v1.Health/Check"


def test_an_unknown_method_of_an_unknown_service_names_the_services() -> None:
    """There are too many methods for a hint."""
    with pytest.raises(CliError) as caught:
        methods.find_method("Nothing.Such", KNOWN)
    assert "services: Sandbox, Devices, Storages" in caught.value.hint
    assert "innkeeper call --list" in caught.value.hint


@pytest.mark.parametrize("text", ["Devices", "innkeeper.v1.Devices", "Devices.Such"])
def test_a_service_without_its_method_names_the_services_own(text: str) -> None:
    with pytest.raises(CliError) as caught:
        methods.find_method(text, KNOWN)
    assert caught.value.hint.startswith("methods of Devices: Devices.Attach, ")
    assert "Sandbox" not in caught.value.hint


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["Devices.List"], ("", "Devices.List", "{}")),
        (["web", "Devices.List"], ("web", "Devices.List", "{}")),
        (["Devices.Get", '{"id": "x"}'], ("", "Devices.Get", '{"id": "x"}')),
        (["Devices.Get", "-"], ("", "Devices.Get", "-")),
        (["web", "Devices.Get", "-"], ("web", "Devices.Get", "-")),
        (["vendor.Thing.Do", "{}"], ("", "vendor.Thing.Do", "{}")),
    ],
)
def test_the_vm_may_be_left_out(words: list[str], parts: tuple[str, str, str]) -> None:
    assert call.split_words(words) == parts


@pytest.mark.parametrize("words", [[], ["a", "b", "c", "d"], ["Devices.Get", "{}", "x"]])
def test_too_few_and_too_many_words_are_refused(words: list[str]) -> None:
    with pytest.raises(typer.BadParameter):
        call.split_words(words)


def test_fields_have_the_names_of_the_proto_files() -> None:
    [request] = call.parse_requests(KNOWN["Devices.Detach"], '{"id": "a", "timeout_seconds": 2.5}')
    assert request == devices_pb2.DetachDeviceRequest(id="a", timeout_seconds=2.5)


def test_bytes_are_base64() -> None:
    [request] = call.parse_requests(KNOWN["Containers.Create"], '{"id": "a", "spec": "e30="}')
    assert request == containers_pb2.CreateContainerRequest(id="a", spec=b"{}")


def test_a_stream_of_requests_is_json_lines() -> None:
    lines = '{"open": {"process": {"container_id": "c"}}}\n\n{"close_input": {}}\n'
    first, second = call.parse_requests(KNOWN["Processes.Attach"], lines)
    assert str(first).startswith("open")
    assert str(second).startswith("close_input")


def test_an_answer_shows_fields_without_a_value_and_numbers_as_json_has_them() -> None:
    answer = sandbox_pb2.DescribeSandboxResponse(agent_version="1", agent_restarts=2)
    record = json.loads(call.to_json(answer, one_line=True))
    assert record["agent_version"] == "1"
    assert record["agent_restarts"] == 2
    assert record["features"] == []
    assert "limits" not in record


@pytest.mark.parametrize("timeout", ["nan", "inf", "-5", "1e300"])
def test_an_impossible_deadline_is_a_wrong_use(timeout: str) -> None:
    """And not an answer that did not come in time."""
    told = CliRunner().invoke(app, ["call", "web", "Devices.List", "--timeout", timeout])
    assert told.exit_code == 2
    assert f"--timeout {float(timeout):g}: not possible, 0 to" in told.output

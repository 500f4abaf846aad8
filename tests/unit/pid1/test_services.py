"""How PID 1 restarts its children, and how it reads an image's own services."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.pid1.layout import Role, ServiceSpec
from agent.pid1.services import Backoff, parse_spec, read_specs

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_the_first_restart_is_at_once_then_delays_double_to_5_s() -> None:
    backoff = Backoff()
    assert [backoff.delay(ran_for=1.0) for _ in range(8)] == [0, 0.25, 0.5, 1, 2, 4, 5, 5]


def test_a_minute_of_health_begins_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.delay(ran_for=0.1)
    assert backoff.delay(ran_for=59.9) == 4
    assert backoff.delay(ran_for=60.0) == 0
    assert backoff.delay(ran_for=0.1) == 0.25


def test_a_service_file(tmp_path: Path) -> None:
    fields = {"name": "x", "argv": ["/bin/x", "-v"], "environment": {"A": "b"}, "restart": "never"}
    (tmp_path / "20-x.json").write_text(json.dumps(fields))
    (tmp_path / "10-y.json").write_text(json.dumps({"name": "y", "argv": ["/bin/y"]}))
    (tmp_path / "README").write_text("not a service")
    specs, warnings = read_specs(str(tmp_path))
    assert warnings == ()
    assert specs == (
        ServiceSpec("y", ("/bin/y",)),
        ServiceSpec("x", ("/bin/x", "-v"), (("A", "b"),), restart=False),
    )
    assert {spec.role for spec in specs} == {Role.EXTRA}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "Expecting"),
        ("[]", "not a JSON object"),
        ('{"argv":["/x"]}', "'name'"),
        ('{"name":"x"}', "'argv'"),
        ('{"name":"x","argv":[]}', "'argv'"),
        ('{"name":"x","argv":["relative"]}', "'argv'"),
        ('{"name":"x","argv":["/x",1]}', "'argv'"),
        ('{"name":"x","argv":["/x"],"environment":{"A":1}}', "'environment'"),
        ('{"name":"x","argv":["/x"],"restart":"sometimes"}', "'restart'"),
        ('{"name":"relay","argv":["/x"]}', "'name'"),
    ],
)
def test_a_bad_file_is_left_out_with_a_warning(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    (tmp_path / "good.json").write_text('{"name":"y","argv":["/bin/y"]}')
    specs, warnings = read_specs(str(tmp_path))
    assert [spec.name for spec in specs] == ["y"]
    assert len(warnings) == 1
    assert "bad.json" in warnings[0]
    assert wrong in warnings[0]


def test_an_image_without_services(tmp_path: Path) -> None:
    assert read_specs(str(tmp_path / "missing")) == ((), ())


def test_fields_of_a_later_version_are_no_error() -> None:
    assert parse_spec({"name": "x", "argv": ["/x"], "color": "red"}).name == "x"

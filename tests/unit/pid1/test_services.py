"""How PID 1 restarts its children, and how it reads an image's own services."""

from __future__ import annotations

import errno
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.linux.pidfd import ChildExit
from agent.pid1 import services
from agent.pid1.layout import Role, ServiceSpec
from agent.pid1.loop import Loop
from agent.pid1.reaper import Reaper
from agent.pid1.services import Backoff, Services, parse_spec, read_specs

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


class Expecting(Reaper):
    """Tells of the ends that the test makes up."""

    def __init__(self) -> None:
        self.actions: list[Callable[[ChildExit], None]] = []

    def expect(self, pid: int, action: Callable[[ChildExit], None]) -> None:
        self.actions.append(action)


class Kept:
    """An agent under PID 1's care whose process exists on paper alone."""

    def __init__(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status = run / "agent.status"
        self.reaper = Expecting()
        self.said: list[str] = []
        self.loop = Loop(lambda error: pytest.fail(f"{error!r}"))
        self.services = Services(self.loop, self.reaper, self.said.append, cgroup=None)
        monkeypatch.setattr(services, "spawn", lambda argv, environment: self.spawned())
        self.cannot: OSError | None = None

    def spawned(self) -> int:
        if self.cannot is not None:
            raise self.cannot
        return 57

    def start(self) -> None:
        agent = ServiceSpec("agent", ("/bin/agent",), role=Role.AGENT, status=str(self.status))
        self.services.start_all((ServiceSpec("relay", ("/bin/relay",), role=Role.RELAY), agent))

    def end_agent(self, code: int, number: int = 0) -> None:
        self.reaper.actions[-1](ChildExit(57, code, number))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    kept = Kept(tmp_path, monkeypatch)
    yield kept
    kept.loop.close()


def test_the_reason_why_the_agent_is_away_is_left_for_the_relay(kept: Kept) -> None:
    """One line each: what the relay passes on to callers is the first."""
    kept.start()
    assert kept.status.read_text() == "starting\n"
    kept.status.unlink()  # it serves
    kept.end_agent(128 + 9, signal.SIGKILL)
    text = kept.status.read_text()
    assert re.fullmatch(
        r"restarting; agent \(pid 57\) ended after \S+ s by signal 9 \(SIGKILL\)\n", text
    )
    kept.loop.run_once()
    assert kept.status.read_text() == text, "until it serves the reason stays the same"
    kept.end_agent(1)
    assert kept.status.read_text().endswith(" s with status 1\n")


def test_an_agent_that_cannot_be_executed_is_a_reason_too(kept: Kept) -> None:
    kept.cannot = OSError(errno.ENOENT, "No such file or directory", "/bin/agent")
    kept.start()
    text = kept.status.read_text()
    assert text.startswith("restarting; agent cannot be started: ")
    assert "No such file" in text
    assert text.count("\n") == 1


def test_on_the_way_down_the_reason_says_so(kept: Kept) -> None:
    kept.start()
    kept.services.stay_down()
    kept.end_agent(0)
    assert kept.status.read_text() == "the guest goes down\n"


def test_a_reason_that_cannot_be_written_is_said_and_no_more(kept: Kept) -> None:
    kept.status = kept.status / "missing" / "agent.status"
    kept.start()
    assert ["agent.status is not written" in line for line in kept.said] == [True]
    kept.end_agent(1)
    assert "starting it again in 0 s" in kept.said[-1]

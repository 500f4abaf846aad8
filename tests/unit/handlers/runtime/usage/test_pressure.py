"""Thresholds of pressure as files, and what the kernel's notices become."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.life import PressureResource, PressureThreshold
from agent.core.roots import Roots
from agent.handlers.runtime.usage import pressure
from agent.handlers.runtime.usage.pressure import PressureWatch
from tests.fakes.notices import FakeNotice, fake_notices

pytestmark = [pytest.mark.unit, pytest.mark.containers]

GROUP = "/pods/s/c1"
PSI = """some avg10=12.50 avg60=0.00 avg300=0.00 total=777
full avg10=3.00 avg60=0.00 avg300=0.00 total=55
"""
MEMORY = PressureThreshold(resource=PressureResource.MEMORY, stall=150_000, window=1_000_000)
CPU = PressureThreshold(resource=PressureResource.CPU, stall=500_000, window=2_000_000)
ALL_IO = PressureThreshold(resource=PressureResource.IO, full=True, stall=70_000, window=500_000)


class Told:
    """An event log that keeps what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Mapping[str, str]]] = []

    def publish(self, kind: str, subject: str, details: Mapping[str, str] | None = None) -> None:
        self.events.append((kind, subject, details or {}))


@pytest.fixture
def notices(monkeypatch: pytest.MonkeyPatch) -> list[FakeNotice]:
    return fake_notices(monkeypatch, pressure)


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    roots = Roots(cgroup=tmp_path / "cgroup", proc=tmp_path / "proc")
    for directory, suffix in (
        (roots.cgroup / GROUP[1:], ".pressure"),
        (roots.proc / "pressure", ""),
    ):
        directory.mkdir(parents=True)
        for name in ("cpu", "memory", "io"):
            (directory / f"{name}{suffix}").write_text("")
    return roots


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def watch(roots: Roots, told: Told, notices: list[FakeNotice]) -> Iterator[PressureWatch]:
    watch = PressureWatch(roots, told)
    yield watch
    watch.close()


def test_a_threshold_is_written_to_its_file(watch: PressureWatch, roots: Roots) -> None:
    watch.set("c1", GROUP, [MEMORY, ALL_IO])
    group = roots.cgroup / GROUP[1:]
    assert (group / "memory.pressure").read_text().split() == ["some", "150000", "1000000"]
    assert (group / "io.pressure").read_text().split() == ["full", "70000", "500000"]
    assert (group / "cpu.pressure").read_text() == ""


def test_those_of_the_guest_go_to_proc(watch: PressureWatch, roots: Roots) -> None:
    watch.set("", "", [CPU])
    assert (roots.proc / "pressure/cpu").read_text().split() == ["some", "500000", "2000000"]


def test_a_notice_becomes_an_event(
    watch: PressureWatch, told: Told, notices: list[FakeNotice]
) -> None:
    watch.set("c1", GROUP, [MEMORY, ALL_IO])
    for notice in notices:
        notice.path.write_text(PSI)
        notice.told()
    memory, io = told.events
    assert memory[:2] == ("pressure", "c1")
    assert memory[2] == {
        "resource": "memory",
        "kind": "some",
        "stall_micros": "150000",
        "window_micros": "1000000",
        "average_10s": "12.50",
        "total_micros": "777",
    }
    assert io[2]["kind"] == "full"
    assert (io[2]["average_10s"], io[2]["total_micros"]) == ("3.00", "55")


def test_a_new_set_takes_the_place_of_the_old_one(
    watch: PressureWatch, notices: list[FakeNotice]
) -> None:
    watch.set("c1", GROUP, [MEMORY, CPU])
    watch.set("", "", [CPU])
    watch.set("c1", GROUP, [ALL_IO])
    assert [notice.open for notice in notices] == [False, False, True, True]
    watch.set("c1", GROUP, [])
    assert [notice.open for notice in notices] == [False, False, True, False]
    watch.drop("c1")
    watch.close()
    assert not any(notice.open for notice in notices)


def test_a_group_that_goes_away_ends_it_silently(
    watch: PressureWatch, told: Told, notices: list[FakeNotice]
) -> None:
    watch.set("c1", GROUP, [MEMORY])
    notices[0].gone = True
    notices[0].told()
    assert not notices[0].open
    assert told.events == []
    watch.drop("c1")


def test_of_a_group_that_is_gone_nothing_is_told(
    watch: PressureWatch, notices: list[FakeNotice]
) -> None:
    watch.set("c1", "/pods/s/gone", [MEMORY])
    assert notices == []


def test_a_kernel_without_it_is_said_by_name(
    watch: PressureWatch, roots: Roots, notices: list[FakeNotice]
) -> None:
    """All of them or none: those of before stay."""
    watch.set("c1", GROUP, [CPU])
    (roots.cgroup / GROUP[1:] / "memory.pressure").unlink()
    with pytest.raises(AgentError) as caught:
        watch.set("c1", GROUP, [CPU, MEMORY])
    assert caught.value.reason is Reason.NOT_SUPPORTED
    assert caught.value.fields["resource"] == "memory"
    assert [notice.open for notice in notices] == [True, False]


def test_a_kernel_without_any_of_it(watch: PressureWatch, roots: Roots) -> None:
    for file in (roots.proc / "pressure").iterdir():
        file.unlink()
    (roots.proc / "pressure").rmdir()
    with pytest.raises(AgentError) as caught:
        watch.set("", "", [CPU])
    assert caught.value.reason is Reason.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        (errno.EINVAL, Code.INVALID_ARGUMENT, Reason.BAD_FIELD),
        (errno.EOPNOTSUPP, Code.FAILED_PRECONDITION, Reason.NOT_SUPPORTED),
        (errno.ENOMEM, Code.FAILED_PRECONDITION, Reason.KERNEL_REFUSED),
    ],
)
def test_what_the_kernel_refuses(
    watch: PressureWatch,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: Code,
    reason: Reason,
) -> None:
    """EINVAL for a window that is too long (psi_trigger_create). No descriptor is left."""

    def refuse(_fd: int, _data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(AgentError) as caught:
        watch.set("c1", GROUP, [MEMORY])
    assert (caught.value.code, caught.value.reason) == (code, reason)
    assert len(os.listdir("/proc/self/fd")) == before

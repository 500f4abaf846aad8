"""The program that times crun in the guest: which calls it makes, and what a refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.crun_times import Crun, one_round

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def _program(directory: Path, script: str) -> tuple[str, ...]:
    file = directory / "crun"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return (str(file), "--root", "/state")


def test_a_round_is_one_container_from_its_creation_to_its_removal(tmp_path: Path) -> None:
    """An exec without --detach is answered at its end: that of a process, with its status."""
    calls = tmp_path / "calls"
    with Crun(_program(tmp_path, f'echo "$@" >> {calls}')) as crun:
        started, executed = one_round(crun, Path("/bundle"))
    assert started > 0
    assert executed > 0
    assert calls.read_text().splitlines() == [
        "--root /state create --bundle /bundle bench",
        "--root /state start bench",
        "--root /state exec bench true",
        "--root /state delete --force bench",
    ]


def test_a_refusal_says_what_crun_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refusing = _program(tmp_path, "echo no such container >&2; exit 1")
    with Crun(refusing) as crun, pytest.raises(SystemExit, match="crun start bench: wait status"):
        crun("start", "bench")
    assert "no such container" in capsys.readouterr().err

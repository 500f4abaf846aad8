"""The demonstration's own checks: it must not be able to say ok by mistake."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from innkeeper.cli.demo import Evidence, check, left_processes
from innkeeper.cli.errors import CliError
from innkeeper.cli.steps import StepError, step

pytestmark = [pytest.mark.unit, pytest.mark.operations]

NONCE = bytes(range(32))
INIT = ("/usr/bin/python3", "-IS", "/usr/lib/innkeeper/init")


def evidence(**changed: object) -> Evidence:
    digest = hashlib.sha256(NONCE).hexdigest()
    good: dict[str, object] = {
        "nonce": NONCE,
        "output": f"{digest}  /data/nonce\n".encode(),
        "exit_code": 42,
        "init": INIT,
        "qemu_pid": 4_000_000,
        "clean": True,
    }
    return Evidence(**{**good, **changed})  # type: ignore[arg-type]


def test_all_evidence_together_is_good() -> None:
    check(evidence(), Path("/nonexistent/vm"))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"output": b"0" * 64 + b"  /data/nonce\n"}, "SHA-256"),
        ({"output": b""}, "SHA-256"),
        ({"exit_code": 0}, "exit code 0 instead of 42"),
        ({"init": ("/sbin/init",)}, "PID 1 of the guest is '/sbin/init'"),
        ({"init": ()}, "PID 1 of the guest is ''"),
        ({"clean": False}, "did not power itself off"),
    ],
)
def test_one_wrong_thing_is_enough_to_fail(changed: dict[str, object], why: str) -> None:
    with pytest.raises(CliError, match=why):
        check(evidence(**changed), Path("/nonexistent/vm"))


def make_process(proc: Path, pid: int, *argv: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))


def test_processes_are_found_by_pid_and_by_the_vms_directory(tmp_path: Path) -> None:
    make_process(tmp_path, 10, "qemu-system-x86_64", "-nodefaults")
    make_process(tmp_path, 11, "sleep", "/run/vms/demo/x")
    make_process(tmp_path, 12, "sleep", "1")
    make_process(tmp_path, 13)
    (tmp_path / "meminfo").touch()
    found = left_processes(Path("/run/vms/demo"), 10, proc=tmp_path)
    assert sorted(found) == [10, 11]


def test_a_pid_that_is_somebody_elses_by_now_is_not_qemu(tmp_path: Path) -> None:
    make_process(tmp_path, 10, "bash")
    assert left_processes(Path("/run/vms/demo"), 10, proc=tmp_path) == {}


def test_a_step_says_what_it_did_and_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    with step("mounted") as running:
        running.result = "ext4 at /x"
    line = capsys.readouterr().out
    assert line.startswith("mounted")
    assert line.endswith(" s  ext4 at /x\n")


def test_a_failure_names_its_step_and_keeps_its_cause() -> None:
    with pytest.raises(StepError, match="mounted") as caught, step("mounted"):
        raise CliError("no")
    assert isinstance(caught.value.__cause__, CliError)

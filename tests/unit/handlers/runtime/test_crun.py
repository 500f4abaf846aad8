"""crun's command line, its messages and its answers; the fake one beside the real tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.roots import Roots
from agent.handlers.runtime.crun import Crun
from agent.handlers.runtime.runtime import CreateCall, RuntimeState, Stdio

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def program(directory: Path, script: str) -> Crun:
    """A crun that is a shell script; `$log` is its log file."""
    path = directory / "crun"
    find = 'while [ "$1" != --log ]; do shift; done; log=$2; shift 4\n'
    path.write_text(f"#!/bin/sh\n{find}{script}\n")
    path.chmod(0o755)
    return Crun(Roots(run=directory / "run"), program=str(path))


def create_call(directory: Path) -> CreateCall:
    return CreateCall(id="c1", bundle=directory, pid_file=directory / "pid", stdio=Stdio())


LOGS = [
    (
        '{"msg":"first","level":"error","time":"t"}\\n{"msg":"second","level":"error"}',
        "first; second",
    ),
    ('{"msg":"same","level":"error"}\\n{"msg":"same","level":"error"}', "same"),
    ('{"msg":"careful","level":"warning"}\\n{"msg":"bad","level":"error"}', "bad"),
    ("no JSON at all", "no JSON at all"),
    ("[]", "[]"),
    ("", "on stderr"),
]


@pytest.mark.parametrize(("log", "said"), LOGS)
async def test_the_message_comes_from_the_log(tmp_path: Path, log: str, said: str) -> None:
    crun = program(tmp_path, f"printf '{log}' >$log; echo on stderr >&2; exit 1")
    with pytest.raises(AgentError) as caught:
        await crun.start("c1", Deadline.after(10))
    assert (caught.value.code, caught.value.reason) == (
        Code.FAILED_PRECONDITION,
        Reason.RUNTIME_REFUSED,
    )
    assert caught.value.fields["runtime_message"] == said
    assert "crun start of container c1" in str(caught.value)
    assert list((tmp_path / "run/crun-logs").iterdir()) == []


async def test_a_crun_that_says_nothing_is_told_by_its_end(tmp_path: Path) -> None:
    crun = program(tmp_path, "kill -SEGV $$")
    with pytest.raises(AgentError, match="SIGSEGV"):
        await crun.start("c1", Deadline.after(10))


async def test_the_pid_is_read_from_its_file(tmp_path: Path) -> None:
    """crun writes it without a newline."""
    crun = program(tmp_path, f"printf 4711 >{tmp_path}/pid")
    assert await crun.create(create_call(tmp_path), Deadline.after(10)) == 4711


async def test_an_update_names_the_file(tmp_path: Path) -> None:
    """Ids come after `--`: crun takes `-rf` for options."""
    crun = program(tmp_path, f'echo "$*" >{tmp_path}/said')
    await crun.update("c1", tmp_path / "update.json", Deadline.after(10))
    said = (tmp_path / "said").read_text().split()
    assert said[-5:] == ["update", "--resources", str(tmp_path / "update.json"), "--", "c1"]


@pytest.mark.parametrize("state", list(RuntimeState))
async def test_the_state(tmp_path: Path, state: RuntimeState) -> None:
    answer = json.dumps({"ociVersion": "1.0.0", "id": "c1", "status": state})
    crun = program(tmp_path, f"echo '{answer}'")
    (tmp_path / "run/crun/c1").mkdir(parents=True)
    assert await crun.state("c1", Deadline.after(10)) is state


async def test_what_crun_does_not_know_is_not_asked_for(tmp_path: Path) -> None:
    crun = program(tmp_path, "exit 1")
    assert await crun.state("c1", Deadline.after(10)) is None
    await crun.delete("c1", Deadline.after(10))


@pytest.mark.parametrize("answer", ["", "{}", "[]", '{"status": "odd"}'])
async def test_an_answer_of_another_shape(tmp_path: Path, answer: str) -> None:
    crun = program(tmp_path, f"echo '{answer}'")
    (tmp_path / "run/crun/c1").mkdir(parents=True)
    with pytest.raises(AgentError) as caught:
        await crun.state("c1", Deadline.after(10))
    assert caught.value.reason is Reason.RUNTIME_REFUSED


async def test_a_crun_that_hangs_ends_at_the_deadline(tmp_path: Path) -> None:
    crun = program(tmp_path, "exec sleep 100")
    with pytest.raises(AgentError) as caught:
        await crun.start("c1", Deadline.after(0.1))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT


async def test_a_missing_crun_is_told_by_its_name(tmp_path: Path) -> None:
    crun = Crun(Roots(run=tmp_path), program="no-such-crun")
    with pytest.raises(AgentError, match="no-such-crun"):
        await crun.start("c1", Deadline.after(10))


def test_own_calls_are_recognized(tmp_path: Path) -> None:
    crun = Crun(Roots(run=tmp_path))
    own = ["crun", "--root", f"{tmp_path}/crun", "--cgroup-manager=cgroupfs", "create"]
    assert crun.recognizes(own)
    assert not crun.recognizes(["crun", "--root", "/run/crun", "--cgroup-manager=cgroupfs"])
    assert not crun.recognizes([""])

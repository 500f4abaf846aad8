"""The hooks' runner as a process of its own, as the runtime starts it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.handlers.runtime import hooks
from agent.linux.hookrunner import KEPT
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]

STATE = {"ociVersion": "1.0", "id": "c1", "pid": 0, "bundle": "/bundles/c1", "status": "created"}
PYTHON = sys.executable


class Runner:
    """Wraps one hook as the agent does and runs it as the runtime does."""

    def __init__(self, bundle: Path) -> None:
        self.bundle = bundle
        self.config: dict[str, Any] = {"ociVersion": "1.1.0"}

    def wrapped(self, kind: str, hook: dict[str, Any]) -> dict[str, Any]:
        config = {**self.config, "hooks": {kind: [hook]}}
        hooks.wrap_hooks(config, self.bundle)
        found: dict[str, Any] = config["hooks"][kind][0]
        return found

    def run(self, kind: str, **hook: Any) -> int:
        wrapped = self.wrapped(kind, hook)
        finished = subprocess.run(
            wrapped["args"],
            executable=wrapped["path"],
            env={},
            input=json.dumps(STATE).encode(),
            stdout=subprocess.DEVNULL,
            check=False,
        )
        return finished.returncode

    @property
    def outcome(self) -> dict[str, Any]:
        [path] = (self.bundle / "hooks").glob("*.json")
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    return Runner(bundle)


def shell(script: str) -> dict[str, Any]:
    return {"path": "/bin/sh", "args": ["sh", "-c", script]}


def python(script: str, *rest: str) -> dict[str, Any]:
    return {"path": PYTHON, "args": ["python3", "-IS", "-c", script, *rest]}


@pytest.mark.parametrize(
    ("args", "seen"),
    [
        (["x", "prestart"], ["x", "prestart"]),
        ([], [PYTHON]),
        (None, [PYTHON]),
        (["only"], ["only"]),
        (["", "ü", "a b", "\udcff"], ["", "ü", "a b", "\udcff"]),
    ],
)
def test_arguments_are_exactly_those_given(
    runner: Runner, tmp_path: Path, args: list[str] | None, seen: list[str]
) -> None:
    """The first is neither doubled nor dropped; without any it is the path."""
    hook = {"path": PYTHON} if args is None else {"path": PYTHON, "args": args}
    plan = json.loads(runner.wrapped("prestart", hook)["args"][-1])
    assert plan["args"] == seen


def test_the_program_gets_them_and_its_own_environment_alone(
    runner: Runner, tmp_path: Path
) -> None:
    script = "cat /proc/$$/cmdline >args; cat /proc/$$/environ >env"
    script += "; out=$(readlink /proc/$$/fd/1); echo $out >&2"
    hook = shell(f"cd {tmp_path}; {script}")
    hook["args"] = ["ölig", *hook["args"][1:], "last"]
    assert runner.run("createRuntime", **hook, env=["A=1", "B=ü=2"]) == 0
    assert (tmp_path / "args").read_text().split("\0")[:-1] == hook["args"]
    assert (tmp_path / "env").read_text().split("\0")[:-1] == ["A=1", "B=ü=2"]
    assert runner.outcome["stderr"] == "/dev/null\n"


@pytest.mark.parametrize(
    ("kind", "status"),
    [("prestart", "creating"), ("createRuntime", "creating"), ("poststop", "stopped")],
)
def test_the_state_is_that_of_the_specification(
    runner: Runner, tmp_path: Path, kind: str, status: str
) -> None:
    runner.config["annotations"] = {"a": "b"}
    assert runner.run(kind, **shell(f"cat >{tmp_path}/state")) == 0
    state = json.loads((tmp_path / "state").read_bytes())
    assert state == {
        **STATE,
        "status": status,
        "ociVersion": "1.1.0",
        "annotations": {"a": "b"},
    }


def test_in_the_container_the_pid_is_that_of_its_process(runner: Runner, tmp_path: Path) -> None:
    """crun says 0 there; the hook's parent's parent is the container's own process."""
    assert runner.run("createContainer", **shell(f"cat >{tmp_path}/state")) == 0
    assert json.loads((tmp_path / "state").read_bytes())["pid"] == os.getpid()


@pytest.mark.parametrize(
    ("hook", "code", "ended"),
    [
        (shell("exit 3"), 3, "exit status 3"),
        (shell("kill -TERM $$"), 128 + 15, "ended by SIGTERM"),
        ({"path": "/nowhere/at/all"}, 127, "could not be started: No such file or directory"),
        ({"path": "/etc/passwd"}, 127, "could not be started: Permission denied"),
    ],
)
def test_a_failure_says_how(runner: Runner, hook: dict[str, Any], code: int, ended: str) -> None:
    assert runner.run("prestart", **hook) == code
    failure = hooks.hook_failure(runner.bundle)
    assert failure is not None
    assert failure.fields == {
        "hook": "prestart",
        "path": hook["path"],
        "ended": ended,
        "stderr": "",
    }
    assert failure.reason == "HOOK_FAILED"


def test_a_good_one_is_no_failure(runner: Runner) -> None:
    assert runner.run("prestart", **shell("echo fine >&2")) == 0
    assert hooks.hook_failure(runner.bundle) is None
    assert runner.outcome["stderr"] == "fine\n"


def test_all_of_standard_error_is_read_and_its_end_is_kept(runner: Runner) -> None:
    """1 MiB does not block the hook."""
    text = "0123456789abcdef"
    script = f"import os; [os.write(2, b'{text}' * 64) for _ in range(1024)]; raise SystemExit(3)"
    assert runner.run("createRuntime", **python(script)) == 3
    failure = hooks.hook_failure(runner.bundle)
    assert failure is not None
    assert failure.fields["stderr"] == text * (KEPT // len(text))


def test_a_child_left_behind_that_holds_the_output_holds_nobody_up(
    runner: Runner, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    assert runner.run("prestart", **shell(f"sleep 300 & echo $! >{pid_file}; echo left >&2")) == 0
    assert runner.outcome["stderr"] == "left\n"
    # It is the hook's to leave a daemon.
    os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_the_time_limit_ends_the_whole_group(runner: Runner, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"echo begun >&2; exec 9<>{fifo}; (exec 8>{fifo}; sleep 300) & sleep 300"
    assert runner.run("prestart", **shell(script), timeout=1) != 0
    failure = hooks.hook_failure(runner.bundle)
    assert failure is not None
    assert failure.fields["ended"] == "took longer than 1 s"
    assert failure.fields["stderr"] == "begun\n"
    # Nobody has the other end open any more, so that opening it for writing alone fails.
    with pytest.raises(OSError, match="No such device"):
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("kind", ["poststart", "poststop"])
def test_where_a_failure_is_only_logged_the_runtime_goes_on(runner: Runner, kind: str) -> None:
    # A process that is gone has run its program, so nothing is waited for.
    assert runner.run(kind, **shell("echo oh >&2; exit 3")) == 0
    assert hooks.hook_failure(runner.bundle) is None
    [failure] = hooks.logged_failures(runner.bundle)
    assert failure.fields["ended"] == "exit status 3"
    assert failure.fields["hook"] == kind


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "pid"
    yield path
    with suppress(OSError, ValueError):
        os.kill(int(path.read_text()), signal.SIGKILL)


async def test_it_ends_with_the_runtime(runner: Runner, marker: Path) -> None:
    """The runtime's whole group is killed at the operation's deadline."""
    wrapped = runner.wrapped("prestart", shell(f"echo $$ >{marker}; sleep 300"))
    script = "import subprocess, sys; subprocess.run(sys.argv[1:], input=b'{}')"
    runtime = await asyncio.create_subprocess_exec(
        PYTHON, "-c", script, *wrapped["args"], start_new_session=True
    )
    await until(lambda: _number(marker) > 0)
    hook = os.pidfd_open(_number(marker))
    try:
        os.killpg(runtime.pid, signal.SIGKILL)
        await runtime.wait()
        await until(lambda: _is_over(hook))
        await until(lambda: bool(runner.outcome["ended"]))
    finally:
        os.close(hook)
    failure = hooks.hook_failure(runner.bundle)
    assert failure is not None
    assert "time was over" in failure.fields["ended"]


def _number(marker: Path) -> int:
    try:
        return int(marker.read_text())
    except (OSError, ValueError):
        return 0


def _is_over(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


async def test_while_it_runs_its_outcome_says_so(runner: Runner, marker: Path) -> None:
    wrapped = runner.wrapped("createRuntime", shell(f"echo $$ >{marker}; sleep 300"))
    process = await asyncio.create_subprocess_exec(
        *wrapped["args"], stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(b"{}")
    process.stdin.close()
    await until(lambda: _number(marker) > 0)
    failure = hooks.hook_failure(runner.bundle)
    assert failure is not None
    assert failure.fields["ended"] == "did not end while there was time"
    os.kill(_number(marker), signal.SIGKILL)
    assert await process.wait() == 128 + 9

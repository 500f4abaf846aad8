"""crun as the runtime.

Traps of its command line (tried with 1.8 and 1.21): it lets ids like `-rf`
through, so ids come after `--`. What it prints during create and exec goes to
the container's own output, so its messages are read from a log file. Only
`delete --force` takes an unknown container for a good one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from agent.core import commands
from agent.core.errors import AgentError, Code, Reason
from agent.handlers.runtime.runtime import CreateCall, ExecCall, RuntimeState, Stdio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots

_LOG_TAIL = 64 * 1024

_SCORED = ("/bin/sh", "-c", 'echo "$1" > /proc/self/oom_score_adj && shift && exec "$@"', "sh")
"""Runs what follows a score with that score."""


class Crun:
    """Runs crun (found on PATH), each call with a deadline and a log of its own."""

    def __init__(self, roots: Roots, *, program: str = "crun") -> None:
        self._program = program
        self._state_root = roots.run / "crun"
        self._logs = roots.run / "crun-logs"
        self._numbers = itertools.count(1)

    async def create(self, call: CreateCall, deadline: Deadline) -> int:
        arguments = ["--bundle", str(call.bundle), *_files(call.pid_file, call.stdio)]
        await self._call("create", [*arguments, "--", call.id], deadline, stdio=call.stdio)
        return _pid(call.pid_file)

    async def start(self, container_id: str, deadline: Deadline) -> None:
        await self._call("start", ["--", container_id], deadline)

    def is_held(self, container_id: str) -> bool:
        """crun opens this file (and waits for the other end), removes it, writes to it."""
        return (self._state_root / container_id / "exec.fifo").exists()

    async def exec(self, call: ExecCall, deadline: Deadline) -> int:
        arguments = ["--detach", "--process", str(call.process_file)]
        arguments += _files(call.pid_file, call.stdio)
        # crun 1.21 sets the score of a container's first process only; others have crun's own.
        score = () if call.oom_score == _own_score() else (*_SCORED, str(call.oom_score))
        words = [*arguments, "--", call.id]
        await self._call("exec", words, deadline, stdio=call.stdio, before=score)
        return _pid(call.pid_file)

    async def update(self, container_id: str, resources: Path, deadline: Deadline) -> None:
        await self._call("update", ["--resources", str(resources), "--", container_id], deadline)

    async def state(self, container_id: str, deadline: Deadline) -> RuntimeState | None:
        if not self._knows(container_id):
            return None
        result = await self._call("state", ["--", container_id], deadline)
        return _state(result.stdout)

    async def delete(self, container_id: str, deadline: Deadline) -> None:
        if self._knows(container_id):
            await self._call("delete", ["--force", "--", container_id], deadline)

    def recognizes(self, arguments: Sequence[str]) -> bool:
        return str(self._state_root) in arguments and "--cgroup-manager=cgroupfs" in arguments

    def _knows(self, container_id: str) -> bool:
        """crun makes this directory before anything else and removes it last."""
        return (self._state_root / container_id).exists()

    async def _call(
        self,
        operation: str,
        arguments: list[str],
        deadline: Deadline,
        *,
        stdio: Stdio | None = None,
        before: tuple[str, ...] = (),
    ) -> commands.CommandResult:
        with self._log_file() as log:
            argv = [*before, self._program, "--root", str(self._state_root)]
            argv += ["--cgroup-manager=cgroupfs", "--log", str(log), "--log-format", "json"]
            setting = _setting(stdio)
            result = await commands.run(
                [*argv, operation, *arguments], deadline=deadline, setting=setting, check=False
            )
            if result.code != 0:
                raise _refused(operation, arguments[-1], result, _complaint(log))
        return result

    @contextlib.contextmanager
    def _log_file(self) -> Iterator[Path]:
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._logs / f"{next(self._numbers)}.json"
        # One that an earlier agent left has that name perhaps, and somebody else's messages.
        path.unlink(missing_ok=True)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def _own_score() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))


def _setting(stdio: Stdio | None) -> commands.Setting:
    if stdio is None:
        return commands.PLAIN
    return commands.Setting(stdin=stdio.stdin, stdout=stdio.stdout, stderr=stdio.stderr)


def _files(pid_file: Path, stdio: Stdio) -> list[str]:
    console = ["--console-socket", str(stdio.console)] if stdio.console else []
    return ["--pid-file", str(pid_file), *console]


def _pid(pid_file: Path) -> int:
    """crun has succeeded, so the file is whole: it writes it before it returns."""
    return int(pid_file.read_text(encoding="ascii"))


def _state(answer: bytes) -> RuntimeState | None:
    try:
        return RuntimeState(json.loads(answer)["status"])
    except (ValueError, KeyError, TypeError) as error:
        raise AgentError(
            f"crun state: an answer of another shape: {answer[:200]!r}",
            code=Code.FAILED_PRECONDITION,
            reason=Reason.RUNTIME_REFUSED,
        ) from error


def _refused(
    operation: str, container_id: str, result: commands.CommandResult, complaint: str
) -> AgentError:
    said = complaint or result.stderr_tail or f"nothing; {result.how_it_ended()}"
    return AgentError(
        f"crun {operation} of container {container_id} failed: {said}",
        code=Code.FAILED_PRECONDITION,
        reason=Reason.RUNTIME_REFUSED,
        fields={"id": container_id, "operation": operation, "runtime_message": said},
    )


def _complaint(log: Path) -> str:
    """The errors in a log of crun's, one JSON object a line; empty when there are none."""
    try:
        data = log.read_bytes()[-_LOG_TAIL:]
    except FileNotFoundError:
        return ""
    messages = [_message(line) for line in data.splitlines()]
    return "; ".join(dict.fromkeys(message for message in messages if message))


def _message(line: bytes) -> str:
    """A line that is cut or of another shape is shown as it is: better than nothing."""
    try:
        entry = json.loads(line)
        return str(entry["msg"]).strip() if entry.get("level", "error") == "error" else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return line.decode(errors="replace").strip()

"""Running programs: the agent's only user of asyncio's subprocesses.

A command gets a session of its own, so that a signal to process group 0 from
below can't reach the agent, and so that a deadline ends the whole group. It is
over when its first process ends: whoever inherited its output (a daemon, a
container) is not waited for. `preexec_fn` is never used, so that CPython
starts children by vfork, which gRPC's threads and fork handlers don't notice.

Exits of containers are not seen here; they come from PID 1's journal
(`core/exits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, Code, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

OUTPUT_LIMIT = 4 << 20
"""Bytes of standard output that `run` keeps; a command that writes more has failed."""

STDERR_TAIL = 4096
"""Bytes from the end of standard error that go into errors."""

KILL_PATIENCE = 5.0
"""Seconds until a killed process that doesn't end (state D) is left alone."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHUNK = 65536


class TimeLeft(Protocol):
    """What is needed of `core.deadlines.Deadline`."""

    def left(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a command starts with; descriptors that are None become /dev/null
    (or, for output in `run`, are collected)."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    pass_fds: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    cwd: Path | None = None


PLAIN = Setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended: `code` is its exit status, or minus the signal's number."""

    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr_tail: str

    def how_it_ended(self) -> str:
        if self.code >= 0:
            return f"exit status {self.code}"
        return f"ended by {signal_name(-self.code)}"


class CommandError(AgentError):
    """A command ran and said no; `result` has all of it.

    Callers that know what the failure means raise their own reason from it.
    """

    def __init__(self, result: CommandResult) -> None:
        said = f": {result.stderr_tail}" if result.stderr_tail else ""
        super().__init__(
            f"{' '.join(result.argv)}: {result.how_it_ended()}{said}",
            code=Code.FAILED_PRECONDITION,
            reason=Reason.KERNEL_REFUSED,
            fields={"command": result.argv[0], "ended": result.how_it_ended()},
        )
        self.result = result


class Child:
    """A running command, started by `spawn`; it leads a process group of its own."""

    def __init__(self, argv: Sequence[str], process: asyncio.subprocess.Process) -> None:
        self.argv = tuple(argv)
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit status, minus the signal's number, or None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        """SIGKILL to the whole group, unless the leader is known to be gone:
        its number could be someone else's by then."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> bool:
        """Kill and reap; False when it doesn't end within `KILL_PATIENCE`."""
        if self._process.returncode is not None:
            return True
        self.kill()
        reaping = asyncio.ensure_future(self._process.wait())
        done, _ = await asyncio.wait([reaping], timeout=KILL_PATIENCE)
        return bool(done)


async def spawn(argv: Sequence[str], *, setting: Setting = PLAIN) -> Child:
    """Start a command and return at once; the caller owes it a `wait` or an `end`.

    Raises AgentError (KERNEL_REFUSED) when it can't be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=_or_null(setting.stdin),
            stdout=_or_null(setting.stdout),
            stderr=_or_null(setting.stderr),
            pass_fds=setting.pass_fds,
            cwd=setting.cwd,
            env=_environment(setting.environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _not_started(argv, error) from error
    return Child(argv, process)


async def run(
    argv: Sequence[str],
    *,
    deadline: TimeLeft,
    setting: Setting = PLAIN,
    input: bytes | None = None,  # noqa: A002 - the name that subprocess has taught everyone
    check: bool = True,
) -> CommandResult:
    """Run a command to its end.

    Standard output and the tail of standard error are collected unless
    `setting` sends them elsewhere. At the deadline the whole process group is
    killed. Raises CommandError when `check` and it didn't exit with 0,
    AgentError OPERATION_TIMED_OUT at the deadline, KERNEL_REFUSED when it
    can't be started.
    """
    with contextlib.ExitStack() as stack:
        stdin = stack.enter_context(_input_file(input)) if input is not None else setting.stdin
        out = stack.enter_context(_Collector(head=OUTPUT_LIMIT + 1))
        err = stack.enter_context(_Collector(tail=STDERR_TAIL))
        wired = replace(
            setting,
            stdin=stdin,
            stdout=out.write_end if setting.stdout is None else setting.stdout,
            stderr=err.write_end if setting.stderr is None else setting.stderr,
        )
        code = await _to_the_end(argv, wired, deadline, err)
        result = CommandResult(
            argv=tuple(argv), code=code, stdout=out.collected(), stderr_tail=err.text()
        )
    _refuse_too_much_output(result)
    if check and code != 0:
        raise CommandError(result)
    return result


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 40` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _to_the_end(
    argv: Sequence[str], wired: Setting, deadline: TimeLeft, err: _Collector
) -> int:
    child = await spawn(argv, setting=wired)
    try:
        async with asyncio.timeout(max(deadline.left(), 0.0)):
            return await child.wait()
    except TimeoutError:
        raise await _stopped(child, err) from None
    finally:
        await child.end()


async def _stopped(child: Child, err: _Collector) -> AgentError:
    ended = await child.end()
    tail = err.text()
    outcome = "and was killed" if ended else "and doesn't end even after SIGKILL (in state D?)"
    said = f"; it said: {tail}" if tail else ""
    return AgentError(
        f"{' '.join(child.argv)}: didn't end in time {outcome}{said}",
        code=Code.DEADLINE_EXCEEDED,
        reason=Reason.OPERATION_TIMED_OUT,
        fields={"command": child.argv[0]},
    )


def _not_started(argv: Sequence[str], error: OSError | ValueError) -> AgentError:
    missing = isinstance(error, FileNotFoundError)
    return AgentError(
        f"{' '.join(argv)}: can't be started: {error}",
        code=Code.FAILED_PRECONDITION,
        reason=Reason.KERNEL_REFUSED,
        fields={"command": argv[0]},
        hint=f"is {argv[0]} in the image?" if missing else None,
    )


def _refuse_too_much_output(result: CommandResult) -> None:
    if len(result.stdout) > OUTPUT_LIMIT:
        raise AgentError(
            f"{' '.join(result.argv)}: wrote more than {OUTPUT_LIMIT} bytes",
            code=Code.RESOURCE_EXHAUSTED,
            reason=Reason.LIMIT_REACHED,
            fields={"command": result.argv[0]},
        )


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Little and the same everywhere: output of tools must not change with a locale."""
    return {"PATH": os.environ.get("PATH", _PATH), "LC_ALL": "C.UTF-8", **extra}


def _or_null(fd: int | None) -> int:
    return asyncio.subprocess.DEVNULL if fd is None else fd


@contextlib.contextmanager
def _input_file(data: bytes) -> Iterator[int]:
    """A memory file rather than a pipe: a command that doesn't read can't stall us."""
    with os.fdopen(os.memfd_create("input", os.MFD_CLOEXEC), "w+b", buffering=0) as file:
        file.write(data)
        file.seek(0)
        yield file.fileno()


class _Collector:
    """Reads a pipe while the loop runs; keeps the first or the last bytes, drops the rest."""

    def __init__(self, *, head: int = 0, tail: int = 0) -> None:
        self._head, self._tail = head, tail
        self._data = bytearray()
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._readable)

    def __enter__(self) -> _Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        os.close(self.write_end)

    def collected(self) -> bytes:
        """All that is there now; a background child may hold the pipe open for ever,
        so the end of the file is not waited for."""
        for _ in range(OUTPUT_LIMIT // _CHUNK + 1):
            if not self._readable():
                break
        return bytes(self._data)

    def text(self) -> str:
        return self.collected().decode(errors="replace").strip()

    def _readable(self) -> bool:
        try:
            data = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return False
        self._data += data
        if self._head:
            del self._data[self._head :]
        else:
            del self._data[: -self._tail]
        return bool(data)

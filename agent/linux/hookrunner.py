"""Runs one hook for the runtime, which only starts and awaits this process.

    python3 -IS -c BOOT CODE PLAN      (see handlers/runtime/hooks.py)

The hook gets exactly the arguments and the environment that its specification says, the
container's state on its standard input, nothing on its standard output, and a session of
its own. Its time limit ends the whole process group; so does the end of the runtime, whose
deadline is that of the operation. Its standard error is read to the end of the process,
not to the end of the pipe, which a child left behind may hold open; the last bytes are kept.

The outcome goes to the file that the plan names, as one JSON object, and this process exits
as the hook did. Where a failure aborts nothing (poststart, poststop) it exits with 0, so
that the runtime goes on with the next hook.

It may run in a container's namespaces (createContainer), before its root was changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from agent.linux.execwait import wait_for_exec

KEPT = 4096
"""Bytes from the end of a hook's standard error that are kept."""

_STATE_LIMIT = 1 << 20
_CHUNK = 1 << 16
_NOT_STARTED = 127
_TOO_LATE = 124
_ONLY_LOGGED = ("poststart", "poststop")

_PROGRAM_WITHIN = 30.0
"""Seconds within which a container's process runs its program after `start`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One hook: `args` complete, `timeout` in seconds or None, `state` members that replace
    the runtime's, `outcome` the file to write."""

    kind: str
    path: str
    args: list[str]
    env: list[str]
    timeout: float | None
    state: dict[str, Any]
    outcome: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a hook ended; `ended` is empty while it runs, and `code` is 0 for success alone."""

    code: int
    ended: str
    stderr: bytes = b""


def main() -> NoReturn:
    plan = Plan(**json.loads(sys.argv[-1]))
    # The runtime's group is killed at its deadline, and we are to outlive it for a moment.
    with contextlib.suppress(OSError):
        os.setsid()
    outcome = run(plan, _read_state(0))
    sys.exit(0 if plan.kind in _ONLY_LOGGED else outcome.code)


def run(plan: Plan, state: bytes) -> Outcome:
    """Run the hook and leave its outcome in the file."""
    runtime = _Runtime()
    document = _amended(state, plan)
    _leave(plan, Outcome(0, ""))
    outcome = _outcome(plan, document, runtime)
    _leave(plan, outcome)
    return outcome


def _outcome(plan: Plan, document: dict[str, Any], runtime: _Runtime) -> Outcome:
    if plan.kind == "poststart" and not _program_runs(document):
        return Outcome(_TOO_LATE, "was not run: the container's process did not run its program")
    try:
        child = _Child(plan, json.dumps(document).encode())
    except OSError as error:
        return Outcome(_NOT_STARTED, f"could not be started: {error.strerror}")
    return child.follow(runtime, plan.timeout)


def _program_runs(document: dict[str, Any]) -> bool:
    """The specification has these hooks after the program's start, and crun does not wait."""
    return wait_for_exec(int(document["pid"]), _PROGRAM_WITHIN, runtime=os.getppid())


class _Runtime:
    """Our parent: whoever is there when we begin."""

    def __init__(self) -> None:
        self.fd = -1
        parent = os.getppid()
        # A parent in another pid namespace has the number 0, and ends us with its own.
        if parent:
            with contextlib.suppress(OSError):
                self.fd = os.pidfd_open(parent)


class _Child:
    """A running hook."""

    def __init__(self, plan: Plan, state: bytes) -> None:
        """Raises OSError when it can't be started, also for what execve(2) refuses."""
        self._stderr, theirs = os.pipe2(os.O_CLOEXEC)
        told, tell = os.pipe2(os.O_CLOEXEC)
        stdin = _memory_file(state)
        self.pid = os.fork()
        if self.pid == 0:
            _become(plan, (stdin, theirs), tell)
        for fd in (theirs, tell, stdin):
            os.close(fd)
        self._pidfd = os.pidfd_open(self.pid)
        refused = os.read(told, 16)
        os.close(told)
        os.set_blocking(self._stderr, False)
        self._tail = b""
        if refused:
            os.waitpid(self.pid, 0)
            raise OSError(int(refused), os.strerror(int(refused)), plan.path)

    def follow(self, runtime: _Runtime, timeout: float | None) -> Outcome:
        """Until it ends by itself, or its time or the runtime is over."""
        late = self._wait(runtime, timeout)
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        while self._take():
            pass
        os.close(self._stderr)
        os.close(self._pidfd)
        if late:
            return Outcome(_TOO_LATE, late, self._tail)
        return _of_status(status, self._tail)

    def _wait(self, runtime: _Runtime, timeout: float | None) -> str:
        """Why it has to end; empty when it has."""
        until = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        for fd in (self._stderr, self._pidfd, runtime.fd):
            # A negative one would be refused.
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            ready = {fd for fd, _ in poll.poll(None if left is None else left * 1000)}
            if self._pidfd in ready:
                return ""
            if runtime.fd in ready:
                return "was ended with the operation that it belongs to, whose time was over"
            if until is not None and time.monotonic() >= until:
                return f"took longer than {timeout:g} s"
            if self._stderr in ready and not self._take():
                poll.unregister(self._stderr)

    def _take(self) -> bool:
        """Read what is there; False when there is no more now, or no more at all."""
        try:
            data = os.read(self._stderr, _CHUNK)
        except BlockingIOError:
            return False
        self._tail = (self._tail + data)[-KEPT:]
        return bool(data)


def _become(plan: Plan, ends: tuple[int, int], tell: int) -> NoReturn:
    """The child: standard descriptors, a session, the program."""
    try:
        os.setsid()
        stdin, stderr = ends
        os.dup2(stdin, 0)
        os.dup2(os.open("/dev/null", os.O_RDWR), 1)
        os.dup2(stderr, 2)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execve(_raw(plan.path), [_raw(each) for each in plan.args], _environment(plan.env))
    except OSError as error:
        os.write(tell, str(error.errno).encode())
    finally:
        os._exit(_NOT_STARTED)


def _environment(env: list[str]) -> dict[bytes, bytes]:
    pairs = (_raw(each).partition(b"=") for each in env)
    return {name: value for name, _, value in pairs}


def _raw(text: str) -> bytes:
    """Whatever locale this process was started with."""
    return text.encode("utf-8", "surrogateescape")


def _memory_file(data: bytes) -> int:
    """Rather than a pipe: a hook that doesn't read its state can't hold us up."""
    fd = os.memfd_create("state", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read_state(fd: int) -> bytes:
    data = b""
    while len(data) < _STATE_LIMIT and (more := os.read(fd, _CHUNK)):
        data += more
    return data


def _amended(state: bytes, plan: Plan) -> dict[str, Any]:
    """The runtime's words, but for what it says otherwise than the specification does."""
    document = {**json.loads(state), **plan.state}
    if plan.kind == "createContainer" and not document.get("pid"):
        # crun 1.21 says 0 where it is the process itself that runs the hook.
        document["pid"] = os.getppid()
    return document


def _of_status(status: int, tail: bytes) -> Outcome:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Outcome(code, f"exit status {code}", tail)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return Outcome(128 - code, f"ended by {name}", tail)


def _leave(plan: Plan, outcome: Outcome) -> None:
    """The file is there already: in a user namespace we could not make it."""
    words = {
        "kind": plan.kind,
        "path": plan.path,
        "failed": outcome.code != 0,
        "ended": outcome.ended,
        "stderr": outcome.stderr.decode("utf-8", "replace"),
    }
    with contextlib.suppress(OSError), open(plan.outcome, "r+b", buffering=0) as file:
        data = json.dumps(words).encode()
        file.write(data)
        file.truncate(len(data))

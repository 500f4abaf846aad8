"""The host's only door to other programs.

A command that fails says its argument list (as it can be pasted into a
shell), its exit status or signal, the tail of what it wrote to stderr, and a
hint where we know the way out. A command that is too slow is killed with its
whole process group.

Three ways: `run` for short-lived programs, `spawn_tied` for QEMU and its
helpers, which must not outlive the daemon, and `spawn_detached` for the daemon
itself, which must outlive its starter.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_TAIL_LINES = 20

# $1 is the pid that must still be the parent. The parent death signal is set by
# then, but a parent that died before it was set would never be noticed.
IF_PARENT_LIVES = '[ "$PPID" = "$1" ] || exit 1; shift; exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command left behind; `stdout` and `stderr` are whole."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")


class CommandError(Exception):
    """A command that could not start, failed, or ran past its deadline."""

    def __init__(self, argv: Sequence[str], why: str, stderr: bytes = b"", hint: str = "") -> None:
        self.argv = tuple(argv)
        self.why = why
        self.hint = hint
        self.stderr_tail = _tail(stderr)
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [f"{shlex.join(self.argv)}: {self.why}"]
        if self.stderr_tail:
            parts.append(self.stderr_tail)
        if self.hint:
            parts.append(self.hint)
        return "\n".join(parts)


def run(  # noqa: PLR0913 - what a process takes, by keyword
    argv: Sequence[str | Path],
    *,
    deadline: float,
    input: bytes | None = None,  # noqa: A002 - the name that subprocess.run has for it
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stream_to: Callable[[str], None] | None = None,
    hint: str = "",
    check: bool = True,
) -> CommandResult:
    """Runs a program to its end; `deadline` in seconds.

    `env` replaces the whole environment. `stream_to` gets each line of stderr
    as it comes. Raises `CommandError`, with `hint` in its text, for anything
    but exit status 0 (without `check`: for what could not start or was too slow).
    """
    words = tuple(os.fspath(word) for word in argv)
    process = _start(words, input is not None, env, cwd)
    with process:
        stdout, stderr = _talk(process, words, deadline, input, stream_to)
    if process.returncode and check:
        raise CommandError(words, describe_status(process.returncode), stderr, hint)
    return CommandResult(argv=words, status=process.returncode, stdout=stdout, stderr=stderr)


async def spawn_tied(
    argv: Sequence[str | Path],
    *,
    output: int,
    pass_fds: Sequence[int] = (),
    own_group: bool = False,
) -> asyncio.subprocess.Process:
    """Starts a program that the kernel kills when this process ends, however it ends.

    The parent death signal fires when the *thread* that spawned ends, so this
    must be called from the main thread; it is cleared by fork, so the program
    must not daemonize itself. `setpriv` sets it in the child, where no Python
    may run between fork and exec. `output`: descriptor for stdout and stderr.
    `own_group`: its pid is that of a process group, for a program that forks.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a tied program must be spawned from the main thread")
    words = tuple(os.fspath(word) for word in argv)
    tie = ("setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", IF_PARENT_LIVES, "sh")
    try:
        return await asyncio.create_subprocess_exec(
            *tie,
            str(os.getpid()),
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=tuple(pass_fds),
            process_group=0 if own_group else None,
        )
    except FileNotFoundError as error:
        raise CommandError(words, "cannot start: no setpriv", hint="install util-linux") from error


def spawn_detached(
    argv: Sequence[str | Path], *, output: int, pass_fds: Sequence[int] = (), cwd: Path
) -> None:
    """Starts a program in a session of its own that is nobody's child.

    `setsid --fork` ends at once, so the starter has nothing to reap and its
    terminal's signals do not reach the program.
    """
    words = ("setsid", "--fork", *(os.fspath(word) for word in argv))
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=tuple(pass_fds),
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError(words, "no such program", hint="install util-linux") from error
    if done.returncode:
        raise CommandError(words, describe_status(done.returncode))


def describe_status(status: int) -> str:
    """`status` as subprocess gives it: negative for a signal."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _start(
    words: tuple[str, ...], has_input: object, env: Mapping[str, str] | None, cwd: Path | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise CommandError(
            words, "no such program", hint=f"install what provides {words[0]}"
        ) from error
    except OSError as error:
        raise CommandError(words, f"cannot start: {error.strerror}") from error


def _talk(
    process: subprocess.Popen[bytes],
    words: tuple[str, ...],
    deadline: float,
    data: bytes | None,
    stream_to: Callable[[str], None] | None,
) -> tuple[bytes, bytes]:
    """Feeds and drains all three pipes at once, so that none can fill up and block."""
    lines: list[bytes] = []
    reader = None
    if stream_to is not None and process.stderr is not None:
        reader = threading.Thread(target=_pump, args=(process.stderr, lines, stream_to))
        reader.start()
        process.stderr = None
    try:
        stdout, stderr = process.communicate(data, timeout=deadline)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            why = f"not done after {deadline:g} s, killed"
            raise CommandError(words, why, error.stderr or b"".join(lines)) from None
        raise
    finally:
        if reader is not None:
            reader.join()
    return stdout, b"".join(lines) if reader is not None else stderr


def _pump(pipe: IO[bytes], lines: list[bytes], stream_to: Callable[[str], None]) -> None:
    with pipe:
        for line in pipe:
            lines.append(line)
            stream_to(line.decode(errors="replace").rstrip())


def _tail(stderr: bytes) -> str:
    return "\n".join(stderr.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:])

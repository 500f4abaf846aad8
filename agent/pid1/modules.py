"""Kernel modules: the image's list and what the kernel command line adds."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import NamedTuple

from agent.linux import pidfd
from agent.pid1.spawn import ENVIRONMENT, read_until_end, spawn, wait_for

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)
_OUTPUT_LIMIT = 64 * 1024


class Loading(NamedTuple):
    """modprobe at work: its pid, and the pipe with what it complains about."""

    pid: int
    complaints: int


def wanted(image_list: str, added: str) -> tuple[list[str], list[str]]:
    """Names to load, each once and in order, and words that are no names.

    `image_list` has one a line with `#` comments, `added` is parted by commas.
    """
    lines = [line.partition("#")[0].strip() for line in image_list.split("\n")]
    words = [word for word in [*lines, *added.split(",")] if word]
    unique = list(dict.fromkeys(words))
    names = [word for word in unique if _NAME.fullmatch(word)]
    return names, [word for word in unique if word not in names]


def start(modprobe: str, names: list[str]) -> Loading:
    """Begin to load: one process for all, which goes on after one it cannot find.

    Raises OSError when modprobe cannot be executed.
    """
    complaints, output = os.pipe()
    try:
        # -b: the image's blacklist holds, as it does where the kernel asks for a module.
        pid = spawn((modprobe, "-a", "-b", *names), ENVIRONMENT, output=output)
    except OSError:
        os.close(complaints)
        raise
    finally:
        os.close(output)
    return Loading(pid, complaints)


def finish(loading: Loading, seconds: float) -> list[str]:
    """Wait for the end, within a bound; what went wrong, one text for each module."""
    deadline = time.monotonic() + seconds
    try:
        output = read_until_end(loading.complaints, deadline=deadline, limit=_OUTPUT_LIMIT)
    finally:
        os.close(loading.complaints)
    ended = wait_for(loading.pid, deadline - time.monotonic())
    warnings = output.decode(errors="replace").splitlines()
    if ended is None:
        os.kill(loading.pid, signal.SIGKILL)
        pidfd.reap(loading.pid)
        warnings.append(f"modprobe (pid {loading.pid}) had not ended after {seconds:g} s: killed")
    return warnings

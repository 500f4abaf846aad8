"""Kernel modules at boot: of the devices that are there, of two lists.

There is no udev to do it. What is plugged later is the agent's (`core/drivers.py`).
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import NamedTuple

from agent.linux import modalias, pidfd
from agent.pid1.spawn import ENVIRONMENT, read_until_end, spawn, wait_for

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)
_OUTPUT_LIMIT = 64 * 1024


class Loading(NamedTuple):
    """modprobe at work: its pid, and the pipe with what it complains about."""

    pid: int
    complaints: int


class ColdDevices:
    """The devices that nothing announces to us, because they were there first."""

    def __init__(self, sys: str) -> None:
        self._sys = sys
        self._seen: set[str] = set()

    def new_aliases(self) -> list[str]:
        """Aliases of devices without a driver that were not there the time before."""
        new = [path for path in modalias.on_buses(self._sys) if path not in self._seen]
        self._seen.update(new)
        return sorted({alias for path in new if (alias := modalias.wanted(path))})


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
    """Begin to load: one process for all names and aliases, which goes on after a missing one.

    Raises OSError when modprobe cannot be executed.
    """
    complaints, output = os.pipe()
    try:
        # -b: the image's blacklist holds, as it does where the kernel asks for a module.
        pid = spawn((modprobe, "-a", "-b", "--", *names), ENVIRONMENT, output=output)
    except OSError:
        os.close(complaints)
        raise
    finally:
        os.close(output)
    return Loading(pid, complaints)


def finish(loading: Loading, seconds: float) -> list[str]:
    """Wait for the end, within a bound; what went wrong, one text for each module.

    An alias without a module is nothing wrong: most devices need none.
    """
    deadline = time.monotonic() + seconds
    try:
        output = read_until_end(loading.complaints, deadline=deadline, limit=_OUTPUT_LIMIT)
    finally:
        os.close(loading.complaints)
    ended = wait_for(loading.pid, deadline - time.monotonic())
    lines = output.decode(errors="replace").splitlines()
    warnings = [line for line in lines if not modalias.is_unknown(line)]
    if ended is None:
        os.kill(loading.pid, signal.SIGKILL)
        pidfd.reap(loading.pid)
        warnings.append(f"modprobe (pid {loading.pid}) had not ended after {seconds:g} s: killed")
    return warnings

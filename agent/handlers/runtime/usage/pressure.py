"""Thresholds of pressure stall information, and the events that tell of them (psi.rst).

A threshold is written to a file of pressure; the descriptor is the trigger for as long as it
is open. The kernel tells at most once per window.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, Code, Reason, invalid, kernel_refused
from agent.handlers.runtime.usage.cgroupfiles import parse_pressure
from agent.handlers.runtime.usage.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agent.core.life import PressureThreshold
    from agent.core.roots import Roots

log = logging.getLogger(__name__)

KIND = "pressure"

# ENOENT: the kernel was built without it, or has psi=0; EOPNOTSUPP: it was switched off for
# this group (cgroup.pressure).
_WITHOUT = {errno.ENOENT, errno.EOPNOTSUPP}


class Events(Protocol):
    """What is needed of `core.events.EventLog`."""

    def publish(
        self, kind: str, subject: str, details: Mapping[str, str] | None = None
    ) -> object: ...


class PressureWatch:
    """Triggers by subject: a container's id, or "" for the guest as a whole."""

    def __init__(self, roots: Roots, events: Events) -> None:
        self._roots = roots
        self._events = events
        self._triggers: dict[str, tuple[_Trigger, ...]] = {}

    def set(self, subject: str, cgroup: str, thresholds: Sequence[PressureThreshold]) -> None:
        """Tell of these thresholds of the group and of no others; `cgroup` is not looked at
        for the subject "". A group that is gone has none.

        Raises NOT_SUPPORTED where the kernel has no such pressure, BAD_FIELD where it takes
        no such threshold, KERNEL_REFUSED; those of before stay then.
        """
        with ExitStack() as undo:
            made = []
            directory = self._directory(subject, cgroup)
            gone = bool(subject) and not directory.is_dir()
            for threshold in () if gone else thresholds:
                trigger = self._made(subject, directory, threshold)
                undo.callback(trigger.close)
                made.append(trigger)
            undo.pop_all()
        self.drop(subject)
        if made:
            self._triggers[subject] = tuple(made)

    def drop(self, subject: str) -> None:
        """Tell of nothing any more; fine where nothing was told of."""
        for trigger in self._triggers.pop(subject, ()):
            trigger.close()

    def close(self) -> None:
        """Drop all of them."""
        for subject in tuple(self._triggers):
            self.drop(subject)

    def _made(self, subject: str, directory: Path, threshold: PressureThreshold) -> _Trigger:
        path = directory / (f"{threshold.resource}.pressure" if subject else threshold.resource)
        try:
            return _Trigger(path, subject, threshold, self._events)
        except OSError as error:
            raise _refusal(error, path, threshold) from error

    def _directory(self, subject: str, cgroup: str) -> Path:
        """Where the files are, or would be: a container's group may be gone, and a kernel
        without any of it has no directory for the guest."""
        if subject:
            return self._roots.cgroup / cgroup.lstrip("/")
        return self._roots.proc / "pressure"


class _Trigger:
    """One threshold, from now on. Raises OSError."""

    def __init__(
        self, path: Path, subject: str, threshold: PressureThreshold, events: Events
    ) -> None:
        self._subject = subject
        self._threshold = threshold
        self._events = events
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, _words(threshold).encode("ascii"))
            self._notice = Notice(fd, self._told)
        except OSError:
            os.close(fd)
            raise

    def close(self) -> None:
        self._notice.close()

    def _told(self) -> None:
        text = self._notice.read()
        if text is None:
            # Its group has gone.
            self.close()
            return
        threshold, kind = self._threshold, _kind(self._threshold)
        pressure = parse_pressure(text)
        stall = pressure.full if threshold.full else pressure.some
        details = {
            "resource": str(threshold.resource),
            "kind": kind,
            "stall_micros": str(threshold.stall),
            "window_micros": str(threshold.window),
            "average_10s": f"{stall.average_10s:.2f}",
            "total_micros": str(stall.total_micros),
        }
        self._events.publish(KIND, self._subject, details)


def _kind(threshold: PressureThreshold) -> str:
    return "full" if threshold.full else "some"


def _words(threshold: PressureThreshold) -> str:
    """`some 150000 1000000`, with an end that the kernel cuts off (psi_write)."""
    return f"{_kind(threshold)} {threshold.stall} {threshold.window}\n"


def _refusal(error: OSError, path: Path, threshold: PressureThreshold) -> AgentError:
    if error.errno in _WITHOUT:
        return AgentError(
            f"this kernel tells no {threshold.resource} pressure: {path}: {error.strerror}",
            code=Code.FAILED_PRECONDITION,
            reason=Reason.NOT_SUPPORTED,
            fields={"object": str(path), "resource": str(threshold.resource)},
            hint="it needs CONFIG_PSI, and psi=1 on the kernel command line where that is not"
            " the default",
        )
    if error.errno == errno.EINVAL:
        return invalid(
            f"the kernel takes no threshold of pressure {_words(threshold).strip()!r}",
            field="pressure",
            hint="the window is 500,000 to 10,000,000 microseconds, the stall not longer",
        )
    return kernel_refused(error, doing=f"watch {path}")

"""Steps of a demonstration: each is shown with the time it took, and a failure names its step."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from innkeeper.cli import output

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME_WIDTH = 13


class StepError(Exception):
    """What went wrong is the cause."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class Step:
    """One step while it runs; `result` is what its line says."""

    def __init__(self) -> None:
        self.result = ""


@contextlib.contextmanager
def step(name: str) -> Iterator[Step]:
    """Shows the step when it is done; raises StepError from whatever goes wrong in it."""
    began = time.perf_counter()
    running = Step()
    try:
        with output.busy(name):
            yield running
    except Exception as error:
        raise StepError(name) from error
    seconds = time.perf_counter() - began
    output.say(f"{name:<{_NAME_WIDTH}} {seconds:6.2f} s  {running.result}".rstrip())

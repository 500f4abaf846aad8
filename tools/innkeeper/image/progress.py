"""Shows a build as it goes: a moving bar on a terminal, one line per step elsewhere."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from rich.console import Console


class Progress(Protocol):
    """What a builder tells while it works."""

    def plan(self, steps: int) -> None:
        """How many steps will follow."""

    def step(self, title: str) -> AbstractContextManager[None]:
        """One step, timed."""

    def note(self, text: str) -> None:
        """What a step found; kept on the screen."""

    def warn(self, text: str) -> None:
        """What somebody should read."""

    def trace(self, text: str) -> None:
        """A line of a program's own output; only the latest is of interest."""


@dataclass(slots=True)
class Silent:
    """Keeps what was said, for callers that show it in their own way."""

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def plan(self, steps: int) -> None:
        """Not shown."""

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        self.steps.append(title)
        yield

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def trace(self, text: str) -> None:
        """Not shown."""


@dataclass(slots=True)
class Shown:
    """On the console: to be used as a context."""

    console: Console
    bar: Bar = field(init=False)

    def __post_init__(self) -> None:
        self.bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[latest]}"),
            console=self.console,
            transient=True,
            # A bar in a log file is a page of nonsense.
            disable=not self.console.is_terminal,
        )
        self.bar.add_task("image", total=None, latest="")

    def __enter__(self) -> Shown:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def plan(self, steps: int) -> None:
        self.bar.update(self.bar.task_ids[0], total=steps)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        task = self.bar.task_ids[0]
        self.bar.update(task, description=title, latest="")
        start = time.monotonic()
        yield
        took = time.monotonic() - start
        self.bar.update(task, advance=1)
        self.console.print(f"  {escape(title):<36} {took:6.1f} s", highlight=False)

    def note(self, text: str) -> None:
        self.console.print(f"    {escape(text)}", highlight=False)

    def warn(self, text: str) -> None:
        self.console.print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False)

    def trace(self, text: str) -> None:
        self.bar.update(self.bar.task_ids[0], latest=escape(text[:60]))

"""A bed for containers on which the n-th call of what an operation leans on fails.

Counted are the calls of the runtime, of file-system workers, of PID 1's store, of the other
managers, and the writes of the state, in the order in which they come.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from agent.core.errors import AgentError, Reason, exhausted, timed_out
from tests.fakes.bed import FakeBed, Life

_COUNTED = {
    "runtime": ("create", "start", "exec", "update", "state"),
    "files": (
        *("mount", "make_targets", "check_directory", "is_directory"),
        *("find_account", "find_home", "list_processes"),
    ),
    "state": ("save",),
    "storages": ("awaited", "acquire"),
    "devices": ("hold",),
    "exclusive": ("grant",),
    "network": ("lend",),
    "nodes": ("check", "change"),
    "pressure": ("set",),
    "namespaces": ("paths",),
    "exits": ("note",),
}


class Faults:
    """Counts from 1; the call number `at` fails, before it does anything or after that."""

    def __init__(self) -> None:
        self.at = 0
        self.after = False
        self.calls: list[str] = []

    def arm(self, at: int, *, after: bool = False) -> None:
        self.at, self.after = at, after
        self.calls.clear()

    @property
    def struck(self) -> bool:
        return len(self.calls) >= self.at > 0

    def count(self, name: str) -> bool:
        """Whether this call is the one."""
        self.calls.append(name)
        return len(self.calls) == self.at

    def failure(self, name: str) -> AgentError:
        if name == "state.save":
            return exhausted("the run directory is full", reason=Reason.NO_SPACE)
        return timed_out(f"{name} was made to fail")


class Failing:
    """Stands before a real object, and fails when it is told to."""

    def __init__(self, name: str, real: Any, faults: Faults, calls: tuple[str, ...]) -> None:
        self._name = name
        self._real = real
        self._faults = faults
        self._calls = calls

    def __getattr__(self, attribute: str) -> Any:
        real = getattr(self._real, attribute)
        if attribute not in self._calls:
            return real
        name, faults = f"{self._name}.{attribute}", self._faults

        def call(*arguments: Any, **more: Any) -> Any:
            strikes = faults.count(name)
            if strikes and not faults.after:
                raise faults.failure(name)
            outcome = real(*arguments, **more)
            if strikes and not inspect.isawaitable(outcome):
                raise faults.failure(name)
            return outcome

        async def call_later(*arguments: Any, **more: Any) -> Any:
            strikes = faults.count(name)
            if strikes and not faults.after:
                raise faults.failure(name)
            outcome = await real(*arguments, **more)
            if strikes:
                raise faults.failure(name)
            return outcome

        return call_later if inspect.iscoroutinefunction(real) else call


class FaultyLife(Life):
    """A life whose context fails at a call."""

    def __init__(self, bed: FakeBed) -> None:
        super().__init__(bed)
        self.faults = Faults()
        parts: dict[str, Any] = {
            name: Failing(name, getattr(self.context, name), self.faults, calls)
            for name, calls in _COUNTED.items()
        }
        self.take(replace(self.context, **parts))

"""modprobe as the agent's command runner shows it: loads what it is told to know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agent.core.commands import CommandResult
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError

Effect = Callable[[], None]


class FakeModprobe:
    """`knows` says what loading does to the guest, by alias; `fails` what it complains about."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.knows: dict[str, Effect] = {}
        self.fails: dict[str, str | AgentError] = {}
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def __call__(
        self, argv: Sequence[str], *, deadline: Deadline, check: bool
    ) -> CommandResult:
        *command, alias = argv
        assert (command, check) == (["modprobe", "-b", "--"], False)
        self.calls.append(alias)
        await self.proceed.wait()
        failure = self.fails.get(alias)
        if isinstance(failure, AgentError):
            raise failure
        if alias in self.knows:
            self.knows[alias]()
        elif failure is None:
            failure = unknown(alias)
        return CommandResult(
            argv=tuple(argv), code=1 if failure else 0, stdout=b"", stderr_tail=failure or ""
        )


def unknown(alias: str, kind: str = "FATAL") -> str:
    """What kmod 34 says of an alias that no module has."""
    where = "/lib/modules/6.12.118+deb13-cloud-amd64"
    return f"modprobe: {kind}: Module {alias} not found in directory {where}"

"""The command `innkeeper` run as a program, as a shell runs it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INNKEEPER = (sys.executable, "-m", "innkeeper.cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a command left: exit code, bytes on stdout, words on stderr."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class Innkeeper:
    """Runs the command line in one environment."""

    environment: Mapping[str, str]
    directory: Path | None = None

    async def __call__(self, *words: str, stdin: bytes = b"") -> Left:
        process = await self.start(*words)
        out, err = await process.communicate(stdin)
        return Left(code=await process.wait(), out=out, err=err.decode())

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        """With pipes for all three streams."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *(*INNKEEPER, *words),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self.environment,
            cwd=self.directory,
        )

"""Runs Debian 13's own programs on this host, out of the build root.

Through the build root's own dynamic loader, so neither chroot nor root is
needed, and the host's libraries (and their age) do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.image.environment import fixed_environment
from innkeeper.shim.commands import run

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.shim.commands import CommandResult

_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_DEADLINE = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """`root` is an unpacked build root."""

    root: Path

    def run(
        self,
        program: str,
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        input: bytes | None = None,  # noqa: A002 - the name that subprocess.run has for it
    ) -> CommandResult:
        """`program` is a path below the root, such as usr/sbin/mke2fs."""
        loader: list[str | Path] = [self.root / _LOADER, "--library-path", self.root / _LIBRARIES]
        return run(
            [*loader, self.root / program, *arguments],
            deadline=_DEADLINE,
            env=fixed_environment(**(env or {})),
            input=input,
        )

    def python(self, *arguments: str | Path) -> CommandResult:
        env = {"PYTHONHOME": str(self.root / "usr"), "PYTHONHASHSEED": "0"}
        return self.run("usr/bin/python3.13", "-S", "-B", *arguments, env=env)

    def mke2fs(self, *arguments: str | Path) -> CommandResult:
        env = {"MKE2FS_CONFIG": str(self.root / "etc/mke2fs.conf")}
        return self.run("usr/sbin/mke2fs", *arguments, env=env)

    def busybox(self, *arguments: str) -> str:
        program = self.root / "usr/bin/busybox"
        return run([program, *arguments], deadline=_DEADLINE, env=fixed_environment()).text

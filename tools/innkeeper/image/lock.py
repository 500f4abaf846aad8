"""The record of resolved packages: which versions an image was made of.

One line per package: `ROLE NAME=VERSION ARCHITECTURE sha256:HEX`. The same
lock gives the same image, byte for byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from innkeeper.image.model import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_LINE = re.compile(
    r"(?P<role>\S+) (?P<name>[a-z0-9][a-z0-9+.-]+)=(?P<version>\S+) (?P<architecture>\S+)"
    r" sha256:(?P<sha256>[0-9a-f]{64})"
)
_HEADER = """\
# The Debian packages of an image, as resolved; `innkeeper image build --update-lock` writes it.
# image: in the guest; tool: in the build root only; kernel: vmlinuz and modules.
"""


class Role(StrEnum):
    IMAGE = "image"
    TOOL = "tool"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LockEntry:
    role: Role
    name: str
    version: str
    architecture: str
    sha256: str

    @property
    def pin(self) -> str:
        """As apt takes it."""
        return f"{self.name}={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """`request` is what was resolved; a lock of another request does not fit."""

    request: tuple[str, ...]
    entries: tuple[LockEntry, ...]

    @classmethod
    def parse(cls, text: str, *, source: str) -> Self:
        """Raises `ImageError` with file and line for a line that is none."""
        request: tuple[str, ...] = ()
        entries = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith("request "):
                request = tuple(line.split()[1:])
            elif line and not line.startswith("#"):
                entries.append(_entry(line, source=f"{source}:{number}"))
        return cls(request=request, entries=tuple(sorted(entries)))

    def format(self) -> str:
        lines = [f"request {' '.join(self.request)}"]
        lines += [
            f"{entry.role} {entry.pin} {entry.architecture} sha256:{entry.sha256}"
            for entry in sorted(self.entries)
        ]
        return _HEADER + "\n".join(lines) + "\n"

    def of(self, *roles: Role) -> tuple[LockEntry, ...]:
        return tuple(entry for entry in self.entries if entry.role in roles)


def changes(old: Iterable[LockEntry], new: Iterable[LockEntry]) -> list[str]:
    """What differs, one line of text per package name."""
    before = {entry.name: entry.version for entry in old}
    after = {entry.name: entry.version for entry in new}
    return [
        f"{name} {before.get(name, '(none)')} -> {after.get(name, '(none)')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _entry(line: str, *, source: str) -> LockEntry:
    match = _LINE.fullmatch(line)
    if match is None or match["role"] not in set(Role):
        raise ImageError(f"{source}: not a lock entry: {line!r}")
    return LockEntry(
        role=Role(match["role"]),
        name=match["name"],
        version=match["version"],
        architecture=match["architecture"],
        sha256=match["sha256"],
    )

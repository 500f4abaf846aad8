"""What the host itself works with now: file systems, swap, routes, open device nodes.

Facts: proc(5) for mountinfo (device numbers, then the source after ` - `), swaps and
net/route (hexadecimal, interface first); net/ipv6_route has it last.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")
_RTF_UP = 0x0001
_RTF_REJECT = 0x0200


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """`mounts` says where, by device number ("8:1") and by node; `swaps` are nodes, `routes`
    the interfaces of default routes; `openers` says who has a node open."""

    mounts: Mapping[str, str] = field(default_factory=dict)
    swaps: frozenset[str] = frozenset()
    routes: frozenset[str] = frozenset()
    openers: Mapping[str, str] = field(default_factory=dict)


def read(proc: Path) -> HostUse:
    """What proc says now; of other users' processes it says nothing but to root."""
    # A shell in a namespace of its own must not take the host's root for unused.
    tables = [proc / "1/mountinfo", proc / "self/mountinfo"]
    return HostUse(
        mounts=_mounts(line for table in tables for line in _lines(table)),
        swaps=frozenset(line.split()[0] for line in _lines(proc / "swaps")[1:] if line.strip()),
        routes=frozenset(
            [*_ipv4(_lines(proc / "net/route")[1:]), *_ipv6(_lines(proc / "net/ipv6_route"))]
        ),
        openers=_openers(proc),
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _mounts(lines: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        own, _, rest = line.partition(" - ")
        number, where = own.split()[2], _unescaped(own.split()[4])
        found.setdefault(number, where)
        # btrfs has device numbers of its own making: there the source tells.
        source = _unescaped(rest.split()[1])
        if source.startswith("/dev/"):
            found.setdefault(os.path.realpath(source), where)
    return found


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _ipv4(lines: list[str]) -> Iterator[str]:
    for line in lines:
        name, destination, _, flags, _, _, _, mask, *_ = line.split()
        if int(destination, 16) == int(mask, 16) == 0 and _is_used(flags):
            yield name


def _ipv6(lines: list[str]) -> Iterator[str]:
    for line in lines:
        destination, length, *_, flags, name = line.split()
        if int(destination, 16) == int(length, 16) == 0 and _is_used(flags):
            yield name


def _is_used(flags: str) -> bool:
    return int(flags, 16) & (_RTF_UP | _RTF_REJECT) == _RTF_UP


def _openers(proc: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        for target in _open_nodes(process / "fd"):
            found.setdefault(target, f"process {process.name} ({_command(process)})")
    return found


def _open_nodes(directory: Path) -> Iterator[str]:
    """Processes come and go while we look, and another user's are closed to us."""
    try:
        descriptors = list(directory.iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("/dev/"):
            yield target


def _command(process: Path) -> str:
    return "".join(_lines(process / "comm")) or "?"

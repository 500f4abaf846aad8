"""A Debian mirror in a directory, of packages that are in the cache, for the real apt."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from innkeeper.image.debs import DebCache
from innkeeper.image.lock import LockEntry
from innkeeper.shim.commands import run

_INDEX = "main/binary-amd64/Packages"


def write_mirror(
    place: Path, entries: Iterable[LockEntry], debs: DebCache, *, newer: Mapping[str, str]
) -> None:
    """The packages of `entries`, of which `newer` names those that have another version."""
    index = place / "dists/trixie" / _INDEX
    index.parent.mkdir(parents=True)
    known = {entry.name: entry for entry in entries}
    stanzas = []
    for entry in known.values():
        shutil.copyfile(debs.path(entry), place / debs.path(entry).name)
        control = run(["dpkg-deb", "--field", debs.path(entry)], deadline=30).text
        version = newer.get(entry.name, entry.version)
        stanzas.append(
            f"Package: {entry.name}\nVersion: {version}\nArchitecture: {entry.architecture}\n"
            f"Depends: {', '.join(_needs(control, known))}\nDescription: none\n"
            f"Filename: {debs.path(entry).name}\nSize: {debs.path(entry).stat().st_size}\n"
            f"SHA256: {entry.sha256}\n"
        )
    index.write_text("\n".join(stanzas))
    digest = hashlib.sha256(index.read_bytes()).hexdigest()
    release = (
        "Origin: Debian\nSuite: stable\nCodename: trixie\nArchitectures: amd64\n"
        "Components: main\nDate: Sat, 09 Aug 2025 00:00:00 UTC\n"
        f"SHA256:\n {digest} {index.stat().st_size} {_INDEX}\n"
    )
    (place / "dists/trixie/Release").write_text(release)


def _needs(control: str, known: Iterable[str]) -> list[str]:
    """What a package depends on, as far as the mirror has it; without versions."""
    fields = re.findall(r"^(?:Pre-)?Depends: (.*)$", control, re.MULTILINE)
    names = re.findall(r"(?:^|[,|] ?)([a-z0-9][a-z0-9+.-]+)", ",".join(fields))
    return sorted(set(names).intersection(known))

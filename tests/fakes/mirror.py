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
_DROPPED = re.compile(r"^(Version|Filename|Size|SHA256):")


def write_mirror(
    place: Path, entries: Iterable[LockEntry], debs: DebCache, *, newer: Mapping[str, str]
) -> None:
    """`newer` gives versions by name: another for an entry, or a package that needs nothing."""
    index = place / "dists/trixie" / _INDEX
    index.parent.mkdir(parents=True)
    known = list(entries)
    stanzas = [_stanza(entry, debs, place, newer.get(entry.name)) for entry in known]
    names = {entry.name for entry in known}
    stanzas += [_empty(name, newer[name]) for name in newer if name not in names]
    index.write_text("\n".join(stanzas))
    digest = hashlib.sha256(index.read_bytes()).hexdigest()
    release = (
        "Origin: Debian\nSuite: stable\nCodename: trixie\nArchitectures: amd64\n"
        "Components: main\nDate: Sat, 09 Aug 2025 00:00:00 UTC\n"
        f"SHA256:\n {digest} {index.stat().st_size} {_INDEX}\n"
    )
    (place / "dists/trixie/Release").write_text(release)


def _stanza(entry: LockEntry, debs: DebCache, place: Path, version: str | None) -> str:
    deb = debs.path(entry)
    shutil.copyfile(deb, place / deb.name)
    control = run(["dpkg-deb", "--field", deb], deadline=30).text
    lines = [line for line in control.splitlines() if not _DROPPED.match(line)]
    lines += [
        f"Version: {version or entry.version}",
        f"Filename: {deb.name}",
        f"Size: {deb.stat().st_size}",
        f"SHA256: {entry.sha256}",
    ]
    return "\n".join(lines) + "\n"


def _empty(name: str, version: str) -> str:
    return (
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nDescription: none\n"
        f"Filename: none.deb\nSize: 1\nSHA256: {'0' * 64}\n"
    )

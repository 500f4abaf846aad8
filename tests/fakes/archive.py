"""A Debian archive with an apt that answers from a table; it keeps what it was asked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from innkeeper.image.archive import Archive, Deb
from innkeeper.shim.commands import CommandError

META = {"linux-image-cloud-amd64": "linux-image-6.12-cloud-amd64"}


def sha_of(pin: str) -> str:
    """The hash of the package that `FakeArchive` hands out for NAME=VERSION."""
    return hashlib.sha256(pin.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeArchive(Archive):
    """`versions` of each name, newest last; nothing depends on anything but by `needs`."""

    versions: dict[str, list[str]]
    needs: dict[str, list[str]] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)

    def resolve(self, wanted: object) -> list[Deb]:
        assert isinstance(wanted, (list, tuple))
        chosen: dict[str, str] = {}
        queue = list(wanted)
        while queue:
            name, _, version = queue.pop(0).partition("=")
            if version not in ["", *self.versions.get(name, [])] or name not in self.versions:
                raise CommandError(
                    ["apt-get"], "exit status 100", b"E: Unable to locate " + name.encode()
                )
            if name not in chosen or version:
                chosen[name] = version or self.versions[name][-1]
                queue += self.needs.get(name, [])
        return [_deb(name, version) for name, version in sorted(chosen.items())]

    def find(self, pins: object) -> list[Deb]:
        assert isinstance(pins, (list, tuple))
        split = [pin.split("=", 1) for pin in pins]
        return [_deb(name, v) for name, v in split if v in self.versions.get(name, [])]

    def kernel_of(self, meta: str) -> Deb:
        return _deb(META[meta], self.versions[META[meta]][-1])

    def fetch(self, pins: object, into: Path) -> list[Path]:
        assert isinstance(pins, (list, tuple))
        self.fetched.extend(pins)
        for pin in pins:
            (into / pin).write_text(pin)
        return sorted(into.iterdir())


def _deb(name: str, version: str) -> Deb:
    sha256 = sha_of(f"{name}={version}")
    return Deb(name=name, version=version, architecture="amd64", sha256=sha256)

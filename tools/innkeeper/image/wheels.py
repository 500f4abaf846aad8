"""Python packages of the guest: wheels for its Python, pinned by hash, unpacked by us.

pip fetches and verifies them. They are unpacked here and not by pip, which
writes the time, the host's paths and scripts into what it installs.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.image.model import ImageError
from innkeeper.image.tree import Tree
from innkeeper.shim.commands import run

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTHON = "3.13"
PLATFORM = "manylinux2014_x86_64"
SITE_PACKAGES = "usr/lib/innkeeper/site-packages"

_DOWNLOAD = 600.0
_PINNED = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+) +--hash=sha256:(?P<hash>\w{64})"
)
# Of a wheel's metadata only what importlib.metadata and a lawyer read.
_METADATA_KEPT = re.compile(r"/(METADATA|LICENSE|NOTICE|AUTHORS)")
_JUNK = re.compile(
    r"(^|/)(tests?|testing|_?pytest_plugin)/|\.(pyi|pxd|pyx|h|c|cc|proto)$|/py\.typed$"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Wheel:
    name: str
    version: str
    sha256: str

    @property
    def component(self) -> str:
        return f"python: {self.name}"


def parse_wheels_lock(text: str, *, source: str) -> tuple[Wheel, ...]:
    """pip's own format, one `NAME==VERSION --hash=sha256:HEX` a line."""
    wheels = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _PINNED.match(line)
        if match is None:
            raise ImageError(
                f"{source}:{number}: not a pinned wheel: {line!r}",
                hint="write `NAME==VERSION --hash=sha256:HEX`",
            )
        wheels.append(Wheel(name=match["name"], version=match["version"], sha256=match["hash"]))
    return tuple(wheels)


def fetch_wheels(wheels: Sequence[Wheel], cache: Path) -> None:
    """Fills `cache` (files named by hash) with what is not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [wheel for wheel in wheels if not (cache / f"{wheel.sha256}.whl").exists()]
    if not missing:
        return
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as name:
        directory = Path(name)
        pins = "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in missing)
        (directory / "wheels.txt").write_text(pins)
        run(_pip(directory), deadline=_DOWNLOAD, hint="is the package index reachable for pip?")
        for file in directory.glob("*.whl"):
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            file.rename(cache / f"{digest}.whl")


def unpack_wheels(wheels: Sequence[Wheel], cache: Path) -> Tree:
    """The site-packages directory of the guest, without tests, stubs and headers."""
    tree = Tree()
    for wheel in sorted(wheels):
        with zipfile.ZipFile(cache / f"{wheel.sha256}.whl") as archive:
            for name in sorted(archive.namelist()):
                if _wanted(name):
                    path = f"{SITE_PACKAGES}/{name}"
                    tree.add_file(path, archive.read(name), component=wheel.component)
    return tree


def _wanted(name: str) -> bool:
    if name.endswith("/") or ".data/" in name:
        return False
    if ".dist-info/" in name:
        return bool(_METADATA_KEPT.search(name))
    return not _JUNK.search(name)


def _pip(directory: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes"),
        *("--python-version", PYTHON, "--implementation", "cp", "--platform", PLATFORM),
        *("--dest", str(directory), "--requirement", str(directory / "wheels.txt")),
    ]

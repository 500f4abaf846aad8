"""The kernel of Debian 12 (Linux 6.1), for what the kernel of the image no longer does.

It comes from the host's own mirrors with the image builder's apt, once; the guest around
it stays Debian 13.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from innkeeper.image.aptconf import SUITE
from innkeeper.image.archive import Archive
from innkeeper.image.layers import cached, exclusive, keep_newest, key_of, remove_half_made
from innkeeper.image.progress import Silent

META = "linux-image-cloud-amd64"
CACHE = "build/cache/kernel12"

_CODENAME = "bookworm"


def kernel_of_debian_12(checkout: Path) -> Path:
    """The package, from the cache or fetched now (some 30 MB).

    Raises `ImageError` and `CommandError` where it can't be had, as from a mirror without
    Debian 12.
    """
    cache = checkout / CACHE
    recipe = key_of(package=META, made_by=Path(__file__).read_text())
    with exclusive(cache, Silent()):
        remove_half_made(cache)
        directory = cached(cache / recipe, _fetch)
        keep_newest(cache, "[0-9a-f]*", 1)
    (package,) = directory.glob("*.deb")
    return package


def _fetch(place: Path) -> None:
    """Fills a directory with the package alone."""
    archive = Archive.of_host(place / "apt")
    sources = archive.state / "sources.list"
    sources.write_text(sources.read_text().replace(SUITE, _CODENAME))
    archive.update()
    kernel = archive.kernel_of(META)
    fetched = place / "fetched"
    fetched.mkdir()
    (package,) = archive.fetch([f"{kernel.name}={kernel.version}"], fetched)
    package.rename(place / package.name)
    fetched.rmdir()
    shutil.rmtree(archive.state)

"""QEMU of Debian 13 on whatever Debian this host is: for devices that its own QEMU lacks.

A root with that QEMU is made once by the image builder's own means (the host's
mirrors, mmdebstrap as root or in a user namespace). Its programs run through its own
dynamic loader, so that neither chroot nor the host's libraries matter.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from innkeeper.image.archive import Archive
from innkeeper.image.debs import DebCache, make_build_root
from innkeeper.image.layers import cached, exclusive, keep_newest, key_of, remove_half_made
from innkeeper.image.progress import Silent
from innkeeper.image.resolution import Request, Resolver
from innkeeper.shim import commands

PACKAGE = "qemu-system-x86"
CACHE = "build/cache/qemu13"
NAME = "qemu-system-x86_64"

_REQUEST = Request(packages=(PACKAGE,), tools=(), left_out=frozenset(), kernel=None)
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_UNPACK = 300.0


def qemu_of_debian_13(checkout: Path) -> Path:
    """The program, from the cache or built now (some 40 MB of packages).

    It takes QEMU's arguments as they are. Raises `ImageError` and `CommandError`
    where the root can't be made, as without a mirror that has Debian 13.
    """
    cache = checkout / CACHE
    recipe = key_of(request=_REQUEST.words, made_by=Path(__file__).read_text())
    with exclusive(cache, Silent()):
        remove_half_made(cache)
        directory = cached(cache / recipe, _make)
        keep_newest(cache, "[0-9a-f]*", 1)
    return directory / NAME


def _make(place: Path) -> None:
    """Fills a directory; what only its making takes does not stay in it."""
    debs = DebCache(directory=place / "debs")
    resolver = Resolver(
        cache=debs,
        resolved=place / "debs",
        open_archive=lambda: _archive(place / "apt"),
        progress=Silent(),
    )
    lock = resolver.anew(_REQUEST, None)
    archive = place / "root.tar"
    make_build_root(lock.entries, debs, archive, Silent().trace)
    root = place / "root"
    root.mkdir()
    unpack = ("tar", "-x", "-f", archive, "-C", root, "--no-same-owner", "--exclude=./dev/*")
    commands.run(unpack, deadline=_UNPACK)
    # Modules and firmware: QEMU looks there first, beside the program that runs, which is
    # the loader. The host's own modules are of another build, and it aborts on those.
    (root / _LIBRARIES / "qemu-bundle").symlink_to("../../..")
    for scratch in (debs.directory, place / "apt"):
        shutil.rmtree(scratch)
    archive.unlink()
    (place / "packages.lock").write_text(lock.format())
    program = place / NAME
    program.write_text(_WRAPPER)
    program.chmod(0o755)


def _archive(state: Path) -> Archive:
    archive = Archive.of_host(state)
    archive.update()
    return archive


# Found by its own place: the root was made under another name.
_WRAPPER = f"""\
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
exec "$root/{_LOADER}" --library-path "$root/{_LIBRARIES}" "$root/usr/bin/{NAME}" "$@"
"""

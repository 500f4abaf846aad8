"""virtiofsd of Debian 13, the one in Rust, on whatever Debian this host is.

As qemu13.py has QEMU: a root with the package, made once, whose programs run through its
own dynamic loader.
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

CACHE = "build/cache/virtiofsd13"
NAME = "virtiofsd"

_REQUEST = Request(packages=(NAME,), tools=(), left_out=frozenset(), kernel=None)
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_UNPACK = 300.0


def virtiofsd_of_debian_13(checkout: Path) -> Path:
    """The program, from the cache or built now. Raises `ImageError` and `CommandError` where
    the root can't be made, as without a mirror that has Debian 13."""
    cache = checkout / CACHE
    recipe = key_of(request=_REQUEST.words, made_by=Path(__file__).read_text())
    with exclusive(cache, Silent()):
        remove_half_made(cache)
        directory = cached(cache / recipe, _make)
        keep_newest(cache, "[0-9a-f]*", 1)
    return directory / NAME


def _make(place: Path) -> None:
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
    for scratch in (debs.directory, place / "apt"):
        shutil.rmtree(scratch)
    archive.unlink()
    program = place / NAME
    program.write_text(_WRAPPER)
    program.chmod(0o755)


def _archive(state: Path) -> Archive:
    archive = Archive.of_host(state)
    archive.update()
    return archive


_WRAPPER = f"""\
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
exec "$root/{_LOADER}" --library-path "$root/{_LIBRARIES}" "$root/usr/libexec/{NAME}" "$@"
"""

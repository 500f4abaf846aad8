"""`innkeeper disk`: disks made of files, and the ones that are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from innkeeper.cli import options, output
from innkeeper.shim import commands
from innkeeper.shim.filling import making
from innkeeper.shim.filling.cache import DiskCache
from innkeeper.shim.filling.mkfs import FsType

app = typer.Typer(
    no_args_is_help=True, help="Disks made of directories, tars and OCI images, and kept."
)

_COPY_LIMIT = 1800.0
_TYPES = " or ".join(FsType)


@app.command()
def make(
    source: Annotated[
        str,
        typer.Option("--from", metavar="DIR|TAR|LAYOUT[:NAME]", help="What it is made of."),
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where the disk's image goes.")],
    fs_type: Annotated[
        str, typer.Option("--type", metavar="ext4|erofs", help="erofs can only be read.")
    ] = "ext4",
    size: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Of the disk; without it there is room for 64M more."),
    ] = "",
) -> None:
    """Makes a disk's image, with all owners, modes, links and attributes, without root.

    An OCI layout is a directory as skopeo and buildah write it (`oci:DIR:NAME`); its
    layers are proved by their digests and laid one over the other. The same source
    again is not made again: the image is copied from the cache.

    \b
    Examples:
      innkeeper disk make --from ./rootfs --out root.img --size 2G
      innkeeper disk make --from app.tar.gz --type erofs --out app.img
      innkeeper disk make --from ./layout:latest --type erofs --out app.img
    """
    with output.busy(f"making a disk of {source}"):
        made = made_of(source, fs_type, options.parse_size(size) if size else 0, writable=True)
        copy(made, Path(out))
    output.say(f"{out}: {fs_type}, {output.size(Path(out).stat().st_size)}")


@app.command()
def prune(
    keep: Annotated[
        str, typer.Option(metavar="SIZE", help="What may stay, the last used first.")
    ] = "0",
) -> None:
    """Removes made disks from the cache (below $INNKEEPER_CACHE_DIR or ~/.cache/innkeeper).

    More than 10G are never kept.

    \b
    Examples:
      innkeeper disk prune
      innkeeper disk prune --keep 2G
    """
    done = DiskCache.default().clear(options.parse_size(keep))
    output.say(f"{done.count} removed, {output.size(done.freed)}; {output.size(done.left)} kept")


def made_of(source: str, fs_type: str, size: int = 0, *, writable: bool) -> Path:
    """The disk, in the cache. Raises typer.BadParameter, DiskError, CommandError."""
    if fs_type not in list(FsType):
        raise typer.BadParameter(f"--type {fs_type}: can't be made here; {_TYPES}")
    kind = FsType(fs_type)
    plan = making.plan(source, fs_type=kind, size=size, writable=writable and kind is FsType.EXT4)
    return making.make(plan, DiskCache.default())


def copy(made: Path, out: Path) -> None:
    """One to write to. Holes stay holes, and where the file system can share blocks, it does."""
    fresh = out.with_name(f".{out.name}.new")
    argv: list[str | Path] = ["cp", "--sparse=always", "--reflink=auto", made, fresh]
    try:
        commands.run(argv, deadline=_COPY_LIMIT)
        fresh.chmod(0o666 & ~_umask())
        fresh.rename(out)
    finally:
        fresh.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

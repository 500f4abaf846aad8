"""Where mounts come from and go to: paths that are opened once, then only descriptors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.linux.mountapi import Kernel
from agent.linux.openat2 import Resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.linux.mountcalls import Location


@contextmanager
def opened(kernel: Kernel, fd: int) -> Iterator[int]:
    """Closes the descriptor at the end; a mount that is still detached goes with it."""
    try:
        yield fd
    finally:
        kernel.close(fd)


@contextmanager
def place(kernel: Kernel, path: str, *, directory: bool = False) -> Iterator[int]:
    """The file or directory at an absolute path without links."""
    fd = kernel.open_path(path, resolve=Resolve.NO_SYMLINKS, directory=directory)
    with opened(kernel, fd):
        yield fd


@contextmanager
def location(kernel: Kernel, where: Location, *, directory: bool = False) -> Iterator[int]:
    """What a location leads to, resolved inside its root."""
    with opened(kernel, _open(kernel, where, directory=directory)) as fd:
        yield fd


def _open(kernel: Kernel, where: Location, *, directory: bool) -> int:
    if not where.path:
        return kernel.open_path(where.root, resolve=Resolve.NO_SYMLINKS, directory=directory)
    resolve = Resolve.IN_ROOT | Resolve.NO_MAGICLINKS
    if not where.links:
        resolve |= Resolve.NO_SYMLINKS
    with place(kernel, where.root, directory=True) as root:
        return kernel.open_path(where.path, below=root, resolve=resolve, directory=directory)


def is_directory(where: Location) -> bool:
    """Raises OSError for what is not there."""
    kernel = Kernel()
    with location(kernel, where) as fd:
        return kernel.is_directory(fd)


def name(fd: int) -> str:
    """A path for calls that take no descriptor: it leads to what is open, whatever the path
    that was opened leads to by now."""
    return f"/proc/self/fd/{fd}"

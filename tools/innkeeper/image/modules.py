"""Kernel modules: what one says about itself, and which others it needs.

A module's .modinfo section holds NUL-separated `key=value` strings (the
kernel's include/linux/module.h, MODULE_INFO): `depends` names other modules,
comma separated; `softdep=pre: a b` asks for some to be loaded before.
"""

from __future__ import annotations

import lzma
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Self

from innkeeper.image.elf import section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SUFFIX = re.compile(r"\.ko(\.xz|\.zst|\.gz)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module's own words; names are with underscores, as the kernel has them."""

    depends: tuple[str, ...]
    pre: tuple[str, ...]

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """`content` is the module, decompressed. Raises `ValueError` if it is none."""
        words = section(content, ".modinfo")
        if words is None:
            raise ValueError("no section .modinfo: not a kernel module")
        pairs = words.decode(errors="replace").split("\0")
        fields = [pair.partition("=")[::2] for pair in pairs]
        depends = [name for key, value in fields if key == "depends" for name in value.split(",")]
        softdeps = " ".join(value for key, value in fields if key == "softdep")
        pre = re.findall(r"pre:((?:\s+(?!post:|pre:)\S+)*)", softdeps)
        return cls(
            depends=tuple(normal(name) for name in depends if name),
            pre=tuple(normal(name) for names in pre for name in names.split()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """`loaded` is in an order in which each module comes after what it needs."""

    loaded: tuple[str, ...]
    built_in: tuple[str, ...]
    absent: tuple[str, ...]


def normal(name: str) -> str:
    """The kernel's spelling: `virtio-rng` and `virtio_rng` are one module."""
    return name.replace("-", "_")


def module_name(path: str) -> str | None:
    """`kernel/fs/fuse/virtiofs.ko.xz` is virtiofs; None for what is no module."""
    name = PurePosixPath(path).name
    return normal(_SUFFIX.sub("", name)) if _SUFFIX.search(name) else None


def decompress(path: str, content: bytes) -> bytes:
    match PurePosixPath(path).suffix:
        case ".xz":
            return lzma.decompress(content)
        case ".zst":
            import zstandard

            return zstandard.ZstdDecompressor().decompressobj().decompress(content)
        case ".gz":
            import gzip

            return gzip.decompress(content)
        case _:
            return content


def close(
    wanted: Iterable[str], read: Callable[[str], Module | None], built_in: Iterable[str]
) -> Closure:
    """`wanted` modules with all they need; `read` gives None for one that is not there.

    A soft dependency that is not there is no loss: some name an algorithm's
    alias and not a module.
    """
    walk = _Walk(read=read, known=frozenset(normal(name) for name in built_in))
    for name in wanted:
        walk.visit(normal(name), needed=True)
    return Closure(
        loaded=tuple(walk.loaded), built_in=tuple(walk.built_in), absent=tuple(walk.absent)
    )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Depth first, so that what is needed is listed first. The lists keep their order."""

    read: Callable[[str], Module | None]
    known: frozenset[str]
    seen: set[str] = field(default_factory=set)
    loaded: list[str] = field(default_factory=list)
    built_in: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def visit(self, name: str, *, needed: bool) -> None:
        if name in self.seen:
            return
        module = None if name in self.known else self.read(name)
        if module is None and name not in self.known and not needed:
            return
        self.seen.add(name)
        if module is None:
            (self.built_in if name in self.known else self.absent).append(name)
            return
        for other in module.pre:
            self.visit(other, needed=False)
        for other in module.depends:
            self.visit(other, needed=True)
        self.loaded.append(name)

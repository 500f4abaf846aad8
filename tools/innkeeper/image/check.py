"""Opens a built image and looks at what must and what must not be in it.

Reads the file system image itself, not the tree it was made from, and needs
no root: `debugfs` copies it out.
"""

from __future__ import annotations

import re
import stat
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from innkeeper.image.bytecode import cache_path
from innkeeper.image.elf import is_elf, needed_libraries
from innkeeper.image.environment import fixed_environment
from innkeeper.image.model import Image, ImageError
from innkeeper.image.tree import Kind, Tree
from innkeeper.shim.commands import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_READ = 120.0
_LEFT_OUT = "a package that guest-image/packages leaves out comes back with --package NAME"

MUST_HAVE = (
    "usr/lib/innkeeper/init",
    "usr/lib/innkeeper/run",
    "usr/lib/innkeeper/agent/__init__.py",
    "usr/lib/innkeeper/rootfs/bin/busybox",
    "usr/lib/innkeeper/rootfs/bin/sh",
    "usr/bin/python3",
    "usr/bin/crun",
    "usr/bin/busybox",
    "usr/sbin/modprobe",
    "usr/sbin/mkfs.ext4",
    "usr/sbin/fsck.ext4",
    "usr/sbin/blkid",
    "usr/sbin/mkfs.xfs",
    "usr/sbin/mkfs.btrfs",
    "etc/passwd",
    "proc",
    "sys",
    "dev",
    "run",
    "tmp",
    "var",
)
"""Paths; without them a guest does not work."""

MUST_NOT_HAVE = {
    "*/udevd": "there is no udev in the guest",
    "*systemd-udevd*": "there is no udev in the guest",
    "*/udevadm": "there is no udev in the guest",
    "*udev/rules.d/*": "there is no udev in the guest",
    "*.rules": "there is no udev in the guest",
    "usr/lib/systemd/systemd*": "PID 1 is ours",
    "*.service": "PID 1 is ours",
    "usr/bin/gcc*": "nothing is compiled in the guest",
    "usr/bin/cc": "nothing is compiled in the guest",
    "usr/bin/*-ld": "nothing is compiled in the guest",
    "usr/bin/as": "nothing is compiled in the guest",
    "usr/bin/apt*": "nothing is installed in the guest",
    "usr/bin/dpkg*": "nothing is installed in the guest",
    "usr/lib/python3*/ensurepip*": "nothing is installed in the guest",
    "usr/share/doc/*": "documentation",
    "usr/share/man/*": "documentation",
    "usr/share/locale/*": "translations",
}
"""Patterns of paths, with the rule that they break."""

COMPILED = (
    "usr/lib/innkeeper/agent/",
    "usr/lib/innkeeper/innkeeper/",
    "usr/lib/innkeeper/site-packages/",
    "usr/lib/python3.13/",
)
"""Where each source must have its byte code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One path of the image with its mode, as `stat` has it."""

    path: str
    mode: int
    owner: int = 0


def check_image(image: Image, tree: Tree | None = None) -> None:
    """Raises `ImageError` with all that is wrong with an image (made from `tree`)."""
    faults = faults_of(list(read_image(image.root_path)))
    missing = missing_libraries(tree) if tree is not None else []
    if faults or missing:
        listed = "\n  ".join(faults + missing)
        hint = _LEFT_OUT if missing else ""
        raise ImageError(f"{image.root_path} is not as it must be:\n  {listed}", hint=hint)


def faults_of(found: Sequence[Found]) -> list[str]:
    """What is wrong with these files, one text each."""
    paths = {item.path for item in found}
    faults = [f"/{path} is missing" for path in MUST_HAVE if path not in paths]
    for item in found:
        faults += [
            f"/{item.path}: {why}"
            for pattern, why in MUST_NOT_HAVE.items()
            if fnmatchcase(item.path, pattern)
        ]
        if stat.S_ISREG(item.mode) and item.mode & (stat.S_ISUID | stat.S_ISGID):
            faults.append(f"/{item.path}: setuid or setgid")
        if item.owner != 0:
            faults.append(f"/{item.path}: belongs to {item.owner}, not to root")
        if stat.S_ISREG(item.mode) and _is_source(item.path):
            cached = cache_path(item.path)
            faults += [] if cached in paths else [f"/{item.path} has no byte code"]
    return faults + _not_executable(found)


def missing_libraries(tree: Tree) -> list[str]:
    """Programs and libraries that need a library which is nowhere in the tree.

    A package may be left out although another depends on it; this is what
    tells when that was too bold.
    """
    present = {path.rpartition("/")[2] for path in tree.nodes}
    return [
        f"/{path} needs {library}, which is not in the image"
        for path, node in sorted(tree.nodes.items())
        if node.kind is Kind.FILE and is_elf(node.content) and not path.endswith(".ko")
        for library in needed_libraries(node.content)
        if library not in present
    ]


def _is_source(path: str) -> bool:
    return path.startswith(COMPILED) and path.endswith(".py")


def read_image(root: Path) -> Iterator[Found]:
    """All paths of an ext4 image. Raises `CommandError` where it is damaged."""
    run(
        ["e2fsck", "-f", "-n", root],
        deadline=_READ,
        env=fixed_environment(),
        hint="the image is damaged: build it again",
    )
    level = [""]
    while level:
        requests = "".join(f'ls -p "/{path}"\n' for path in level)
        text = _debugfs(root, requests)
        found = list(parse_listing(text, level))
        yield from found
        level = [item.path for item in found if stat.S_ISDIR(item.mode)]


def parse_listing(text: str, directories: Sequence[str]) -> Iterator[Found]:
    """Output of `ls -p` for each of `directories`: /INODE/MODE/UID/GID/NAME/SIZE/."""
    listings = re.split(r"^debugfs: .*\n", text, flags=re.MULTILINE)[1:]
    for directory, listing in zip(directories, listings, strict=False):
        for line in listing.splitlines():
            fields = line.split("/")
            if len(fields) >= 7 and fields[5] not in {".", "..", ""}:
                path = f"{directory}/{fields[5]}".lstrip("/")
                yield Found(path=path, mode=int(fields[2], 8), owner=int(fields[3]))


def _debugfs(root: Path, requests: str) -> str:
    with tempfile.NamedTemporaryFile("w", prefix="innkeeper-check-") as file:
        file.write(requests)
        file.flush()
        command: tuple[str | Path, ...] = ("debugfs", "-f", file.name, root)
        return run(command, deadline=_READ, env=fixed_environment()).text


def _not_executable(found: Sequence[Found]) -> list[str]:
    programs = {"usr/lib/innkeeper/init", "usr/lib/innkeeper/run"}
    return [
        f"/{item.path} is not executable"
        for item in found
        if item.path in programs and not item.mode & stat.S_IXUSR
    ]

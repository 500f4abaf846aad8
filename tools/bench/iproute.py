"""`ip` and `bridge` of Debian 13, which the guest has not: it asks the kernel itself.

They come out of the image's build root, with their libraries and the loader, and run in
any container, busybox's too.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from innkeeper.image.builder import debian_toolbox
from innkeeper.image.elf import needed_libraries
from innkeeper.image.model import BuildOptions
from innkeeper.image.progress import Silent

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAMS = {"ip": "usr/bin/ip", "bridge": "usr/sbin/bridge"}
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_WRAPPER = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/lib/ld.so" --library-path "$here/lib" "$here/lib/{name}" "$@"
"""


def put_iproute(directory: Path) -> None:
    """`ip` and `bridge` in a new directory, and all that they need in `lib` below it."""
    root = debian_toolbox(BuildOptions(), Silent()).root
    lib = directory / "lib"
    lib.mkdir(parents=True)
    shutil.copy(root / _LOADER, lib / "ld.so")
    for name, path in _PROGRAMS.items():
        _copy_with_libraries(root, root / path, lib / name)
        wrapper = directory / name
        wrapper.write_text(_WRAPPER.format(name=name))
        wrapper.chmod(0o755)


def _copy_with_libraries(root: Path, file: Path, target: Path) -> None:
    if target.exists():
        return
    shutil.copy(file, target)
    for name in needed_libraries(file.read_bytes()):
        _copy_with_libraries(root, root / _LIBRARIES / name, target.parent / name)

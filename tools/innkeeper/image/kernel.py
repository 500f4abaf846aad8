"""A kernel: its vmlinuz and, where it comes as a package, those of its modules that we want."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Self

from innkeeper.image.debs import contents
from innkeeper.image.model import ImageError
from innkeeper.image.modules import Closure, Module, close, decompress, module_name
from innkeeper.image.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innkeeper.image.toolbox import Toolbox

COMPONENT = "kernel modules"
_INDEXES = ("modules.builtin", "modules.builtin.modinfo", "modules.order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """`modules` are the compressed files by name; empty for a bare vmlinuz."""

    version: str
    vmlinuz: bytes
    modules: dict[str, tuple[str, bytes]]
    indexes: dict[str, bytes]

    @classmethod
    def read(cls, path: Path) -> Self:
        """A vmlinuz, or a package that holds one. Raises `ImageError` for anything else."""
        if path.suffix != ".deb":
            data = path.read_bytes()
            return cls(version=version_of(data, path), vmlinuz=data, modules={}, indexes={})
        tree = contents(path)
        images = [node.content for name, node in tree.below("boot") if "vmlinuz-" in name]
        if not images:
            raise ImageError(f"{path}: no boot/vmlinuz-* in this package")
        version = version_of(images[0], path)
        files = {
            name.split(f"/modules/{version}/", 1)[1]: node.content
            for name, node in tree.below("lib/modules", "usr/lib/modules")
            if f"/modules/{version}/" in name
        }
        named = ((module_name(file), file) for file in files)
        return cls(
            version=version,
            vmlinuz=images[0],
            modules={name: (file, files[file]) for name, file in named if name},
            indexes={name: files[name] for name in _INDEXES if name in files},
        )

    @property
    def directory(self) -> str:
        return f"usr/lib/modules/{self.version}"

    def close(self, wanted: Iterable[str]) -> Closure:
        lines = self.indexes.get("modules.builtin", b"").decode().split()
        return close(wanted, self._module, (module_name(line) or "" for line in lines))

    def content(self, name: str) -> bytes:
        file, content = self.modules[name]
        return decompress(file, content)

    def _module(self, name: str) -> Module | None:
        return Module.parse(self.content(name)) if name in self.modules else None


def module_tree(kernel: Kernel, names: Iterable[str], toolbox: Toolbox) -> Tree:
    """The modules as modprobe of the guest finds them: decompressed, with fresh indexes.

    Decompressed, for the kernel would do that at every boot.
    """
    tree = Tree()
    for name in names:
        file = str(PurePosixPath(kernel.modules[name][0]).with_suffix(""))
        file = file if file.endswith(".ko") else f"{file}.ko"
        tree.add_file(f"{kernel.directory}/{file}", kernel.content(name), component=COMPONENT)
    if not tree.nodes:
        return tree
    for name, content in kernel.indexes.items():
        tree.add_file(f"{kernel.directory}/{name}", content, component=COMPONENT)
    with tempfile.TemporaryDirectory(prefix="innkeeper-depmod-") as place:
        _write(tree, Path(place))
        toolbox.run("usr/sbin/depmod", "-b", place, "-m", "/usr/lib/modules", kernel.version)
        tree.add_host_directory(Path(place), component=COMPONENT)
    return tree


def version_of(vmlinuz: bytes, path: Path) -> str:
    """The version that a bzImage carries: Documentation/arch/x86/boot.rst, field kernel_version."""
    if vmlinuz[0x202:0x206] != b"HdrS":
        raise ImageError(f"{path}: not an x86 kernel (no HdrS header)")
    (offset,) = struct.unpack_from("<H", vmlinuz, 0x20E)
    text = vmlinuz[offset + 0x200 : offset + 0x300].partition(b"\0")[0]
    return text.decode(errors="replace").split()[0]


def _write(tree: Tree, directory: Path) -> None:
    for path, node in tree.below("usr"):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if node.content:
            target.write_bytes(node.content)

"""The slow parts of an image, kept between builds: Debian's packages, wheels, byte code, kernel.

Each is a directory in the cache, named by the hash of its inputs; a change in
the agent's own code leaves them alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from innkeeper.image.bytecode import compile_tree
from innkeeper.image.debs import contents, make_build_root
from innkeeper.image.kernel import Kernel, module_tree
from innkeeper.image.layers import cached, key_of, load_tree, save_tree
from innkeeper.image.lock import Role
from innkeeper.image.model import ImageError
from innkeeper.image.own import STDLIB
from innkeeper.image.toolbox import Toolbox
from innkeeper.image.tree import Kind, Tree, read_tar
from innkeeper.image.wheels import SITE_PACKAGES, Wheel, fetch_wheels, unpack_wheels
from innkeeper.shim.commands import run

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.image.debs import DebCache
    from innkeeper.image.lock import Lock
    from innkeeper.image.progress import Progress
    from innkeeper.image.recipe import Recipe

_MERGED_LINKS = ("bin", "sbin", "lib", "lib64")
_UNPACK = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseInputs:
    """What the base layer is made of."""

    lock: Lock
    recipe: Recipe
    wheels: tuple[Wheel, ...]
    builder: str
    """Hash of the builder's own sources."""

    @property
    def key(self) -> str:
        return key_of(
            packages=[entry.sha256 for entry in self.lock.of(Role.IMAGE, Role.TOOL)],
            left_out=sorted(self.recipe.left_out),
            only=self.recipe.only,
            pruned=self.recipe.pruned,
            wheels=[wheel.sha256 for wheel in self.wheels],
            builder=self.builder,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The layer in the cache, and the programs of Debian 13 that made it."""

    directory: Path

    @property
    def toolbox(self) -> Toolbox:
        return Toolbox(root=self.directory / "toolbox")

    def tree(self) -> Tree:
        return load_tree(self.directory, "base")


def make_base(inputs: BaseInputs, debs: DebCache, cache: Path, progress: Progress) -> Base:
    wheels = cache / "wheels"

    def make(place: Path) -> None:
        entries = inputs.lock.of(Role.IMAGE, Role.TOOL)
        root = place / "build-root.tar"
        with progress.step("build root (mmdebstrap)"):
            make_build_root(entries, debs, root, progress.trace)
            toolbox = _unpack(root, place / "toolbox")
            tree = _image_part(root, inputs, debs)
        root.unlink()
        with progress.step("python wheels"):
            fetch_wheels(inputs.wheels, wheels)
            tree.add_tree(unpack_wheels(inputs.wheels, wheels))
            tree.prune(inputs.recipe.pruned)
        with progress.step("byte code"):
            tree.add_tree(compile_tree(tree, toolbox, STDLIB, SITE_PACKAGES))
        save_tree(tree, place, "base")

    return Base(directory=cached(cache / "base" / inputs.key, make))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInputs:
    """`source` is a vmlinuz or a package; `strict` says that a missing module is an error."""

    source: Path
    modules: tuple[str, ...]
    initrd_modules: tuple[str, ...]
    strict: bool
    builder: str

    @property
    def key(self) -> str:
        with self.source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return key_of(
            source=digest,
            modules=self.modules,
            initrd_modules=self.initrd_modules,
            builder=self.builder,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLayer:
    """A kernel with its chosen modules, in the cache."""

    directory: Path
    version: str
    initrd_modules: tuple[str, ...]
    warnings: tuple[str, ...]

    @classmethod
    def load(cls, directory: Path) -> Self:
        record = json.loads((directory / "kernel.json").read_text())
        return cls(
            directory=directory,
            version=record["version"],
            initrd_modules=tuple(record["initrd_modules"]),
            warnings=tuple(record["warnings"]),
        )

    @property
    def vmlinuz(self) -> Path:
        return self.directory / "vmlinuz"

    def tree(self) -> Tree:
        return load_tree(self.directory, "modules")

    def initrd_files(self) -> list[tuple[str, bytes]]:
        return [
            (name, (self.directory / f"{name}.ko").read_bytes()) for name in self.initrd_modules
        ]


def make_kernel(
    inputs: KernelInputs, toolbox: Toolbox, cache: Path, progress: Progress
) -> KernelLayer:
    def make(place: Path) -> None:
        with progress.step("kernel and modules"):
            kernel = Kernel.read(inputs.source)
            guest = kernel.close(inputs.modules)
            initrd = kernel.close(inputs.initrd_modules)
            warnings = _absences(kernel, (*guest.absent, *initrd.absent), inputs)
            (place / "vmlinuz").write_bytes(kernel.vmlinuz)
            save_tree(module_tree(kernel, guest.loaded, toolbox), place, "modules")
            for name in initrd.loaded:
                (place / f"{name}.ko").write_bytes(kernel.content(name))
            record = {
                "version": kernel.version,
                "initrd_modules": initrd.loaded,
                "warnings": warnings,
            }
            (place / "kernel.json").write_text(json.dumps(record))

    layer = KernelLayer.load(cached(cache / "kernel" / inputs.key, make))
    for warning in layer.warnings:
        progress.warn(warning)
    return layer


def _absences(kernel: Kernel, absent: tuple[str, ...], inputs: KernelInputs) -> list[str]:
    if not kernel.modules:
        return [f"{inputs.source} comes without modules: all that is needed must be built in"]
    if not absent:
        return []
    text = f"kernel {kernel.version} has no module {', '.join(sorted(set(absent)))}"
    if inputs.strict:
        raise ImageError(text, hint="correct guest-image/modules or the option --module")
    return [text]


def _unpack(root: Path, directory: Path) -> Toolbox:
    directory.mkdir()
    run(
        ["tar", "-x", "-f", root, "-C", directory, "--no-same-owner", "--exclude=./dev/*"],
        deadline=_UNPACK,
    )
    return Toolbox(root=directory)


def _image_part(root: Path, inputs: BaseInputs, debs: DebCache) -> Tree:
    """What belongs to packages of the guest, each node counted as its package's."""
    with root.open("rb") as file:
        everything = read_tar(file)
    tree = Tree()
    for link in _MERGED_LINKS:
        tree.nodes[link] = replace(everything.nodes[link], component="base-files")
    for entry in inputs.lock.of(Role.IMAGE):
        own = contents(debs.path(entry))
        own.keep(inputs.recipe.only.get(entry.name, ("*",)))
        for path in own.nodes:
            real = path if path in tree.nodes else everything.real(path)
            node = everything.nodes.get(path) or everything.nodes.get(real)
            if node is None or (node.kind is Kind.DIRECTORY and real in tree.nodes):
                continue
            place = path if path in everything.nodes else real
            tree.nodes[place] = replace(node, component=entry.name)
    return tree

"""Our own part of an image: agent, protocol, guest-image/, and what the options add.

Read afresh at every build; small, so a change in the agent costs seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from innkeeper.image.bytecode import compile_tree
from innkeeper.image.initrd import COMPONENT as INITRD
from innkeeper.image.model import ImageError
from innkeeper.image.tree import Kind, Tree

if TYPE_CHECKING:
    from innkeeper.image.base import Base, KernelLayer
    from innkeeper.image.checkout import Checkout
    from innkeeper.image.model import BuildOptions
    from innkeeper.image.recipe import Recipe

HOME = "usr/lib/innkeeper"
CONTAINER_ROOT = f"{HOME}/rootfs"
STDLIB = "usr/lib/python3.13"

_COMPONENT = "innkeeper"
_ROOT_COMPONENT = "container root"
_FIRMWARE = "usr/lib/firmware"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """`trees` in the order in which they are laid over Debian's part."""

    trees: tuple[Tree, ...]
    initrd: Tree


def read_own(checkout: Checkout, recipe: Recipe, options: BuildOptions) -> Own:
    """Raises `ImageError` for an overlay or firmware that is not there."""
    code = Tree()
    _add_python(code, checkout.agent, f"{HOME}/agent")
    _add_python(code, checkout.protocol, f"{HOME}/innkeeper/v1")
    code.add_host_directory(checkout.guest_image / "rootfs", component=_COMPONENT)
    for directory in recipe.directories:
        code.add_directory(directory.path, mode=directory.mode, component=_COMPONENT)
    firmware = Tree()
    for path in options.firmware:
        _add_firmware(firmware, path)
    overlays = []
    for path in options.overlays:
        if not path.is_dir():
            raise ImageError(f"overlay {path}: no such directory")
        overlays.append(Tree())
        overlays[-1].add_host_directory(path, component=f"overlay: {path.name}")
        overlays[-1].prune(["*/__pycache__"])
    initrd = Tree()
    for name in ("init", "find-root"):
        content = (checkout.guest_image / "initrd" / name).read_bytes()
        initrd.add_file(name, content, executable=True, component=INITRD)
    return Own(trees=(code, firmware, *overlays), initrd=initrd)


def assemble(base: Base, kernel: KernelLayer, own: Own) -> Tree:
    """The whole root file system."""
    tree = base.tree()
    tree.add_tree(kernel.tree())
    code, *others = own.trees
    tree.add_tree(code)
    _add_container_root(tree, base)
    for other in others:
        tree.add_tree(other)
    # Also of what an overlay replaced: byte code that is never checked would win over it.
    sources = Tree()
    for path in sorted({tree.real(path) for layer in own.trees for path in layer.nodes}):
        if _is_compiled(path):
            sources.nodes[path] = tree.nodes[path]
    tree.add_tree(compile_tree(sources, base.toolbox, "usr"))
    return tree


def _is_compiled(path: str) -> bool:
    ours = path.startswith((f"{HOME}/", f"{STDLIB}/")) and not path.startswith(CONTAINER_ROOT)
    return ours and path.endswith(".py")


def _add_python(tree: Tree, source: Path, at: str) -> None:
    for file in sorted(source.rglob("*.py")):
        path = f"{at}/{file.relative_to(source).as_posix()}"
        tree.add_file(path, file.read_bytes(), component=_COMPONENT)


def _add_firmware(tree: Tree, path: Path) -> None:
    """Below /lib/firmware under the path it has below a directory of that name, else its own."""
    parts = path.resolve().parts
    if "firmware" in parts[:-1]:
        place = PurePosixPath(*parts[parts.index("firmware") + 1 :])
    else:
        place = PurePosixPath(path.name)
    if path.is_dir():
        tree.add_host_directory(path, f"{_FIRMWARE}/{place}", component="firmware")
    elif path.is_file():
        tree.add_file(f"{_FIRMWARE}/{place}", path.read_bytes(), component="firmware")
    else:
        raise ImageError(f"firmware {path}: no such file")


def _add_container_root(tree: Tree, base: Base) -> None:
    """The root of containers that bring none: busybox under all its names."""
    tree.add_hard_link(
        f"{CONTAINER_ROOT}/bin/busybox", "usr/bin/busybox", component=_ROOT_COMPONENT
    )
    for applet in base.toolbox.busybox("--list-full").split():
        path = f"{CONTAINER_ROOT}/{applet}"
        if path not in tree.nodes and not applet.endswith("/busybox"):
            # Relative, so that the debug console can use them as well.
            target = "../" * applet.count("/") + "bin/busybox"
            tree.add_symlink(path, target, component=_ROOT_COMPONENT)
    if tree.nodes["usr/bin/busybox"].kind is not Kind.FILE:
        raise ImageError("/usr/bin/busybox is no file: the container root would be empty")

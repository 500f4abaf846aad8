"""The initrd: busybox, the modules that reach the root disk, one script. Uncompressed.

Uncompressed, since unpacking costs more time than reading two megabytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from innkeeper.image.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPONENT = "initrd"


def initrd_tree(
    scripts: Tree, busybox: bytes, applets: Sequence[str], modules: Sequence[tuple[str, bytes]]
) -> Tree:
    """`scripts` are /init and what it calls.

    `modules` are (name, content) in the order in which they can be loaded.
    """
    tree = Tree()
    for directory in ("dev", "proc", "sys", "root", "run"):
        tree.add_directory(directory, component=COMPONENT)
    tree.add_file("bin/busybox", busybox, executable=True, component=COMPONENT)
    for applet in applets:
        if applet != "busybox":
            tree.add_symlink(f"bin/{applet}", "busybox", component=COMPONENT)
    tree.add_tree(scripts)
    for order, (name, content) in enumerate(modules):
        tree.add_file(f"modules/{order:02}-{name}.ko", content, component=COMPONENT)
    return tree

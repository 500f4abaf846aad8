"""Byte code, compiled in advance by the guest's own Python.

Unchecked (PEP 552): the guest never compares it with the source, which saves
a stat and a read per module, and its content does not depend on time stamps.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.image.tree import Kind, Tree

if TYPE_CHECKING:
    from innkeeper.image.toolbox import Toolbox

CACHE_TAG = "cpython-313"


def compile_tree(tree: Tree, toolbox: Toolbox, *directories: str) -> Tree:
    """The byte code for all sources below `directories`, counted as their sources are."""
    sources = {
        path: node
        for path, node in tree.below(*directories)
        if path.endswith(".py") and node.kind is Kind.FILE
    }
    compiled = Tree()
    if not sources:
        return compiled
    with tempfile.TemporaryDirectory(prefix="innkeeper-bytecode-") as name:
        place = Path(name)
        for path, node in sources.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(node.content)
        _compile(place, toolbox)
        for path, node in sources.items():
            cached = cache_path(path)
            compiled.add_file(cached, (place / cached).read_bytes(), component=node.component)
    return compiled


def cache_path(source: str) -> str:
    """Where Python looks for the byte code of a source (PEP 3147)."""
    directory, _, name = source.rpartition("/")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.{CACHE_TAG}.pyc"


def _compile(place: Path, toolbox: Toolbox) -> None:
    toolbox.python(
        *("-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"),
        # The paths in tracebacks are the guest's.
        *("-s", place, "-p", "/", place),
    )

"""Parts of an image on disk, kept by the hash of what they were made from."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from innkeeper.image.tree import Tree, read_tar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innkeeper.image.progress import Progress

_HALF_MADE = ".half-made-"


def key_of(**inputs: object) -> str:
    """A hash of JSON-able inputs; equal inputs, equal key."""
    text = json.dumps(inputs, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def key_of_tree(tree: Tree) -> str:
    digest = hashlib.sha256()
    for path, node in sorted(tree.nodes.items()):
        content = hashlib.sha256(node.content).hexdigest()
        digest.update(f"{path}\0{node.kind}\0{node.mode}\0{content}\0{node.target}\n".encode())
    return digest.hexdigest()


def key_of_sources(directory: Path) -> str:
    """A hash of the Python files of a directory: a changed builder builds anew."""
    digest = hashlib.sha256()
    for file in sorted(directory.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def cached(directory: Path, make: Callable[[Path], None]) -> Path:
    """`directory`, made by `make` where it is not there yet: whole, or not at all."""
    if directory.is_dir():
        # For whoever clears out what was not used for long.
        os.utime(directory)
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=directory.parent, prefix=_HALF_MADE))
    try:
        place.chmod(0o755)
        make(place)
        place.rename(directory)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return directory


def keep_newest(directory: Path, pattern: str, count: int) -> None:
    """Deletes all but the `count` directories that were used last."""
    found = [path for path in directory.glob(pattern) if path.is_dir() and not path.is_symlink()]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[count:]:
        shutil.rmtree(path)


def remove_half_made(directory: Path) -> None:
    """What a build that was killed left in `directory`; only under `exclusive` of it."""
    for path in directory.glob(f"{_HALF_MADE}*"):
        shutil.rmtree(path)


def save_tree(tree: Tree, directory: Path, name: str) -> None:
    with (directory / f"{name}.tar").open("wb") as file:
        tree.write_tar(file)
    components = {path: node.component for path, node in tree.nodes.items()}
    (directory / f"{name}.components.json").write_text(json.dumps(components))


def load_tree(directory: Path, name: str) -> Tree:
    with (directory / f"{name}.tar").open("rb") as file:
        tree = read_tar(file)
    components: dict[str, Any] = json.loads((directory / f"{name}.components.json").read_text())
    for path, node in tree.nodes.items():
        tree.nodes[path] = replace(node, component=components[path])
    return tree


@contextmanager
def exclusive(directory: Path, progress: Progress) -> Iterator[None]:
    """One build at a time. No deadline of its own: each step of the other build has one."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(f"another build works in {directory}; waiting for its end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

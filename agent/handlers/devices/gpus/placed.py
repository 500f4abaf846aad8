"""The files that we place in /dev: whose they are, and when they go.

Nodes that all GPUs of a driver share belong to several devices, in any order of
coming and going, and an agent that takes over must know them too. So each device's
list of what was made for it is in the state directory, written before anything is
made. A file goes with the last device that lists it, and only if it still is what
was made: whatever somebody else put there stays.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, kernel_refused
from agent.core.state import StateStore
from agent.handlers.devices.gpus.parts import CharNode, DevFile, Link, content_of
from agent.linux import mknod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.core.tree import SysfsTree

log = logging.getLogger(__name__)

_KIND = "device-files"


class NodeMaker(Protocol):
    """What makes nodes: the kernel, or a test's table."""

    def make(self, node: CharNode) -> None: ...

    def remove(self, path: Path) -> None: ...


class KernelNodes:
    """Real nodes."""

    def make(self, node: CharNode) -> None:
        numbers = (node.major, node.minor)
        mknod.make_char_node(node.path, numbers=numbers, mode=node.mode, uid=node.uid, gid=node.gid)

    def remove(self, path: Path) -> None:
        mknod.remove(path)


class PlacedFiles:
    """What was placed for devices, by the devices' ids."""

    def __init__(self, tree: SysfsTree, nodes: NodeMaker) -> None:
        self._tree = tree
        self._nodes = nodes
        self._state = StateStore(tree.roots.state)

    def listed(self, owner: str) -> dict[str, str]:
        """Path to content of what was made for a device."""
        return self._state.load(_KIND, owner) or {}

    def place(self, owner: str, wanted: Iterable[DevFile]) -> None:
        """Make what is not there; what is there and was not made by us stays another's.

        Raises KERNEL_REFUSED with the errno, NO_SPACE; what was made until then is listed.
        """
        before = self.listed(owner)
        known = {path for files in self._lists().values() for path in files}
        claimed = [file for file in wanted if self._is_ours(file, known)]
        entries = before | {str(file.path): file.content for file in claimed}
        if entries != before:
            self._state.save(_KIND, owner, entries)
        for file in claimed:
            if content_of(self._tree, file.path) != file.content:
                self._make(file)

    def release(
        self, owner: str, is_known: Callable[[str], bool], keep: Iterable[str] = ()
    ) -> None:
        """Remove what no other device needs; `keep` are paths that the owner keeps.

        Lists of devices that are not known are left from an agent that died: they go
        too. Raises KERNEL_REFUSED after all others have gone.
        """
        lists = self._lists()
        kept = {path: content for path, content in lists.pop(owner, {}).items() if path in keep}
        stale = [other for other in lists if not is_known(other)]
        needed = {path for other in lists if other not in stale for path in lists[other]} | set(
            kept
        )
        refusals = [
            refusal
            for name in (owner, *stale)
            for path, content in self.listed(name).items()
            if path not in needed and (refusal := self._remove(Path(path), content))
        ]
        for name in stale:
            self._state.delete(_KIND, name)
        if kept:
            self._state.save(_KIND, owner, kept)
        else:
            self._state.delete(_KIND, owner)
        if refusals:
            raise refusals[0]

    def _lists(self) -> dict[str, dict[str, str]]:
        return self._state.load_all(_KIND)

    def _is_ours(self, file: DevFile, known: set[str]) -> bool:
        """Whether we may make it, or made it before."""
        if str(file.path) in known:
            return True
        there = content_of(self._tree, file.path)
        if isinstance(file, Link):
            # A link that leads nowhere is left from an earlier device of this address.
            return there is None or (there != file.content and not file.path.exists())
        return file.ours and there != file.content

    def _make(self, file: DevFile) -> None:
        try:
            if isinstance(file, Link):
                mknod.make_link(file.path, file.target)
            else:
                self._nodes.make(file)
        except OSError as error:
            raise kernel_refused(error, doing=f"make {file.path} ({file.content})") from error
        log.info("made %s (%s)", file.path, file.content)

    def _remove(self, path: Path, content: str) -> AgentError | None:
        if content_of(self._tree, path) != content:
            return None
        try:
            self._nodes.remove(path)
        except OSError as error:
            return kernel_refused(error, doing=f"remove {path}")
        # Directories that were made on the way go when they are empty; others don't mind.
        with contextlib.suppress(OSError):
            if path.parent != self._tree.roots.dev:
                path.parent.rmdir()
        return None

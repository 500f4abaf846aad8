"""What a GPU is made of: files that we place in /dev for it, and facts of its driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from agent.core.model import DeviceNode, NodeType

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.tree import SysfsTree


@dataclass(frozen=True, slots=True, kw_only=True)
class CharNode:
    """A node that should be there. `ours` is whether we may make it when it is not."""

    path: Path
    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    ours: bool = True

    @property
    def content(self) -> str:
        return f"c {self.major}:{self.minor}"

    @property
    def node(self) -> DeviceNode:
        return DeviceNode(
            path=str(self.path), type=NodeType.CHAR, major=self.major, minor=self.minor
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A symbolic link that should be there; `target` is relative to its directory."""

    path: Path
    target: str

    @property
    def content(self) -> str:
        return f"-> {self.target}"


DevFile: TypeAlias = CharNode | Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a driver's own interface tells. `kernels` are nodes that devtmpfs made;
    `shared` and `shared_paths` are those of all devices of the driver."""

    model: str = ""
    uuid: str = ""
    minor: int = -1
    own: tuple[CharNode, ...] = ()
    shared: tuple[CharNode, ...] = ()
    mig: tuple[CharNode, ...] = ()
    kernels: tuple[DeviceNode, ...] = ()
    shared_paths: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[CharNode, ...]:
        return (*self.own, *self.shared, *self.mig)


def content_of(tree: SysfsTree, path: Path) -> str | None:
    """What a name in /dev is now, in the words of `DevFile.content`; None for anything else."""
    numbers = tree.node_numbers(path)
    if numbers is not None:
        return f"{numbers.type} {numbers.major}:{numbers.minor}"
    try:
        return f"-> {path.readlink()}"
    except OSError:
        return None

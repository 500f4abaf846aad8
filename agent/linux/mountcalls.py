"""What can be mounted, as data that goes to the worker which makes the mount.

A path of a storage that others may write to is a `Location`: it is resolved once, inside
its root, to a descriptor, and only the descriptor is used from then on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from agent.linux.mounting import MountFlag

SECRET = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A file or directory: `path` below the absolute path `root`, empty for `root` itself.

    Links in `root` are refused. Those in `path` lead to where they would in a system whose
    root directory is `root`; with `links` False they are refused too (ELOOP).
    """

    root: str
    path: str = ""
    links: bool = True

    def __str__(self) -> str:
        return f"{self.root.rstrip('/')}/{self.path.lstrip('/')}" if self.path else self.root


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOption:
    """A file system's own option: a word, or with `value` a word and its value.

    The value of a secret one is shown nowhere.
    """

    key: str
    value: str | None = None
    secret: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return self.key
        return f"{self.key}={SECRET if self.secret else self.value}"

    def __repr__(self) -> str:
        return f"MountOption({self})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FsMount:
    """A file system of this type; `source` is what mountinfo shows, for disks the node."""

    fs_type: str
    source: str
    options: tuple[MountOption, ...] = ()
    flags: MountFlag = MountFlag(0)  # noqa: RUF009 - an enum member is a constant


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """A file or directory once more, `recursive` with what is mounted below it.

    `flags` come on top of those that the source's mount has, which stay whatever they are.
    """

    source: Location
    recursive: bool = False
    flags: MountFlag = MountFlag(0)  # noqa: RUF009 - an enum member is a constant


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayMount:
    """Directories over one another, the topmost of `lowers` first, at most 500.

    `upper` takes the writes and needs `work`, an empty directory of the same mount; without
    them nothing can be written.
    """

    lowers: tuple[Location, ...]
    upper: Location | None = None
    work: Location | None = None
    options: tuple[MountOption, ...] = ()
    flags: MountFlag = MountFlag(0)  # noqa: RUF009 - an enum member is a constant


MountCall: TypeAlias = FsMount | BindMount | OverlayMount


class FileRefusal(OSError):  # noqa: N818 - one of many words for what a kernel says
    """The kernel refused a mount; `log` is what the file system said, oldest line first."""

    def __init__(self, number: int, text: str, obj: str, *, log: tuple[str, ...] = ()) -> None:
        super().__init__(number, text, obj)
        self.log = log


def to_message(call: MountCall) -> dict[str, Any]:
    """The call as JSON, for `from_message`."""
    return {"kind": type(call).__name__, **asdict(call)}


def from_message(message: dict[str, Any]) -> MountCall:
    """Raises KeyError or TypeError for what `to_message` did not make."""
    fields = {**message, "flags": MountFlag(message["flags"])}
    kind = fields.pop("kind")
    if "options" in fields:
        fields["options"] = tuple(MountOption(**option) for option in fields["options"])
    if "lowers" in fields:
        fields["lowers"] = tuple(Location(**lower) for lower in fields["lowers"])
    for name in {"upper", "work"} & fields.keys():
        fields[name] = fields[name] and Location(**fields[name])
    if kind == "BindMount":
        fields["source"] = Location(**fields["source"])
    return _KINDS[kind](**fields)


_KINDS: dict[str, type[MountCall]] = {
    "FsMount": FsMount,
    "BindMount": BindMount,
    "OverlayMount": OverlayMount,
}
